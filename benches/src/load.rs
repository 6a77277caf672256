//! Clients that decide as fast as they can, each one decision at a time.

use crate::approaches::Approach;
use crate::client::{block_on, Client};
use crate::common::{Connection, Server};
use crate::template::{key, Limit};
use fastrand::Rng;
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use redis::RedisResult;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tokio::time::timeout;

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

    /// The most tokens that one key of a limit can have granted.
    pub fn possible(&self, limit: Limit) -> u64 {
        limit.capacity + (limit.rate() * self.elapsed.as_secs_f64()).floor() as u64
    }

    /// By how much more than that was allowed.
    pub fn over_percent(&self, limit: Limit) -> f64 {
        let possible = self.possible(limit);
        self.allowed.saturating_sub(possible) as f64 * 100.0 / possible as f64
    }

    /// Microseconds of the server's processor.
    pub fn cpu_us_per_decision(&self) -> f64 {
        self.server_cpu_us / self.decisions.max(1) as f64
    }

    /// A quantile of the latency, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn add(&mut self, decided: RedisResult<bool>, latency: Duration) {
        self.decisions += 1;
        match decided {
            Ok(allowed) => self.allowed += u64::from(allowed),
            Err(_) => self.errors += 1,
        }
        self.latency_ns.record(latency.as_nanos() as u64).unwrap();
    }
}

/// Lets clients loose on a server.
pub fn run(server: &Server, approach: &Approach, load: Load) -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(600);
    let mut control = server.connect();
    let outcome = RefCell::new(Outcome {
        decisions: 0,
        allowed: 0,
        retries: 0,
        errors: 0,
        commands: 0,
        elapsed: Duration::ZERO,
        latency_ns: Histogram::new(3).unwrap(),
        server_cpu_us: -cpu_us(&mut control),
    });
    block_on(async {
        let opening = (0..load.clients).map(|number| Client::open(server.port(), number, load.limit));
        let clients = join_all(opening).await;
        let start = Instant::now();
        let keys = RefCell::new(keys(load, start));
        let decisions = clients.into_iter().map(|client| decide(approach, client, &keys, &outcome));
        timeout(PATIENCE, join_all(decisions)).await.expect("clients wait in vain");
        outcome.borrow_mut().elapsed = start.elapsed();
    });
    let mut outcome = outcome.into_inner();
    outcome.server_cpu_us += cpu_us(&mut control);
    outcome
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
        outcome.borrow_mut().add(decided, since.elapsed());
    }
    let mut outcome = outcome.borrow_mut();
    outcome.commands += client.sent;
    outcome.retries += client.retries;
}

fn cpu_us(control: &mut Connection) -> f64 {
    let mut seconds = |field| control.info("cpu", field).parse::<f64>().unwrap();
    (seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1e6
}

/// The keys on which decisions are wanted, until the time is over.
fn keys(load: Load, start: Instant) -> impl Iterator<Item = String> {
    let mut random = Rng::with_seed(1);
    (0..).map_while(move |chosen| match load.duration {
        None => (chosen < load.buckets).then(|| key(chosen)),
        Some(duration) => (start.elapsed() < duration).then(|| key(random.u64(0..load.buckets))),
    })
}
