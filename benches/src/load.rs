//! Clients that decide as fast as they can, each over a connection of its own, one decision at a time.

use crate::approaches::{Approach, Client, Step};
use crate::replies::Replies;
use crate::server::{info, Server};
use crate::template::{key, Limit};
use anyhow::{ensure, Context, Result};
use fastrand::Rng;
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use redis::{Connection, Pipeline, Value};
use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

/// Who wants what, for how long.
#[derive(Clone, Copy)]
pub struct Load {
    pub clients: usize,
    pub limit: Limit,
    pub buckets: u64,
    /// `None` makes one decision on each bucket.
    pub duration: Option<Duration>,
}

/// What came of it.
pub struct Outcome {
    pub decisions: u64,
    pub allowed: u64,
    pub retries: u64,
    /// Decisions that ended in an error of the server, or were given up.
    pub errors: u64,
    /// Commands sent.
    pub commands: u64,
    /// From the first command sent to the last reply.
    pub elapsed: Duration,
    /// Nanoseconds from a decision's first command to its last reply.
    latency_ns: Histogram<u64>,
    /// Processor time of the server, user and system.
    server_cpu_us: f64,
}

impl Outcome {
    pub fn decisions_a_second(&self) -> f64 {
        self.decisions as f64 / self.elapsed.as_secs_f64()
    }

    pub fn commands_per_decision(&self) -> f64 {
        self.commands as f64 / self.decisions.max(1) as f64
    }

    /// Microseconds of the server's processor.
    pub fn cpu_us_per_decision(&self) -> f64 {
        self.server_cpu_us / self.decisions.max(1) as f64
    }

    /// A quantile of the latency, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Lets clients loose on a server.
pub fn run(server: &Server, approach: &dyn Approach, load: Load) -> Result<Outcome> {
    let mut poll = Poll::new()?;
    let mut members = Vec::new();
    for number in 0..load.clients {
        let mut member = Member::new(server.port, approach.client(number, load.limit))?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut member.stream, Token(number), interest)?;
        members.push(member);
    }
    let mut control = server.connect()?;
    let mut outcome = Outcome {
        decisions: 0,
        allowed: 0,
        retries: 0,
        errors: 0,
        commands: 0,
        elapsed: Duration::ZERO,
        latency_ns: Histogram::new(3)?,
        server_cpu_us: -cpu_us(&mut control)?,
    };
    let start = Instant::now();
    let deadline = load.duration.map(|duration| start + duration);
    let mut choice = Choice { buckets: load.buckets, random: Rng::with_seed(1), deadline, chosen: 0 };
    members.iter_mut().try_for_each(|member| member.begin(&mut choice, &mut outcome))?;
    let mut events = Events::with_capacity(load.clients);
    while members.iter().any(|member| !member.idle) {
        poll.poll(&mut events, Some(Duration::from_secs(60)))?;
        ensure!(!events.is_empty(), "clients wait in vain");
        for event in &events {
            members[event.token().0].follow(&mut choice, &mut outcome)?;
        }
    }
    outcome.elapsed = start.elapsed();
    outcome.server_cpu_us += cpu_us(&mut control)?;
    Ok(outcome)
}

fn cpu_us(control: &mut Connection) -> Result<f64> {
    let [user, system] = ["used_cpu_user", "used_cpu_sys"].map(|field| info::<f64>(control, "cpu", field));
    Ok((user? + system?) * 1e6)
}

/// Chooses buckets.
struct Choice {
    buckets: u64,
    random: Rng,
    deadline: Option<Instant>,
    chosen: u64,
}

impl Choice {
    /// The key of the next decision, if there is to be another.
    fn next(&mut self) -> Option<String> {
        self.chosen += 1;
        match self.deadline {
            None => (self.chosen <= self.buckets).then(|| key(self.chosen - 1)),
            Some(deadline) if Instant::now() >= deadline => None,
            Some(_) => Some(key(self.random.u64(0..self.buckets))),
        }
    }
}

/// One client and its connection.
struct Member {
    stream: TcpStream,
    client: Box<dyn Client>,
    key: String,
    since: Instant,
    batch: Pipeline,
    unsent: Vec<u8>,
    unread: Replies,
    replies: Vec<Value>,
    idle: bool,
}

impl Member {
    fn new(port: u16, client: Box<dyn Client>) -> Result<Self> {
        let stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream),
            client,
            key: String::new(),
            since: Instant::now(),
            batch: Pipeline::new(),
            unsent: Vec::new(),
            unread: Replies::default(),
            replies: Vec::new(),
            idle: true,
        })
    }

    /// Starts a decision, if there is to be another.
    fn begin(&mut self, choice: &mut Choice, outcome: &mut Outcome) -> Result<()> {
        let next = choice.next();
        self.idle = next.is_none();
        let Some(key) = next else { return Ok(()) };
        self.key = key;
        self.since = Instant::now();
        self.batch.clear();
        self.client.begin(&self.key, &mut self.batch);
        self.send(outcome)
    }

    /// Reads what has come and goes on from there.
    fn follow(&mut self, choice: &mut Choice, outcome: &mut Outcome) -> Result<()> {
        if self.idle {
            return Ok(());
        }
        self.flush()?;
        while self.unread.receive(&mut self.stream)? {}
        while let Some(reply) = self.unread.next()? {
            self.replies.push(reply);
            if self.replies.len() == self.batch.len() && self.proceed(outcome)? {
                self.begin(choice, outcome)?;
            }
        }
        Ok(())
    }

    /// Goes one step further, now that all replies are there; whether that ended the decision.
    fn proceed(&mut self, outcome: &mut Outcome) -> Result<bool> {
        self.batch.clear();
        let replies = std::mem::take(&mut self.replies);
        let failed = replies.iter().any(|reply| matches!(reply, Value::ServerError(_)));
        let step =
            if failed { Step::GaveUp } else { self.client.proceed(&replies, &self.key, &mut self.batch)? };
        match step {
            Step::Ask => return self.send(outcome).map(|()| false),
            Step::Retry => {
                outcome.retries += 1;
                return self.send(outcome).map(|()| false);
            }
            Step::Decided { allowed } => outcome.allowed += u64::from(allowed),
            Step::GaveUp => outcome.errors += 1,
        }
        outcome.decisions += 1;
        outcome.latency_ns.record(u64::try_from(self.since.elapsed().as_nanos())?)?;
        Ok(true)
    }

    fn send(&mut self, outcome: &mut Outcome) -> Result<()> {
        outcome.commands += self.batch.len() as u64;
        self.unsent = self.batch.get_packed_pipeline();
        self.flush()
    }

    /// Writes as much as the connection takes.
    fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("writing to the server"),
            }
        }
        Ok(())
    }
}
