//! The module's side: a limit as it reads it, a bucket as it keeps it.

use super::bucket::{ExactBucket, ExactLimit, Stored};
use super::rational::{integer, Exact};
use num_traits::ToPrimitive;
use tokenbucket::bucket::{Bucket, Change, DebtTooDeep, Limit, Operation, Outcome, MAX_TIME_US};
use tokenbucket::number::{Rate, MAX_MICRO};

/// 100 years in microseconds: no bucket takes longer to refill.
pub const CENTURY_US: i64 = 3_155_760_000_000_000;

/// A limit as the module reads it, and as it is meant.
#[derive(Clone)]
pub struct Worded {
    pub limit: Limit,
    pub exact: ExactLimit,
}

impl std::fmt::Debug for Worded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ExactLimit { capacity, rate } = &self.exact;
        write!(formatter, "{capacity} micro-tokens at {rate} tokens/s")
    }
}

impl Worded {
    /// A rate in words and as it is meant, with a capacity; one that takes too long to refill is made smaller.
    pub fn new(capacity_micro: i64, (words, rate): &(String, Exact)) -> Self {
        let largest = (rate * integer(CENTURY_US)).to_integer().to_i64().unwrap_or(MAX_MICRO);
        let capacity_micro = capacity_micro.min(largest).min(MAX_MICRO);
        let read = Rate::parse(words.as_bytes()).unwrap_or_else(|error| panic!("{words}: {error:?}"));
        Self::of(Limit::new(capacity_micro, read).unwrap(), rate.clone())
    }

    /// A limit that has been read, and the rate that was meant.
    pub fn of(limit: Limit, rate: Exact) -> Self {
        Self { limit, exact: ExactLimit { capacity: integer(limit.capacity_micro()), rate } }
    }

    pub fn is_whole(&self) -> bool {
        self.exact.rate.is_integer()
    }

    /// Microseconds from empty to full, as far as a clock counts.
    pub fn refill_us(&self) -> i64 {
        self.exact.time_us(&self.exact.capacity).to_integer().to_i64().unwrap_or(MAX_TIME_US)
    }
}

/// A bucket as the module keeps it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Module {
    pub stored: Option<Bucket>,
}

impl Module {
    /// Decides, and makes it so.
    pub fn call(&mut self, limit: &Limit, operation: Operation, now_us: i64) -> Result<Outcome, DebtTooDeep> {
        let outcome = limit.decide(self.stored, operation, now_us)?;
        self.apply(outcome.change);
        Ok(outcome)
    }

    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Keep => {}
            Change::Clear => self.stored = None,
            Change::Store { bucket, .. } => {
                let storable = Bucket::checked(bucket.level_micro, bucket.refilled_at_us);
                assert_eq!(storable, Some(bucket), "no server could store this");
                self.stored = Some(bucket);
            }
        }
    }
}

/// What somebody who comes to a bucket finds, and when.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub stored: Option<Bucket>,
    pub now_us: i64,
}

impl Found {
    /// The same bucket, without a rounding behind it.
    pub fn exact(self) -> ExactBucket {
        ExactBucket {
            stored: self.stored.map(|bucket| Stored {
                level: integer(bucket.level_micro),
                written_at_us: bucket.refilled_at_us,
            }),
        }
    }

    /// Micro-tokens at that moment.
    pub fn level(self, limit: &Worded) -> Exact {
        self.exact().level(&limit.exact, self.now_us)
    }
}
