//! Many calls at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use tokenbucket_client::Decision;
use tokio::task::JoinSet;

use crate::client::Limiter;
use crate::{ms, text, Wrong};

#[derive(Default)]
struct Seen {
    allowed: u64,
    denied: u64,
    degraded: u64,
    cancelled: u64,
    errors: BTreeMap<&'static str, u64>,
}

/// The work that all callers share.
struct Plan {
    limiter: Limiter,
    request: Value,
    began: Instant,
    next: AtomicU64,
    seen: Mutex<Seen>,
}

pub async fn many(limiter: &Limiter, request: &Value) -> Value {
    let plan = Arc::new(Plan {
        limiter: limiter.clone(),
        request: request.clone(),
        began: Instant::now(),
        next: AtomicU64::new(0),
        seen: Mutex::default(),
    });
    let callers = request["concurrency"].as_u64().unwrap_or_else(|| request["count"].as_u64().unwrap_or(1));
    (0..callers).map(|_| plan.clone().call()).collect::<JoinSet<_>>().join_all().await;
    let seen = plan.seen.lock().unwrap();
    let calls = seen.allowed + seen.denied + seen.cancelled + seen.errors.values().sum::<u64>();
    json!({
        "calls": calls,
        "allowed": seen.allowed,
        "denied": seen.denied,
        "degraded": seen.degraded,
        "cancelled": seen.cancelled,
        "errors": seen.errors,
        "per_call_us": plan.began.elapsed().as_secs_f64() * 1e6 / calls as f64,
    })
}

impl Plan {
    async fn call(self: Arc<Self>) {
        let operation = text(&self.request, "op");
        while let Some(name) = self.next().await {
            let decided = self.limiter.decide(operation, &name, &self.request).await;
            self.seen.lock().unwrap().add(decided);
        }
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
    fn add(&mut self, decided: Result<Decision, Wrong>) {
        match decided {
            Ok(decision) => {
                *if decision.allowed { &mut self.allowed } else { &mut self.denied } += 1;
                self.degraded += u64::from(decision.degraded);
            }
            Err(Wrong("Cancelled", _)) => self.cancelled += 1,
            Err(Wrong(kind, _)) => *self.errors.entry(kind).or_default() += 1,
        }
    }
}
