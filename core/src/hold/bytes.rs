//! Holds as bytes, in files and effects.

use super::extension::Extension;
use super::item::Hold;
use super::limit_override::Override;
use super::MAX_HOLDS;

/// Bytes of an encoded hold in front of its id: end, amount, length of the id.
const HEADER: usize = 17;

/// Stands in front of an override, where the end of another hold would be.
const OVERRIDE: [u8; 8] = i64::MIN.to_le_bytes();

impl Hold {
    /// Appends the bytes of a hold: its end in Unix microseconds and its amount in micro-tokens, both signed 64-bit
    /// little-endian, the length of its id in one byte, and its id.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.ends_at_us.to_le_bytes());
        bytes.extend(self.amount_micro.to_le_bytes());
        bytes.push(u8::try_from(self.id.len()).unwrap_or(u8::MAX));
        bytes.extend(&*self.id);
    }

    /// Reads the first hold of `bytes`, and returns the rest too. The inner hold is `None` if a field is out of bounds; all is
    /// `None` if the bytes are too few.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Option<Self>, &[u8])> {
        let (end, rest) = bytes.split_first_chunk::<8>()?;
        let (amount, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first()?;
        let (id, rest) = rest.split_at_checked(usize::from(*len))?;
        let hold = Self::checked(id, i64::from_le_bytes(*amount), i64::from_le_bytes(*end));
        Some((hold, rest))
    }
}

impl Extension {
    /// Returns the bytes of all holds, one after the other, and those of an override behind a mark.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { holds, limit_override } = self;
        let len = holds.len().saturating_mul(HEADER).saturating_add(holds.id_bytes);
        let mut bytes = Vec::with_capacity(len);
        holds.iter().for_each(|hold| hold.encode(&mut bytes));
        debug_assert_eq!(bytes.len(), len, "the lengths of ids are counted as holds come and go");
        if let Some(limit_override) = limit_override {
            bytes.extend(OVERRIDE);
            limit_override.encode(&mut bytes);
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote: the valid holds, and whether they are all. It leaves out holds that are not
    /// sorted by end and id, because sorting them could take quadratic time, and holds beyond [`MAX_HOLDS`].
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> (Self, bool) {
        let mut read = Self::default();
        let mut is_whole = true;
        while !bytes.is_empty() {
            if let Some((stored, [])) = bytes.strip_prefix(&OVERRIDE).and_then(Override::decode) {
                read.limit_override = Some(Box::new(stored));
                break;
            }
            let holds = &mut read.holds;
            if holds.len() >= MAX_HOLDS as usize {
                return (read, false);
            }
            let Some((hold, rest)) = Hold::decode(bytes) else {
                return (read, false);
            };
            bytes = rest;
            let is_last = |hold: &Hold| holds.last().is_none_or(|last| last.is_before(hold));
            match hold.filter(|hold| is_last(hold) && holds.get(&hold.id).is_none()) {
                Some(hold) => holds.set(hold),
                None => is_whole = false,
            }
        }
        (read, is_whole)
    }
}
