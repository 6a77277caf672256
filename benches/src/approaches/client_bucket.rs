//! A token bucket that clients compute, by their own clocks.

use super::{client_now_us, Bucket};
use crate::resp::{Batch, Reply};
use anyhow::{bail, Result};

/// The state of a bucket after a decision.
pub struct Computed {
    pub allowed: bool,
    level: f64,
    now_us: u64,
}

/// Asks for the stored state.
pub fn read(bucket: &Bucket, batch: &mut Batch) {
    batch.push(["HMGET", &bucket.key, "level", "refilled_at_us"]);
}

/// Decides on the stored state.
pub fn compute(stored: &Reply, bucket: &Bucket) -> Result<Computed> {
    let now_us = client_now_us();
    let capacity = bucket.limit.capacity as f64;
    let level = match stored.elements()? {
        [Reply::Nil, _] => capacity,
        [level, refilled_at_us] => {
            let (level, refilled_at_us): (f64, u64) =
                (level.text()?.parse()?, refilled_at_us.text()?.parse()?);
            let elapsed_s = now_us.saturating_sub(refilled_at_us) as f64 / 1e6;
            capacity.min(level + elapsed_s * bucket.limit.rate())
        }
        other => bail!("{other:?} is no bucket"),
    };
    let allowed = level >= 1.0;
    Ok(Computed { allowed, level: if allowed { level - 1.0 } else { level }, now_us })
}

impl Computed {
    /// Stores the state.
    pub fn write(&self, bucket: &Bucket, batch: &mut Batch) {
        let (level, now_us) = (self.level.to_string(), self.now_us.to_string());
        batch.push(["HSET", &bucket.key, "level", &level, "refilled_at_us", &now_us]);
    }

    /// Lets the key go once the bucket is full.
    pub fn expire(&self, bucket: &Bucket, batch: &mut Batch) {
        let full_in_ms = (bucket.limit.capacity as f64 - self.level) * 1000.0 / bucket.limit.rate();
        batch.push(["PEXPIRE", &bucket.key, &(full_in_ms.ceil().max(1.0)).to_string()]);
    }
}
