//! Clients that decide as fast as they can, each over a connection of its own, one decision at a time.

use crate::approaches::{Approach, Bucket, Client, Step};
use crate::connection::Connection;
use crate::limit::Limit;
use crate::random::Random;
use crate::resp::{Batch, Reply};
use crate::server::Server;
use anyhow::{bail, Context, Result};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Who wants what, for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub clients: usize,
    /// Buckets to choose from at random.
    pub buckets: u64,
    pub limit: Limit,
    pub duration: Duration,
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
    pub latency_ns: Histogram<u64>,
    /// Processor time of the server, user and system.
    pub server_cpu_us: f64,
}

impl Outcome {
    pub fn decisions_a_second(&self) -> f64 {
        self.decisions as f64 / self.elapsed.as_secs_f64()
    }

    pub fn per_decision(&self, amount: f64) -> f64 {
        amount / self.decisions.max(1) as f64
    }

    /// A quantile of the latency, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Lets clients loose on a server.
pub fn run(server: &Server, approach: &dyn Approach, load: Load) -> Result<Outcome> {
    let mut control = server.connect()?;
    approach.load(&mut control)?;
    let mut crowd = Crowd::new(server, approach, load)?;
    let cpu_before_us = cpu_us(&mut control)?;
    crowd.run()?;
    let mut outcome = crowd.outcome;
    outcome.server_cpu_us = cpu_us(&mut control)? - cpu_before_us;
    Ok(outcome)
}

fn cpu_us(control: &mut Connection) -> Result<f64> {
    let report = control.info("cpu")?;
    Ok((report.number("used_cpu_user")? + report.number("used_cpu_sys")?) * 1e6)
}

struct Crowd {
    poll: Poll,
    members: Vec<Member>,
    outcome: Outcome,
    choice: Choice,
    duration: Duration,
}

/// Chooses buckets.
struct Choice {
    random: Random,
    buckets: u64,
    limit: Limit,
}

impl Choice {
    fn next(&mut self) -> Bucket {
        Bucket::of_user(self.random.below(self.buckets), self.limit)
    }
}

impl Crowd {
    fn new(server: &Server, approach: &dyn Approach, load: Load) -> Result<Self> {
        let poll = Poll::new()?;
        let mut choice = Choice { random: Random::new(1), buckets: load.buckets, limit: load.limit };
        let member = |number| -> Result<Member> {
            let mut member = Member::new(server.port(), approach.client(number), choice.next())?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut member.stream, Token(number), interest)?;
            Ok(member)
        };
        let members = (0..load.clients).map(member).collect::<Result<_>>()?;
        let outcome = Outcome {
            decisions: 0,
            allowed: 0,
            retries: 0,
            errors: 0,
            commands: 0,
            elapsed: Duration::ZERO,
            latency_ns: Histogram::new(3)?,
            server_cpu_us: 0.0,
        };
        Ok(Self { poll, members, outcome, choice, duration: load.duration })
    }

    fn run(&mut self) -> Result<()> {
        let start = Instant::now();
        let deadline = start + self.duration;
        for member in &mut self.members {
            member.begin(self.choice.next(), &mut self.outcome)?;
        }
        let mut busy = self.members.len();
        let mut events = Events::with_capacity(self.members.len());
        while busy > 0 {
            self.poll.poll(&mut events, Some(Duration::from_secs(60)))?;
            if events.is_empty() {
                bail!("{busy} clients wait in vain");
            }
            for event in &events {
                let member = &mut self.members[event.token().0];
                busy -= usize::from(member.follow(&mut self.choice, deadline, &mut self.outcome)?);
            }
        }
        self.outcome.elapsed = start.elapsed();
        Ok(())
    }
}

/// One client and its connection.
struct Member {
    stream: TcpStream,
    client: Box<dyn Client>,
    bucket: Bucket,
    since: Instant,
    batch: Batch,
    sent: usize,
    unread: Vec<u8>,
    replies: Vec<Reply>,
    idle: bool,
}

impl Member {
    fn new(port: u16, client: Box<dyn Client>, bucket: Bucket) -> Result<Self> {
        let stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream),
            client,
            bucket,
            since: Instant::now(),
            batch: Batch::new(),
            sent: 0,
            unread: Vec::new(),
            replies: Vec::new(),
            idle: true,
        })
    }

    /// Starts a decision.
    fn begin(&mut self, bucket: Bucket, outcome: &mut Outcome) -> Result<()> {
        self.bucket = bucket;
        self.idle = false;
        self.since = Instant::now();
        self.batch.clear();
        self.client.begin(&self.bucket, &mut self.batch)?;
        self.send(outcome)
    }

    /// Reads what has come and goes on from there; true if this was the last decision.
    fn follow(&mut self, choice: &mut Choice, deadline: Instant, outcome: &mut Outcome) -> Result<bool> {
        if self.idle {
            return Ok(false);
        }
        self.flush()?;
        self.read()?;
        while self.replies.len() == self.batch.commands() {
            let Some(ended) = self.proceed(outcome)? else { continue };
            if ended >= deadline {
                self.idle = true;
                return Ok(true);
            }
            self.begin(choice.next(), outcome)?;
        }
        Ok(false)
    }

    /// Goes one step further, now that all replies are there; when the decision ended, if it did.
    fn proceed(&mut self, outcome: &mut Outcome) -> Result<Option<Instant>> {
        self.batch.clear();
        let replies = std::mem::take(&mut self.replies);
        let failed = replies.iter().any(|reply| matches!(reply, Reply::Error(_)));
        let step = if failed {
            Step::GaveUp
        } else {
            self.client.proceed(&replies, &self.bucket, &mut self.batch)?
        };
        match step {
            Step::Ask => self.send(outcome)?,
            Step::Retry => {
                outcome.retries += 1;
                self.send(outcome)?;
            }
            Step::Decided { allowed } => {
                outcome.allowed += u64::from(allowed);
                return self.end(outcome).map(Some);
            }
            Step::GaveUp => {
                outcome.errors += 1;
                return self.end(outcome).map(Some);
            }
        }
        Ok(None)
    }

    fn end(&self, outcome: &mut Outcome) -> Result<Instant> {
        let now = Instant::now();
        outcome.decisions += 1;
        outcome.latency_ns.record(u64::try_from((now - self.since).as_nanos())?)?;
        Ok(now)
    }

    fn send(&mut self, outcome: &mut Outcome) -> Result<()> {
        outcome.commands += self.batch.commands() as u64;
        self.sent = 0;
        self.flush()
    }

    /// Writes as much as the connection takes.
    fn flush(&mut self) -> Result<()> {
        while self.sent < self.batch.bytes().len() {
            match self.stream.write(&self.batch.bytes()[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("writing to the server"),
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mut chunk = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(read) => {
                    self.unread.extend_from_slice(&chunk[..read]);
                    if read < chunk.len() {
                        break; // Emptied; another event comes with more.
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("reading from the server"),
            }
        }
        let mut used = 0;
        while let Some((reply, len)) = Reply::parse(&self.unread[used..])? {
            self.replies.push(reply);
            used += len;
        }
        self.unread.drain(..used);
        Ok(())
    }
}
