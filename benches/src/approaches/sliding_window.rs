//! A sorted set that holds one member for each decision of the last window.

use super::{client_now_us, Approach, Bucket, Client, Step};
use crate::resp::{Batch, Reply};
use anyhow::{Context, Result};

pub struct SlidingWindow;

impl Approach for SlidingWindow {
    fn name(&self) -> &str {
        "sorted-set sliding window"
    }

    fn client(&self, number: usize) -> Box<dyn Client> {
        Box::new(Log { number, decisions: 0, denied: false })
    }
}

struct Log {
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
    fn begin(&mut self, bucket: &Bucket, batch: &mut Batch) -> Result<()> {
        self.decisions += 1;
        self.denied = false;
        let now_us = client_now_us();
        let window_ms = bucket.limit.window_ms();
        let key = bucket.key.as_str();
        batch.push(["MULTI"]);
        batch.push(["ZREMRANGEBYSCORE", key, "-inf", &now_us.saturating_sub(window_ms * 1000).to_string()]);
        batch.push(["ZADD", key, &now_us.to_string(), &self.member()]);
        batch.push(["ZCARD", key]);
        batch.push(["PEXPIRE", key, &window_ms.to_string()]);
        batch.push(["EXEC"]);
        Ok(())
    }

    fn proceed(&mut self, replies: &[Reply], bucket: &Bucket, batch: &mut Batch) -> Result<Step> {
        if self.denied {
            return Ok(Step::Decided { allowed: false });
        }
        let results = replies.last().context("no reply")?.elements()?;
        let count = results.get(2).context("no count")?.integer()?;
        if count.unsigned_abs() <= bucket.limit.capacity {
            return Ok(Step::Decided { allowed: true });
        }
        // What was denied must not count against the next.
        self.denied = true;
        batch.push(["ZREM", &bucket.key, &self.member()]);
        Ok(Step::Ask)
    }
}
