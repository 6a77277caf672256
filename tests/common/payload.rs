//! What `DUMP` makes of a bucket, taken apart and put together again with anything in it.

use super::strategies::{damaged, near_bounds};
use super::{Connection, Random};
use crc::{Crc, CRC_64_REDIS};
use proptest::prelude::{any, Just};

/// A template: the type's name and encoding version, then what the module writes, then the version of the server's
/// format and a checksum.
pub struct Payload {
    head: Vec<u8>,
    content: Vec<u8>,
    format_version: Vec<u8>,
}

/// A byte that says "a module's value", and one that says that 8 bytes with its name and encoding version follow.
const HEAD_LEN: usize = 10;
const FORMAT_VERSION_LEN: usize = 2;
const CHECKSUM_LEN: usize = 8;

/// The encoding version that the module writes.
pub const ENCODING: u8 = 1;

impl Payload {
    /// Of a bucket that is stored under `key`.
    pub fn of(client: &mut Connection, key: &str) -> Self {
        let bytes = client.dump(key);
        let (body, sum) = bytes.split_at(bytes.len() - CHECKSUM_LEN);
        assert_eq!(sum, checksum(body));
        let (head, rest) = body.split_at(HEAD_LEN);
        let (content, version) = rest.split_at(rest.len() - FORMAT_VERSION_LEN);
        Self { head: head.to_vec(), content: content.to_vec(), format_version: version.to_vec() }
    }

    /// The value as a snapshot holds it behind the key: without the byte that says of what kind it is.
    pub fn value(&self, encoding: u8, content: &[u8]) -> Vec<u8> {
        // The lowest ten bits of the name are the version.
        [&self.head[1..HEAD_LEN - 1], &[encoding], content].concat()
    }

    /// What `RESTORE` takes, with a checksum that is right whatever the rest.
    pub fn with(&self, encoding: u8, content: &[u8]) -> Vec<u8> {
        let body = [&self.head[..1], &self.value(encoding, content), &self.format_version].concat();
        [body.as_slice(), &checksum(&body)].concat()
    }

    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// What the module wrote, or numbers at the edge of what it may, damaged up to three times.
    pub fn spoiled_content(&self, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.content.clone();
        if random.once_in(3) {
            bytes = content(random.draw(&near_bounds()), random.draw(&near_bounds()));
        }
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                bytes = random.draw(&damaged(Just(bytes), any::<u8>()));
            }
        }
        bytes
    }
}

/// What the module writes of a bucket: each integer behind the mark of one, and the mark of the end.
pub fn content(level_micro: i64, refilled_at_us: i64) -> Vec<u8> {
    const INTEGER_OF_EIGHT_BYTES: [u8; 2] = [2, 0x81];
    const END: u8 = 0;
    let integer = |integer: i64| [INTEGER_OF_EIGHT_BYTES.as_slice(), &integer.to_be_bytes()].concat();
    [integer(level_micro), integer(refilled_at_us), vec![END]].concat()
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    Crc::<u64>::new(&CRC_64_REDIS).checksum(bytes).to_le_bytes()
}
