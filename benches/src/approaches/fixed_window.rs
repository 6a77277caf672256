//! INCR, and EXPIRE if it was the first of a window.

use super::{Approach, Bucket, Client, Step};
use crate::resp::{Batch, Reply};
use anyhow::{Context, Result};

pub struct FixedWindow;

impl Approach for FixedWindow {
    fn name(&self) -> &str {
        "INCR + EXPIRE fixed window"
    }

    fn write_at_once(&self, bucket: &Bucket, batch: &mut Batch) -> Result<bool> {
        batch.push(["INCR", &bucket.key]);
        expire(bucket, batch);
        Ok(true)
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        Box::new(Counter { begun: false })
    }
}

fn expire(bucket: &Bucket, batch: &mut Batch) {
    batch.push(["PEXPIRE", &bucket.key, &bucket.limit.window_ms().to_string()]);
}

struct Counter {
    /// Whether this client's count began the window.
    begun: bool,
}

impl Client for Counter {
    fn begin(&mut self, bucket: &Bucket, batch: &mut Batch) -> Result<()> {
        self.begun = false;
        batch.push(["INCR", &bucket.key]);
        Ok(())
    }

    fn proceed(&mut self, replies: &[Reply], bucket: &Bucket, batch: &mut Batch) -> Result<Step> {
        if self.begun {
            return Ok(Step::Decided { allowed: true });
        }
        let count = replies.first().context("no reply")?.integer()?;
        if count == 1 {
            self.begun = true;
            expire(bucket, batch);
            return Ok(Step::Ask);
        }
        Ok(Step::Decided { allowed: count.unsigned_abs() <= bucket.limit.capacity })
    }
}
