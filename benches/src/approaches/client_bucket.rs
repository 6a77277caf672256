//! A token bucket that clients compute, by their own clocks: read, compute, write. Whoever else computes meanwhile is
//! overwritten; or, under WATCH, a write that another came before is tried again.

use super::{client_now_us, last, Approach, Client, Step};
use crate::template::Limit;
use anyhow::Result;
use redis::{Pipeline, Value};

const MOST_RETRIES: u32 = 20;

pub struct ClientBucket {
    /// Whether a write counts only if nobody else has written since the state was read.
    pub is_watched: bool,
}

impl Approach for ClientBucket {
    fn name(&self) -> &str {
        if self.is_watched {
            "WATCH / MULTI / EXEC"
        } else {
            "read, compute, write"
        }
    }

    fn client(&self, _number: usize, limit: Limit) -> Box<dyn Client> {
        Box::new(Writer { limit, is_watched: self.is_watched, asked: Asked::State, retries: 0 })
    }
}

/// What was asked last.
enum Asked {
    State,
    Write(Computed),
    End { allowed: bool },
}

/// The state of a bucket after a decision.
struct Computed {
    allowed: bool,
    level: f64,
    now_us: u64,
}

/// Decides on the stored state.
fn compute(replies: &[Value], limit: Limit) -> Result<Computed> {
    let now_us = client_now_us();
    let capacity = limit.capacity as f64;
    let level = match last(replies)? {
        (Some(level), Some(refilled_at_us)) => {
            let (level, refilled_at_us): (f64, u64) = (level, refilled_at_us);
            let elapsed_s = now_us.saturating_sub(refilled_at_us) as f64 / 1e6;
            capacity.min(level + elapsed_s * limit.rate())
        }
        _ => capacity,
    };
    let allowed = level >= 1.0;
    Ok(Computed { allowed, level: if allowed { level - 1.0 } else { level }, now_us })
}

impl Computed {
    /// Stores the state.
    fn write(&self, key: &str, batch: &mut Pipeline) {
        batch.cmd("HSET").arg(key).arg("level").arg(self.level.to_string());
        batch.arg("refilled_at_us").arg(self.now_us);
    }

    /// Lets the key go once the bucket is full.
    fn expire(&self, key: &str, limit: Limit, batch: &mut Pipeline) {
        let full_in_ms = (limit.capacity as f64 - self.level) * 1000.0 / limit.rate();
        batch.cmd("PEXPIRE").arg(key).arg(full_in_ms.ceil().max(1.0) as u64);
    }
}

struct Writer {
    limit: Limit,
    is_watched: bool,
    asked: Asked,
    retries: u32,
}

impl Writer {
    fn read(&mut self, key: &str, batch: &mut Pipeline) {
        self.asked = Asked::State;
        if self.is_watched {
            batch.cmd("WATCH").arg(key);
        }
        batch.cmd("HMGET").arg(key).arg(&["level", "refilled_at_us"]);
    }

    /// Asks for what follows a decision on the stored state.
    fn end(&mut self, computed: Computed, key: &str, batch: &mut Pipeline) -> Step {
        let allowed = computed.allowed;
        self.asked = Asked::End { allowed };
        match (self.is_watched, allowed) {
            (false, false) => return Step::Decided { allowed },
            (false, true) => {
                computed.write(key, batch);
                self.asked = Asked::Write(computed);
            }
            (true, false) => drop(batch.cmd("UNWATCH")),
            (true, true) => {
                batch.cmd("MULTI");
                computed.write(key, batch);
                computed.expire(key, self.limit, batch);
                batch.cmd("EXEC");
            }
        }
        Step::Ask
    }

    fn retry(&mut self, key: &str, batch: &mut Pipeline) -> Step {
        if self.retries == MOST_RETRIES {
            return Step::GaveUp;
        }
        self.retries += 1;
        self.read(key, batch);
        Step::Retry
    }
}

impl Client for Writer {
    fn begin(&mut self, key: &str, batch: &mut Pipeline) {
        self.retries = 0;
        self.read(key, batch);
    }

    fn proceed(&mut self, replies: &[Value], key: &str, batch: &mut Pipeline) -> Result<Step> {
        let another_was_faster = self.is_watched && replies.last() == Some(&Value::Nil);
        Ok(match &self.asked {
            Asked::State => self.end(compute(replies, self.limit)?, key, batch),
            Asked::Write(computed) => {
                computed.expire(key, self.limit, batch);
                self.asked = Asked::End { allowed: true };
                Step::Ask
            }
            Asked::End { .. } if another_was_faster => self.retry(key, batch),
            Asked::End { allowed } => Step::Decided { allowed: *allowed },
        })
    }
}
