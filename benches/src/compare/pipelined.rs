//! Calls in pipelines, where connections cost little and commands show.

use super::Bench;
use crate::calls::{Call, Shape, ALLOWED, INCR};
use crate::plot::Bar;
use crate::replies::Replies;
use crate::report::{median, times, whole, Section, Table};
use crate::server::Server;
use anyhow::Result;
use fastrand::Rng;
use std::io::Write;
use std::net::TcpStream;
use std::time::Instant;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };

/// The server never waits for a client: while one reads, the others' calls are there.
const CONNECTIONS: usize = 4;

const CALLS: [&str; 7] = ["GET", "SET", INCR, ALLOWED, "TB.TAKE, denied", "TB.PEEK", "Lua script, EVALSHA"];

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let calls = Call::all_named(&CALLS)?;
    let number = bench.pick(500_000, 50_000);
    let rounds = bench.in_turns("pipelined calls", &calls, |server, call| {
        calls_a_second(server, call, number / call.weight)
    })?;
    let speeds: Vec<f64> = rounds.iter().map(|speeds| median(speeds)).collect();
    let (get, incr) = (speeds[0], speeds[2]);
    let mut table = Table::new("call | calls/s | of INCR's | of GET's");
    for (name, speed) in CALLS.iter().zip(&speeds) {
        table.row([(*name).to_owned(), whole(*speed), times(speed / incr), times(speed / get)]);
    }
    let bars = CALLS.iter().zip(&speeds);
    let bars = bars.map(|(name, speed)| Bar::new(name, *speed, |speed| format!("{} a second", whole(speed))));
    let text = format!(
        "{CONNECTIONS} connections, {} calls in each write, {} random keys; the median of {} rounds in which all take turns. \
         GET, SET and INCR show what the server does for any command.",
        SHAPE.pipeline,
        whole(SHAPE.keys as f64),
        bench.rounds
    );
    Ok(Section::new("pipelined", "Pipelined calls", text, table)
        .plot("pipelined", Bar::plot("Calls a second, 32 in a pipeline", &bench.caption, bars, None)?))
}

fn calls_a_second(server: &Server, call: &Call, calls: usize) -> Result<f64> {
    call.prepare(&mut server.connect()?, SHAPE)?;
    let lines = (0..CONNECTIONS).map(|_| Line::open(server.port));
    let mut lines = lines.collect::<Result<Vec<_>>>()?;
    // Written before the clock starts: the client is to be no slower than the server.
    let mut random = Rng::with_seed(1);
    let batches = call.batches(SHAPE, calls, &mut random);
    let batches: Vec<_> = batches.map(|batch| (batch.get_packed_pipeline(), batch.len())).collect();
    let start = Instant::now();
    for (number, (bytes, len)) in batches.iter().enumerate() {
        let line = &mut lines[number % CONNECTIONS];
        line.receive(call)?;
        line.stream.write_all(bytes)?;
        line.expected = *len;
    }
    lines.iter_mut().try_for_each(|line| line.receive(call))?;
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

/// A connection with calls under way.
struct Line {
    stream: TcpStream,
    replies: Replies,
    expected: usize,
}

impl Line {
    fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, replies: Replies::default(), expected: 0 })
    }

    fn receive(&mut self, call: &Call) -> Result<()> {
        while self.expected > 0 {
            match self.replies.next()? {
                Some(reply) => {
                    call.judge(reply)?;
                    self.expected -= 1;
                }
                None => drop(self.replies.receive(&mut self.stream)?),
            }
        }
        Ok(())
    }
}
