//! Many calls at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::client::Limiter;
use crate::{ms, text, Wrong};

#[derive(Default)]
struct Seen {
    calls: u64,
    allowed: u64,
    denied: u64,
    degraded: u64,
    cancelled: u64,
    errors: BTreeMap<&'static str, u64>,
    slowest: Duration,
    busy: Duration,
}

/// The work that all callers share.
struct Plan {
    limiter: Limiter,
    request: Value,
    began: Instant,
    next: AtomicU64,
}

pub fn deadline(request: &Value) -> Option<Duration> {
    request["deadline_us"].as_f64().map(|us| Duration::from_secs_f64(us / 1e6))
}

pub async fn many(limiter: &Limiter, request: &Value) -> Value {
    let plan = Arc::new(Plan {
        limiter: limiter.clone(),
        request: request.clone(),
        began: Instant::now(),
        next: AtomicU64::new(0),
    });
    let callers = request["concurrency"].as_u64().unwrap_or_else(|| request["count"].as_u64().unwrap_or(1));
    let callers: Vec<_> = (0..callers).map(|_| tokio::spawn(plan.clone().call())).collect();
    let mut seen = Seen::default();
    for caller in callers {
        seen.add(caller.await.expect("a caller"));
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    json!({
        "calls": seen.calls,
        "allowed": seen.allowed,
        "denied": seen.denied,
        "degraded": seen.degraded,
        "cancelled": seen.cancelled,
        "errors": seen.errors,
        "slowest_ms": us(seen.slowest) / 1000.0,
        "elapsed_ms": us(plan.began.elapsed()) / 1000.0,
        "per_call_us": us(seen.busy) / seen.calls.max(1) as f64,
    })
}

impl Plan {
    async fn call(self: Arc<Self>) -> Seen {
        let (deadline, operation) = (deadline(&self.request), text(&self.request, "op"));
        let operation = if operation.is_empty() { "take" } else { operation };
        let mut seen = Seen::default();
        while let Some(name) = self.next().await {
            let asked_at = Instant::now();
            let decided = self.limiter.decide(operation, &name, &self.request, deadline).await;
            seen.busy += asked_at.elapsed();
            seen.slowest = seen.slowest.max(asked_at.elapsed());
            seen.calls += 1;
            match decided {
                Ok(decision) => {
                    *if decision.allowed { &mut seen.allowed } else { &mut seen.denied } += 1;
                    seen.degraded += u64::from(decision.degraded);
                }
                Err(error) => match Wrong::from(error).0 {
                    "Cancelled" => seen.cancelled += 1,
                    kind => *seen.errors.entry(kind).or_default() += 1,
                },
            }
        }
        seen
    }

    /// The name of the next call, when it is its turn.
    async fn next(&self) -> Option<String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let turn =
            self.request["per_second"].as_f64().map(|rate| Duration::from_secs_f64(number as f64 / rate));
        let is_over = match ms(&self.request, "for_ms") {
            Some(length) => self.began.elapsed().max(turn.unwrap_or_default()) >= length,
            None => number >= self.request["count"].as_u64().unwrap_or(1),
        };
        if is_over {
            return None;
        }
        if let Some(wait) = turn.and_then(|turn| turn.checked_sub(self.began.elapsed())) {
            tokio::time::sleep(wait).await;
        }
        Some(match self.request["names"].as_u64() {
            Some(names) => format!("n{}", number % names),
            None => text(&self.request, "name").to_owned(),
        })
    }
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.degraded += other.degraded;
        self.cancelled += other.cancelled;
        self.slowest = self.slowest.max(other.slowest);
        self.busy += other.busy;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
    }
}
