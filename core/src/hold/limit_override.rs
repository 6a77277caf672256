//! An operator's limit on one bucket, in place of those that come with calls.

use crate::bucket::{Limit, MAX_TIME_US};
use crate::request::limit_or_pool;

/// A limit that counts for every call on a bucket until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit.
    pub limit: Limit,
    /// The capacity and the rate as they were written, with a blank between them.
    text: Box<[u8]>,
    /// When it ends, in Unix microseconds: 0 to [`MAX_TIME_US`].
    pub ends_at_us: i64,
}

impl Override {
    /// Reads the limit; `None` if it is none, or if a number is out of bounds.
    #[must_use]
    pub fn parse(capacity: &[u8], rate: &[u8], ends_at_us: i64) -> Option<Self> {
        let limit = limit_or_pool(&capacity, &rate).ok()?;
        let text = [capacity, rate].join(&b' ').into();
        (0..=MAX_TIME_US).contains(&ends_at_us).then_some(Self { limit, text, ends_at_us })
    }

    /// Returns the capacity and the rate as they were written.
    pub fn written(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split(|byte| *byte == b' ')
    }

    /// Ends it at `at_us`, unless it ends before.
    pub(crate) fn end_by(&mut self, at_us: i64) {
        self.ends_at_us = self.ends_at_us.min(at_us);
    }

    /// Appends its bytes: its end in Unix microseconds, signed 64-bit little-endian, and capacity and rate as written, with a
    /// blank between and a zero behind them.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.ends_at_us.to_le_bytes());
        bytes.extend(&*self.text);
        bytes.push(0);
    }

    /// Reads the first override of `bytes`, and returns the rest too; `None` if a field is out of bounds.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (ends_at_us, rest) = bytes.split_first_chunk::<8>()?;
        let mut parts = rest.splitn(2, |byte| *byte == 0);
        let (text, rest) = (parts.next()?, parts.next()?);
        let mut text = text.splitn(2, |byte| *byte == b' ');
        let parsed = Self::parse(text.next()?, text.next()?, i64::from_le_bytes(*ends_at_us))?;
        Some((parsed, rest))
    }

    /// Returns its bytes of memory, without the allocator's overhead.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>().saturating_add(self.text.len())
    }
}
