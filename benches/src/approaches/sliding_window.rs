//! A sorted set that holds one member for each decision of the last window.

use super::{client_now_us, last, Approach, Client, Step};
use crate::template::Limit;
use anyhow::Result;
use redis::{Pipeline, Value};

pub struct SlidingWindow;

impl Approach for SlidingWindow {
    fn name(&self) -> &str {
        "sorted-set sliding window"
    }

    fn client(&self, number: usize, limit: Limit) -> Box<dyn Client> {
        Box::new(Log { limit, number, decisions: 0, denied: false })
    }
}

struct Log {
    limit: Limit,
    number: usize,
    decisions: u64,
    denied: bool,
}

impl Log {
    /// A name that no other decision has.
    fn member(&self) -> String {
        format!("{}:{}", self.number, self.decisions)
    }
}

impl Client for Log {
    fn begin(&mut self, key: &str, batch: &mut Pipeline) {
        self.decisions += 1;
        self.denied = false;
        let (now_us, window_ms) = (client_now_us(), self.limit.window_ms());
        batch.cmd("MULTI");
        batch.cmd("ZREMRANGEBYSCORE").arg(key).arg("-inf").arg(now_us.saturating_sub(window_ms * 1000));
        batch.cmd("ZADD").arg(key).arg(now_us).arg(self.member());
        batch.cmd("ZCARD").arg(key);
        batch.cmd("PEXPIRE").arg(key).arg(window_ms);
        batch.cmd("EXEC");
    }

    fn proceed(&mut self, replies: &[Value], key: &str, batch: &mut Pipeline) -> Result<Step> {
        if self.denied {
            return Ok(Step::Decided { allowed: false });
        }
        let (_removed, _added, count, _expiry): (u64, u64, u64, u64) = last(replies)?;
        if count <= self.limit.capacity {
            return Ok(Step::Decided { allowed: true });
        }
        // What was denied must not count against the next.
        self.denied = true;
        batch.cmd("ZREM").arg(key).arg(self.member());
        Ok(Step::Ask)
    }
}
