//! The result of a write, which replicas and the append-only file receive instead of the call.
//!
//! An effect is one short binary argument, because each argument of a replicated command costs the server more
//! than the arithmetic of the decision. Integers are little-endian. A bucket without holds, 25 bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version, 1 |
//! | 1..9 | level in micro-tokens, signed |
//! | 9..17 | time of the last refill, Unix microseconds |
//! | 17..25 | expiry of the key, Unix milliseconds; -1 for none |
//!
//! A bucket with holds is too large to be sent whole with each write. So the effect of a write to one, even of the write that
//! ends its last hold, contains the changes, behind the fields above:
//!
//! | bytes | field |
//! |---|---|
//! | 25..29 | number of holds dropped because they had ended, unsigned: the first in the order of their ends and ids. Their amounts are in the level |
//! | 29..33 | number of holds after all changes, unsigned, at most [`MAX_HOLDS`] |
//! | 33.. | changes of holds: a 1 and the hold, as [`Hold::encode`] writes it, or a 2, the length of an id in one byte, and the id of a removed hold. Holds are in the order of their ends and ids. Or of an override of the limit: a 3 and its bytes, as `Override::encode` writes them, or a 4 where it was ended. At most [`MAX_HOLDS`], and one |
//!
//! A replica that evicts keys may have lost the bucket and its holds. Then the number of holds differs, and the replica
//! deletes the bucket again, because an evicted bucket is a full one: the tokens of missing holds would never come back.
//! The first effect with a matching number corrects it.
//!
//! A replica may still have a bucket that expired on the master: a server that reads a snapshot leaves expired keys out and
//! reports nothing. So if the changes set as many holds as there are after them, these replace all others.
//!
//! The version alone means that the bucket is full and has no key. The server's `DEL` could not say so, because an
//! operator may have renamed it.

use crate::bucket::Bucket;
use crate::error::{Error, Refusal};
use crate::expiry::MAX_EXPIRE_AT_MS;
use crate::hold::{ExtensionChange, ExtensionChanges, Hold, Override, MAX_HOLDS, MAX_ID_LEN};
use crate::request::reject_duplicates;
use std::ffi::CStr;

/// The command that carries effects. Append-only files contain it, so it cannot change.
pub const COMMAND: &CStr = c"TB.RESTORE";

/// Bytes of the encoded effect of a bucket without holds.
const PLAIN_LEN: usize = 25;

const VERSION: u8 = 1;
const SET: u8 = 1;
const REMOVE: u8 = 2;
const OVERRIDE: u8 = 3;
const END_OVERRIDE: u8 = 4;
const NO_EXPIRY: i64 = -1;

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A bucket.
    Stored {
        /// Its level and time.
        bucket: Bucket,
        /// When its key expires, in Unix milliseconds, if it does.
        expire_at_ms: Option<i64>,
        /// The changes of its extension; `None` if it has none and had none before.
        extension: Option<ExtensionChanges>,
    },
    /// No key: the bucket is full.
    Cleared,
}

impl ExtensionChanges {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.dropped.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        for change in &self.changes {
            match change {
                ExtensionChange::Set(hold) => {
                    bytes.push(SET);
                    hold.encode(bytes);
                }
                ExtensionChange::Removed(id) => {
                    bytes.extend([REMOVE, u8::try_from(id.len()).unwrap_or(u8::MAX)]);
                    bytes.extend(&**id);
                }
                ExtensionChange::Override(Some(limit_override)) => {
                    bytes.push(OVERRIDE);
                    limit_override.encode(bytes);
                }
                ExtensionChange::Override(None) => bytes.push(END_OVERRIDE),
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (dropped, rest) = bytes.split_first_chunk::<4>()?;
        let (len, mut rest) = rest.split_first_chunk::<4>()?;
        let mut changes = Vec::new();
        while !rest.is_empty() {
            if changes.len() > MAX_HOLDS as usize {
                return None;
            }
            let (change, behind) = ExtensionChange::decode(rest)?;
            changes.push(change);
            rest = behind;
        }
        let (dropped, len) = (u32::from_le_bytes(*dropped), u32::from_le_bytes(*len));
        (len <= MAX_HOLDS && are_in_order(&changes)).then_some(Self { dropped, changes, len })
    }
}

/// Returns whether the holds that are set are sorted, as in a rewritten file. Sorting them here could take quadratic time.
fn are_in_order(changes: &[ExtensionChange]) -> bool {
    let set = changes.iter().filter_map(|change| match change {
        ExtensionChange::Set(hold) => Some(hold),
        ExtensionChange::Removed(_) | ExtensionChange::Override(_) => None,
    });
    set.is_sorted_by(|hold, next| hold.is_before(next))
}

impl ExtensionChange {
    /// Reads the first change of `bytes`, and returns the rest too.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        match bytes {
            [SET, hold @ ..] => {
                let (hold, rest) = Hold::decode(hold)?;
                Some((Self::Set(hold?), rest))
            }
            [REMOVE, len, rest @ ..] => {
                let (id, rest) = rest.split_at_checked(usize::from(*len))?;
                let is_one = (1..=MAX_ID_LEN).contains(&id.len());
                is_one.then(|| (Self::Removed(id.into()), rest))
            }
            [OVERRIDE, rest @ ..] => {
                Override::decode(rest).map(|(stored, rest)| (Self::Override(Some(Box::new(stored))), rest))
            }
            [END_OVERRIDE, rest @ ..] => Some((Self::Override(None), rest)),
            _ => None,
        }
    }
}

/// The bytes of an effect.
#[derive(Clone, Debug)]
pub enum Encoded {
    /// The bucket is full.
    Cleared([u8; 1]),
    /// A bucket without holds.
    Plain([u8; PLAIN_LEN]),
    /// A bucket with a changed extension.
    Extended(Vec<u8>),
}

impl AsRef<[u8]> for Encoded {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Cleared(bytes) => bytes,
            Self::Plain(bytes) => bytes,
            Self::Extended(bytes) => bytes,
        }
    }
}

impl Effect {
    /// Returns the bytes to send.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        match self {
            Self::Cleared => Encoded::Cleared([VERSION]),
            Self::Stored { bucket, expire_at_ms, extension: None } => {
                Encoded::Plain(fields(*bucket, *expire_at_ms))
            }
            Self::Stored { bucket, expire_at_ms, extension: Some(changes) } => {
                let mut bytes = fields(*bucket, *expire_at_ms).to_vec();
                changes.encode(&mut bytes);
                Encoded::Extended(bytes)
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` if a field is out of bounds.
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
        let extension = if rest.is_empty() { None } else { Some(ExtensionChanges::decode(rest)?) };
        Some(Self::Stored { bucket, expire_at_ms, extension })
    }
}

/// Reads `key effect [key effect …]`, of `TB.RESTORE`.
///
/// # Errors
/// The one of the first argument that is wrong.
pub fn read_all<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Vec<(&A, Effect)>, Refusal> {
    if arguments.is_empty() || arguments.len() % 2 != 0 {
        return Err(Error::WrongArity.into());
    }
    let read = arguments.chunks_exact(2).enumerate().map(|(place, pair)| {
        let [key, effect] = pair else { return Err(Error::WrongArity.into()) };
        Ok((key, Effect::decode(effect.as_ref()).ok_or_else(|| Error::Effect.at(place))?))
    });
    let effects = read.collect::<Result<Vec<_>, Refusal>>()?;
    reject_duplicates(&effects.iter().map(|(key, _)| key.as_ref()).collect::<Vec<_>>())?;
    Ok(effects)
}

/// Returns the version and the fields of every effect on a bucket.
fn fields(bucket: Bucket, expire_at_ms: Option<i64>) -> [u8; PLAIN_LEN] {
    let mut bytes = [VERSION; PLAIN_LEN];
    let (_, fields) = bytes.split_at_mut(1);
    let values = [bucket.level_micro, bucket.refilled_at_us, expire_at_ms.unwrap_or(NO_EXPIRY)];
    for (field, value) in fields.chunks_exact_mut(8).zip(values) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
