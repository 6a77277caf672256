//! An operator's limit on one bucket, in place of those that come with calls.
//!
//! # Why an override leaves no trace
//!
//! The command that overrides a limit does not know the limit of the calls, so it cannot refill the bucket. It stores only when
//! the override began. The first call that writes brings the limit that counted until then: it refills the bucket up to that
//! moment, and records in the override what is above its capacity. That amount returns when the override ends. Until a call
//! writes, each call computes the same from the stored bucket.
//!
//! While an override suspends (capacity 0), the limit of the calls counts on, and only positive costs are denied.

use super::list::Holds;
use crate::bucket::{Bucket, Limit, MAX_TIME_US, NOTHING_INCLUDED};
use crate::limit;
use crate::number::MAX_MICRO;

/// A limit that counts for every call on a bucket until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit for calls with a rate above 0.
    pub(super) of_rates: Limit,
    /// The limit for calls with rate 0: its capacity.
    of_pools: Limit,
    /// The capacity and the rate as they were written, with a blank between them.
    text: Box<[u8]>,
    /// When it began, in Unix microseconds: 0 to [`MAX_TIME_US`].
    began_at_us: i64,
    /// When it ends, in Unix microseconds: 0 to [`MAX_TIME_US`].
    pub ends_at_us: i64,
    /// Whether it began with a full bucket.
    pub(super) fills: bool,
    /// The micro-tokens above its capacity when it began, 0 to [`MAX_MICRO`]; `None` until a call writes under it.
    pub(super) withheld_micro: Option<i64>,
}

/// A bucket when an override began.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    pub(super) bucket: Bucket,
    /// Until when the level includes ended holds.
    pub(super) included_until_us: i64,
    pub(super) withheld_micro: i64,
}

impl Begun {
    /// Begins an override by `limit` at `now_us`, in place of `own`: with a full bucket, or with what is left of the stored
    /// one and the holds that have returned.
    #[must_use]
    pub fn new(
        own: &Limit,
        (stored, returned_micro): (Bucket, i64),
        (limit, fills): (&Limit, bool),
        now_us: i64,
    ) -> Self {
        let level_micro = own.refill(stored, returned_micro, now_us).level_micro;
        let withheld_micro = level_micro.saturating_sub(limit.capacity_micro()).max(0);
        // Without a key, the bucket would be full too.
        let is_full = fills || level_micro == own.capacity_micro();
        let level_micro = if is_full { MAX_MICRO } else { level_micro }.min(limit.capacity_micro());
        let bucket = Bucket { level_micro, refilled_at_us: now_us };
        Self { bucket, included_until_us: NOTHING_INCLUDED, withheld_micro }
    }

    /// Returns the bucket at `until_us`, at which the override by `limit` no longer counts.
    #[must_use]
    pub fn after(&self, limit: &Limit, returned_micro: i64, until_us: i64) -> Bucket {
        let at_end = limit.refill(self.bucket, returned_micro, until_us);
        let level_micro = at_end.level_micro.saturating_add(self.withheld_micro).min(MAX_MICRO);
        Bucket { level_micro, refilled_at_us: until_us }
    }
}

/// Begins with a full bucket, in the bytes of an override.
const FILLS: u8 = 1;

/// Stands for an amount that no call has determined yet, in the bytes of an override.
const NOT_WRITTEN: i64 = -1;

impl Override {
    /// Reads an override that begins now; `None` if its limit is invalid, or if a time is out of bounds.
    #[must_use]
    pub fn parse(capacity: &[u8], rate: &[u8], fills: bool, times_us: (i64, i64)) -> Option<Self> {
        let (began_at_us, ends_at_us) = times_us;
        let limit = limit::or_pool(&capacity, &rate).ok()?;
        let of_pools = Limit::pool(limit.capacity_micro());
        let of_rates = if limit.is_pool() { Limit::stopped(limit.capacity_micro()) } else { limit };
        let text = [capacity, rate].join(&b' ').into();
        let times = 0..=MAX_TIME_US;
        (times.contains(&began_at_us) && times.contains(&ends_at_us)).then_some(Self {
            of_rates,
            of_pools,
            text,
            began_at_us,
            ends_at_us,
            fills,
            withheld_micro: None,
        })
    }

    /// Returns the capacity and the rate as they were written.
    pub fn written(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split(|byte| *byte == b' ')
    }

    /// Returns whether it denies every positive cost.
    pub(super) fn is_suspension(&self) -> bool {
        self.capacity_micro() == 0
    }

    pub(super) fn capacity_micro(&self) -> i64 {
        self.of_rates.capacity_micro()
    }

    /// Returns the limit that counts for calls that bring `own`.
    pub(crate) fn limit_for<'limit>(&'limit self, own: &'limit Limit) -> &'limit Limit {
        match own.is_pool() {
            true => &self.of_pools,
            false if self.is_suspension() => own,
            false => &self.of_rates,
        }
    }

    /// Returns the bucket when it began, whose calls bring `own`. It does not suspend.
    pub(super) fn begun(&self, holds: &Holds, own: &Limit, bucket: Bucket, now_us: i64) -> Begun {
        if let Some(withheld_micro) = self.withheld_micro {
            return Begun { bucket, included_until_us: NOTHING_INCLUDED, withheld_micro };
        }
        // The clock may have stepped back since.
        let included_until_us = self.began_at_us.min(self.ends_at_us).min(now_us);
        let returned_micro = holds.returned_micro(NOTHING_INCLUDED, included_until_us);
        let by = (&self.of_rates, self.fills);
        Begun { included_until_us, ..Begun::new(own, (bucket, returned_micro), by, self.began_at_us) }
    }

    /// Returns a bucket at `until_us`, at which it no longer counts.
    pub(super) fn after(&self, holds: &Holds, begun: &Begun, until_us: i64) -> Bucket {
        let returned_micro = holds.returned_micro(begun.included_until_us, until_us);
        begun.after(&self.of_rates, returned_micro, until_us)
    }

    /// Appends its bytes: when it began and when it ends in Unix microseconds, and what it withholds in micro-tokens or -1, all
    /// signed 64-bit little-endian; a byte, 1 if it began with a full bucket; capacity and rate as written, with a blank
    /// between and a zero behind them.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.began_at_us.to_le_bytes());
        bytes.extend(self.ends_at_us.to_le_bytes());
        bytes.extend(self.withheld_micro.unwrap_or(NOT_WRITTEN).to_le_bytes());
        bytes.push(if self.fills { FILLS } else { 0 });
        bytes.extend(&*self.text);
        bytes.push(0);
    }

    /// Reads the first override of `bytes`, and returns the rest too; `None` if a field is out of bounds.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (began_at_us, rest) = bytes.split_first_chunk::<8>()?;
        let (ends_at_us, rest) = rest.split_first_chunk::<8>()?;
        let (withheld_micro, rest) = rest.split_first_chunk::<8>()?;
        let (fills, rest) = rest.split_first().filter(|(fills, _)| **fills <= FILLS)?;
        let mut parts = rest.splitn(2, |byte| *byte == 0);
        let (text, rest) = (parts.next()?, parts.next()?);
        let mut text = text.splitn(2, |byte| *byte == b' ');
        let times_us = (i64::from_le_bytes(*began_at_us), i64::from_le_bytes(*ends_at_us));
        let parsed = Self::parse(text.next()?, text.next()?, *fills == FILLS, times_us)?;
        let withheld_micro = match i64::from_le_bytes(*withheld_micro) {
            NOT_WRITTEN => None,
            micro => Some(micro).filter(|micro| (0..=MAX_MICRO).contains(micro)).map(Some)?,
        };
        Some((Self { withheld_micro, ..parsed }, rest))
    }

    /// Returns whether a call wrote the bucket under it.
    pub(super) fn is_written(&self) -> bool {
        self.withheld_micro.is_some()
    }

    /// Returns its bytes of memory, without the allocator's overhead.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>().saturating_add(self.text.len())
    }
}
