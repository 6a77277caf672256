//! What replicas and the append-only file receive instead of the call: the key as it is after it.
//!
//! An effect is one short binary argument, because each argument of a replicated command costs the server more
//! than all the arithmetic of the decision. Integers are little-endian. A bucket without holds, 25 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version, 1 |
//! | 1..9 | level in micro-tokens, signed |
//! | 9..17 | time of the last refill, Unix microseconds |
//! | 17..25 | expiry of the key, Unix milliseconds; -1 for none |
//!
//! A bucket with holds, or without any for the first time, is too large to be sent whole with each write. So the effect
//! contains what has changed, behind the fields above:
//!
//! | bytes | field |
//! |---|---|
//! | 25..29 | how many holds were dropped because they had ended, unsigned: the first in the order of their ends and ids. Their amounts are in the level |
//! | 29..33 | how many holds there are after all changes, unsigned, at most [`MAX_HOLDS`] |
//! | 33.. | changes of holds, one after the other: a 1 and the hold, as [`Hold::encode`] writes it, or a 2, the length of an id in one byte, and the id of a hold that is gone. At most [`MAX_HOLDS`]. Holds are in the order of their ends and ids |
//!
//! A replica that evicts keys by itself may have lost the bucket and its holds. Then the number of holds does not
//! agree, and the replica forgets the bucket again, because an evicted bucket is a full one: with some of its holds
//! missing, their tokens would never come back. The first effect whose number agrees makes it right again.
//!
//! It may also still have a bucket that expired on the master: a server that reads a snapshot leaves expired keys out and
//! reports nothing. So where as many holds are set as there are after all changes, they are all, whatever else there was.
//!
//! The version alone says that the bucket is full and its key is gone. That is not left to the server's `DEL`, which
//! an operator may have renamed.

use crate::bucket::Bucket;
use crate::expiry::MAX_EXPIRE_AT_MS;
use crate::hold::{Hold, Holds, MAX_HOLDS, MAX_ID_LEN};
use std::ffi::CStr;
use std::sync::Arc;

/// The command that carries effects. It is in every append-only file, so it cannot change.
pub const COMMAND: &CStr = c"TB.RESTORE";

/// Bytes of the encoded effect of a bucket without holds.
const PLAIN_LEN: usize = 25;

const VERSION: u8 = 1;
const SET: u8 = 1;
const REMOVE: u8 = 2;
const NO_EXPIRY: i64 = -1;

/// What a write leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A bucket.
    Stored {
        /// What it holds.
        bucket: Bucket,
        /// When its key expires, in Unix milliseconds, if it does.
        expire_at_ms: Option<i64>,
        /// What became of its holds; `None` if it has none, and had none before.
        holds: Option<HoldChanges>,
    },
    /// No key: the bucket is full.
    Cleared,
}

/// What became of the holds of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldChanges {
    /// How many were dropped because they had ended: the first in order.
    pub dropped: u32,
    /// What has changed then, in order.
    pub changes: Vec<HoldChange>,
    /// How many there are after that.
    pub len: u32,
}

/// What became of one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldChange {
    /// There is this one.
    Set(Hold),
    /// There is none of this name.
    Removed(Arc<[u8]>),
}

impl HoldChanges {
    /// Returns the changes that make `holds` out of none.
    #[must_use]
    pub fn all(holds: &Holds) -> Self {
        let changes: Vec<_> = holds.iter().cloned().map(HoldChange::Set).collect();
        Self { dropped: 0, len: u32::try_from(changes.len()).unwrap_or(u32::MAX), changes }
    }

    /// Makes `holds` what they are after the changes, once the first were dropped. Returns whether none is missing.
    pub fn apply(self, holds: &mut Holds) -> bool {
        if self.are_complete() && self.named_in(holds) < holds.len() {
            holds.drop_first(holds.len());
        }
        self.changes.into_iter().for_each(|change| change.apply(holds));
        holds.len() == self.len as usize
    }

    /// Returns whether every hold that there is afterwards is set by one of them.
    fn are_complete(&self) -> bool {
        let is_set = |change: &&HoldChange| matches!(change, HoldChange::Set(_));
        self.changes.iter().filter(is_set).count() == self.len as usize
    }

    /// Returns how many of `holds` they name.
    fn named_in(&self, holds: &Holds) -> usize {
        let ids = self.changes.iter().map(|(HoldChange::Set(Hold { id, .. }) | HoldChange::Removed(id))| id);
        ids.filter(|id| holds.get(id).is_some()).count()
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.dropped.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        for change in &self.changes {
            match change {
                HoldChange::Set(hold) => {
                    bytes.push(SET);
                    hold.encode(bytes);
                }
                HoldChange::Removed(id) => {
                    bytes.extend([REMOVE, u8::try_from(id.len()).unwrap_or(u8::MAX)]);
                    bytes.extend(&**id);
                }
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (dropped, rest) = bytes.split_first_chunk::<4>()?;
        let (len, mut rest) = rest.split_first_chunk::<4>()?;
        let mut changes = Vec::new();
        while let Some((change, behind)) = HoldChange::decode(rest)? {
            if changes.len() >= MAX_HOLDS as usize {
                return None;
            }
            changes.push(change);
            rest = behind;
        }
        let (dropped, len) = (u32::from_le_bytes(*dropped), u32::from_le_bytes(*len));
        (len <= MAX_HOLDS && are_in_order(&changes)).then_some(Self { dropped, changes, len })
    }
}

/// Returns whether the holds that are set are in the order in which a rewritten file has them. Sorting them could take
/// quadratic time.
fn are_in_order(changes: &[HoldChange]) -> bool {
    let set = changes.iter().filter_map(|change| match change {
        HoldChange::Set(hold) => Some(hold),
        HoldChange::Removed(_) => None,
    });
    set.is_sorted_by(|hold, next| hold.is_before(next))
}

impl HoldChange {
    /// Makes `holds` what they are after the change.
    pub fn apply(self, holds: &mut Holds) {
        match self {
            Self::Set(hold) => holds.set(hold),
            Self::Removed(id) => drop(holds.remove(&id)),
        }
    }

    /// Reads the change with which `bytes` begin, and what follows it: nothing at the end, `None` for what is none.
    #[allow(clippy::option_option)]
    fn decode(bytes: &[u8]) -> Option<Option<(Self, &[u8])>> {
        match bytes {
            [] => Some(None),
            [SET, hold @ ..] => {
                let (hold, rest) = Hold::decode(hold)?;
                Some(Some((Self::Set(hold?), rest)))
            }
            [REMOVE, len, rest @ ..] => {
                let (id, rest) = rest.split_at_checked(usize::from(*len))?;
                let is_one = (1..=MAX_ID_LEN).contains(&id.len());
                is_one.then(|| Some((Self::Removed(id.into()), rest)))
            }
            _ => None,
        }
    }
}

/// An effect as it is sent.
#[derive(Clone, Debug)]
pub enum Encoded {
    /// The bucket is full.
    Cleared([u8; 1]),
    /// A bucket without holds.
    Plain([u8; PLAIN_LEN]),
    /// A bucket with changed holds.
    WithHolds(Vec<u8>),
}

impl AsRef<[u8]> for Encoded {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Cleared(bytes) => bytes,
            Self::Plain(bytes) => bytes,
            Self::WithHolds(bytes) => bytes,
        }
    }
}

impl Effect {
    /// Returns the bytes to send.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        match self {
            Self::Cleared => Encoded::Cleared([VERSION]),
            Self::Stored { bucket, expire_at_ms, holds: None } => {
                Encoded::Plain(fields(*bucket, *expire_at_ms))
            }
            Self::Stored { bucket, expire_at_ms, holds: Some(holds) } => {
                let mut bytes = fields(*bucket, *expire_at_ms).to_vec();
                holds.encode(&mut bytes);
                Encoded::WithHolds(bytes)
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote, or `None` if any field is not one that a bucket can have.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = bytes.strip_prefix(&[VERSION])?;
        if fields.is_empty() {
            return Some(Self::Cleared);
        }
        let (level, fields) = fields.split_first_chunk::<8>()?;
        let (refilled_at, fields) = fields.split_first_chunk::<8>()?;
        let (expire_at, rest) = fields.split_first_chunk::<8>()?;
        let bucket = Bucket::checked(i64::from_le_bytes(*level), i64::from_le_bytes(*refilled_at))?;
        let expire_at_ms = match i64::from_le_bytes(*expire_at) {
            NO_EXPIRY => None,
            at @ 0..=MAX_EXPIRE_AT_MS => Some(at),
            _ => return None,
        };
        let holds = if rest.is_empty() { None } else { Some(HoldChanges::decode(rest)?) };
        Some(Self::Stored { bucket, expire_at_ms, holds })
    }
}

/// Returns the version and the fields that every effect on a bucket begins with.
fn fields(bucket: Bucket, expire_at_ms: Option<i64>) -> [u8; PLAIN_LEN] {
    let mut bytes = [VERSION; PLAIN_LEN];
    let (_, fields) = bytes.split_at_mut(1);
    let values = [bucket.level_micro, bucket.refilled_at_us, expire_at_ms.unwrap_or(NO_EXPIRY)];
    for (field, value) in fields.chunks_exact_mut(8).zip(values) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
