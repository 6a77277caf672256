//! What a bucket may have beside its level: holds, and an override of its limit.

use super::limit_override::Override;
use super::list::Holds;
use crate::bucket::{Bucket, Counting, Expiring, Limit, NoHolds, NOTHING_INCLUDED};
use crate::expiry::MAX_EXPIRE_AT_MS;
use crate::number::MAX_MICRO;
use crate::rate::Rate;
use std::mem::size_of;

/// A year and a month: boundaries of a calendar are at most a year apart, and months differ in length.
const LONGEST_PERIOD_MS: i64 = 397 * 86_400_000;

/// A bucket whose override is replaced.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    /// The bucket as the override leaves it.
    pub bucket: Bucket,
    /// The number of ended holds that its level includes: the first in order.
    pub dropped: usize,
}

/// The holds of a bucket, and an override of its limit. There is at least one of them where it is stored.
#[derive(Clone, Default)]
pub struct Extension {
    /// The holds.
    pub holds: Holds,
    /// The override, even if it has ended.
    pub limit_override: Option<Box<Override>>,
}

/// That of a bucket that has nothing beside its level.
pub static NO_EXTENSION: Extension = Extension { holds: Holds::NONE, limit_override: None };

impl Extension {
    /// Returns whether there are no holds, and no override.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.limit_override.is_none()
    }

    /// Returns its bytes of memory, without the allocator's overhead.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let text = self.limit_override.as_deref().map_or(0, Override::bytes);
        [self.holds.bytes(), text].into_iter().fold(size_of::<Self>(), usize::saturating_add)
    }

    /// Returns whether an override is stored, even if it has ended.
    #[inline]
    #[must_use]
    pub fn is_overridden(&self) -> bool {
        self.limit_override.is_some()
    }

    /// Returns the override that counts at `now_us`.
    #[must_use]
    pub fn override_at(&self, now_us: i64) -> Option<&Override> {
        self.limit_override.as_deref().filter(|limit_override| limit_override.ends_at_us > now_us)
    }

    /// Returns the limit that counts at `now_us` for calls that bring `own`.
    #[inline]
    pub(crate) fn limit_at<'limit>(&'limit self, own: &'limit Limit, now_us: i64) -> &'limit Limit {
        self.override_at(now_us).map_or(own, |stored| stored.limit_for(own))
    }

    /// Returns what counts of a pool.
    #[inline]
    fn counting_pool<'limit>(&self, limit: &'limit Limit, now_us: i64) -> Counting<'limit> {
        let level_micro = self.holds.free_micro(limit.capacity_micro(), now_us);
        let free = Bucket { level_micro, refilled_at_us: now_us };
        Counting { limit, bucket: Some(free), included_until_us: now_us }
    }

    /// Returns what counts while an override is stored.
    #[cold]
    fn counting_overridden<'limit>(
        &'limit self,
        own: &'limit Limit,
        stored: Option<Bucket>,
        now_us: i64,
    ) -> Counting<'limit> {
        let limit = self.limit_at(own, now_us);
        if limit.is_pool() {
            return self.counting_pool(limit, now_us);
        }
        let (bucket, included_until_us) = self.settled(own, stored, now_us);
        Counting { limit, bucket, included_until_us }
    }

    /// Returns the bucket under the limit that counts at `now_us` for calls that bring `own`, and until when its level includes
    /// ended holds.
    fn settled(&self, own: &Limit, stored: Option<Bucket>, now_us: i64) -> (Option<Bucket>, i64) {
        let limit_override = self.limit_override.as_deref().filter(|stored| !stored.is_suspension());
        let (Some(limit_override), Some(bucket)) = (limit_override, stored) else {
            return (stored, NOTHING_INCLUDED);
        };
        let begun = limit_override.begun(&self.holds, own, bucket, now_us);
        if limit_override.ends_at_us > now_us {
            return (Some(begun.bucket), begun.included_until_us);
        }
        let end_us = limit_override.ends_at_us;
        (Some(limit_override.after(&self.holds, &begun, end_us)), end_us)
    }

    /// Returns what an override withholds of a bucket that a call with the limit `own` writes, if that is not recorded yet.
    /// Nothing is withheld of a pool.
    #[must_use]
    pub fn withholds_micro(&self, own: &Limit, stored: Option<Bucket>, now_us: i64) -> Option<i64> {
        let limit_override = self.override_at(now_us).filter(|stored| !stored.is_suspension())?;
        let withheld_micro = match own.is_pool() {
            true => 0,
            false => limit_override.begun(&self.holds, own, stored?, now_us).withheld_micro,
        };
        (limit_override.withheld_micro != Some(withheld_micro)).then_some(withheld_micro)
    }

    /// Records what the override withholds.
    pub fn withhold(&mut self, micro: i64) {
        self.limit_override.iter_mut().for_each(|stored| stored.withheld_micro = Some(micro));
    }

    /// Returns what is stored as an override leaves it that another replaces at `now_us`. One under which no call wrote counts as
    /// though it had not been.
    #[must_use]
    pub fn replaced(&self, stored: Option<Bucket>, now_us: i64) -> Replaced {
        let as_stored = Replaced { bucket: stored.unwrap_or_else(|| Bucket::full(now_us)), dropped: 0 };
        let written = self.limit_override.as_deref().filter(|old| old.is_written());
        let (Some(old), Some(bucket)) = (written, stored) else { return as_stored };
        let until_us = old.ends_at_us.min(now_us);
        let begun = old.begun(&self.holds, &old.of_rates, bucket, now_us);
        Replaced { bucket: old.after(&self.holds, &begun, until_us), dropped: self.holds.ended(until_us) }
    }

    /// Begins an override in place of one that leaves `bucket`. Returns what is stored from now on.
    pub fn begin_override(&mut self, mut new: Box<Override>, mut bucket: Bucket, now_us: i64) -> Bucket {
        // The bucket counts by the override that is replaced, so the limit of the calls is not needed.
        let continues = self.override_at(now_us).is_some_and(Override::is_written);
        if continues && !new.is_suspension() {
            let withheld_micro = bucket.level_micro.saturating_sub(new.capacity_micro()).max(0);
            let level_micro = if new.fills { MAX_MICRO } else { bucket.level_micro };
            bucket.level_micro = level_micro.min(new.capacity_micro());
            new.withheld_micro = Some(withheld_micro);
        }
        self.limit_override = Some(new);
        bucket
    }

    /// Ends the override now. Its record stays until a call writes.
    pub fn end_override(&mut self, now_us: i64) {
        self.limit_override.iter_mut().for_each(|stored| stored.ends_at_us = stored.ends_at_us.min(now_us));
    }

    /// Returns whether `bucket` is full by every limit once the override has ended.
    #[must_use]
    pub fn is_full_after_override(&self, bucket: Bucket, now_us: i64) -> bool {
        let leaves_full = |stored: &Override| !stored.fills && !stored.is_written();
        let is_full = bucket.level_micro == MAX_MICRO && self.holds.outstanding(now_us) == 0;
        is_full && self.limit_override.as_deref().is_none_or(leaves_full)
    }

    /// Returns when the key of a bucket expires at the earliest that is overridden until `until_us` and expires at
    /// `expires_at_ms`, in Unix milliseconds. Only calls bring the limit by which it fills afterwards: then it lives for as long
    /// as it has left to live now, and the longest period of a calendar.
    #[must_use]
    pub fn overridden_until_ms(
        &self,
        new: &Override,
        bucket: Bucket,
        expires_at_ms: i64,
        now_us: i64,
    ) -> i64 {
        let ends_at_ms = new.ends_at_us.saturating_add(999) / 1000;
        let left_ms = match self.stopped_until_us(now_us) {
            _ if new.is_suspension() || self.is_full_after_override(bucket, now_us) => 0,
            // It was counted then.
            Some(end_us) => expires_at_ms.saturating_sub(end_us / 1000),
            None => expires_at_ms.saturating_sub(now_us / 1000).saturating_add(LONGEST_PERIOD_MS),
        };
        ends_at_ms.saturating_add(left_ms).max(expires_at_ms).min(MAX_EXPIRE_AT_MS)
    }

    /// Returns until when nothing may flow into the bucket by the limit of the calls: the end of an override that counts at
    /// `now_us` and does not suspend.
    fn stopped_until_us(&self, now_us: i64) -> Option<i64> {
        self.override_at(now_us).filter(|stored| !stored.is_suspension()).map(|stored| stored.ends_at_us)
    }

    /// Returns when `bucket`, written by a call with the limit `own`, is full at the latest after an override that counts at
    /// `now_us`, also if another override moves its end; the smallest number without one.
    #[must_use]
    pub fn full_after_override_us(&self, own: &Limit, bucket: Bucket, now_us: i64) -> i64 {
        let Some(end_us) = self.stopped_until_us(now_us).filter(|_| !own.is_pool()) else { return i64::MIN };
        let at_end = Bucket { refilled_at_us: end_us, ..bucket };
        let wait_us = own.wait_us(Some(at_end), own.capacity_micro(), end_us);
        // The next boundary of a calendar may be as far from another end.
        end_us.saturating_add(wait_us).saturating_add(own.rate().longest_period_us())
    }
}

impl Expiring for &Extension {
    #[inline]
    fn returned_micro(self, since_us: i64, now_us: i64) -> i64 {
        self.holds.returned_micro(since_us, now_us)
    }

    #[inline]
    fn last_end_us(self) -> i64 {
        let of_override = self.limit_override.as_ref().map_or(i64::MIN, |stored| stored.ends_at_us);
        self.holds.last_end_us().max(of_override)
    }

    #[inline(always)] // What counts stays in registers.
    fn counting<'limit>(self, own: &'limit Limit, stored: Option<Bucket>, now_us: i64) -> Counting<'limit>
    where
        Self: 'limit,
    {
        if self.is_overridden() {
            return self.counting_overridden(own, stored, now_us);
        }
        match own.is_pool() {
            true => self.counting_pool(own, now_us),
            false => NoHolds.counting(own, stored, now_us),
        }
    }

    #[inline]
    fn is_suspended(self, now_us: i64) -> bool {
        self.override_at(now_us).is_some_and(Override::is_suspension)
    }

    #[inline]
    fn limit_until_us(self, now_us: i64) -> i64 {
        self.override_at(now_us).map_or(i64::MAX, |limit_override| limit_override.ends_at_us)
    }

    #[inline]
    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, included_until_us: i64, level_micro: i64) -> i64 {
        self.holds.reaches_at_us(rate, bucket, included_until_us, level_micro)
    }
}
