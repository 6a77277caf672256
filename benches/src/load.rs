//! Clients that decide as fast as they can, each one decision at a time.

use crate::approaches::Approach;
use crate::client::{block_on, Client};
use crate::target::Target;
use crate::template::{key, Limit};
use fastrand::Rng;
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// What clients want, and for how long.
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
    pub load: Load,
    pub decisions: u64,
    pub allowed: u64,
    pub retries: u64,
    /// Decisions that ended in an error of the server, or were given up.
    pub errors: u64,
    commands: u64,
    /// Seconds from the first command sent to the last reply.
    elapsed_s: f64,
    /// Nanoseconds from a decision's first command to its last reply.
    latency_ns: Histogram<u64>,
    /// Processor time of the server, user and system.
    server_cpu_s: f64,
}

impl Outcome {
    pub fn decisions_a_second(&self) -> f64 {
        self.a_second(self.decisions)
    }

    pub fn a_second(&self, number: u64) -> f64 {
        number as f64 / self.elapsed_s
    }

    pub fn commands_per_decision(&self) -> f64 {
        self.commands as f64 / self.decisions as f64
    }

    /// The most tokens that one key of the limit can have granted.
    pub fn possible(&self) -> u64 {
        let Load { limit, .. } = self.load;
        limit.capacity + (limit.rate() * self.elapsed_s).floor() as u64
    }

    /// By how much more than that was allowed.
    pub fn over_percent(&self) -> f64 {
        self.allowed.saturating_sub(self.possible()) as f64 * 100.0 / self.possible() as f64
    }

    /// Microseconds of the server's processor.
    pub fn cpu_us_per_decision(&self) -> f64 {
        self.server_cpu_s * 1e6 / self.decisions as f64
    }

    /// A quantile of the latency, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }
}

pub fn run(server: impl Into<Target>, approach: &Approach, load: Load) -> Outcome {
    let server = server.into();
    let before_s = server.cpu_s();
    let outcome = RefCell::new(Outcome {
        load,
        decisions: 0,
        allowed: 0,
        retries: 0,
        errors: 0,
        commands: 0,
        elapsed_s: 0.0,
        latency_ns: Histogram::new(3).unwrap(),
        server_cpu_s: 0.0,
    });
    block_on(async {
        let opening = (0..load.clients).map(|number| Client::open(server.port, number, load.limit));
        let clients = join_all(opening).await;
        let start = Instant::now();
        let keys = RefCell::new(keys(load, start));
        let decisions = clients.into_iter().map(|client| decide(approach, client, &keys, &outcome));
        join_all(decisions).await;
        outcome.borrow_mut().elapsed_s = start.elapsed().as_secs_f64();
    });
    Outcome { server_cpu_s: server.cpu_s() - before_s, ..outcome.into_inner() }
}

/// One client, decision by decision.
async fn decide(
    approach: &Approach,
    mut client: Client,
    keys: &RefCell<impl Iterator<Item = String>>,
    outcome: &RefCell<Outcome>,
) {
    let next = || keys.borrow_mut().next();
    while let Some(key) = next() {
        let since = Instant::now();
        let decided = approach.decide(&mut client, &key).await;
        let latency = since.elapsed();
        let mut outcome = outcome.borrow_mut();
        outcome.latency_ns.record(latency.as_nanos() as u64).unwrap();
        outcome.decisions += 1;
        outcome.errors += u64::from(decided.is_err());
        outcome.allowed += u64::from(decided.unwrap_or(false));
    }
    let mut outcome = outcome.borrow_mut();
    outcome.commands += client.sent;
    outcome.retries += client.retries;
}

/// The keys on which decisions are wanted, until the time is over.
fn keys(load: Load, start: Instant) -> impl Iterator<Item = String> {
    let mut random = Rng::with_seed(1);
    (0..).map_while(move |chosen| match load.duration {
        None => (chosen < load.buckets).then(|| key(chosen)),
        Some(duration) => (start.elapsed() < duration).then(|| key(random.u64(0..load.buckets))),
    })
}
