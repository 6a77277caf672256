//! Names of buckets: unambiguous whatever keys and values contain, and with a hash tag.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Longer names are cut and hashed.
const MAX_BYTES: usize = 512;

/// The readable rest of a part that is cut.
const KEPT_BYTES: usize = 64;

/// Longer hash tags are cut and hashed too, in every name, so that equal ones stay equal.
const MAX_TAG_BYTES: usize = 256;

/// What separates parts of a name or bounds its hash tag.
const SEPARATORS: [char; 5] = ['%', '{', '}', '|', '='];

/// Appends a text with separators percent-encoded.
pub(super) fn encode(text: &str, name: &mut String) {
    for piece in text.split_inclusive(SEPARATORS) {
        let plain = piece.strip_suffix(SEPARATORS).unwrap_or(piece);
        name.push_str(plain);
        if let Some(separator) = piece.as_bytes().get(plain.len()) {
            let _ = write!(name, "%{separator:02X}");
        }
    }
}

/// `domain|{k1=v1}|k2=v2`; of no entries `{domain}`. `tagged` is the place of the entry in the hash tag.
pub(super) fn bucket<'a>(
    encoded_domain: &str,
    entries: impl ExactSizeIterator<Item = (&'a str, &'a str)> + Clone,
    tagged: usize,
    suffix: &str,
) -> String {
    // Two separators each, and two braces; more only if there is something to encode.
    let len = |(key, value): (&str, &str)| key.len().saturating_add(value.len()).saturating_add(2);
    let all: usize = entries.clone().map(len).fold(2, usize::saturating_add);
    let mut name =
        String::with_capacity(all.saturating_add(encoded_domain.len()).saturating_add(suffix.len()));
    let mut tag = 0..0;
    if entries.len() == 0 {
        name.push('{');
        name.push_str(encoded_domain);
        tag = 1..name.len();
        name.push('}');
    } else {
        name.push_str(encoded_domain);
    }
    for (place, (key, value)) in entries.enumerate() {
        name.push('|');
        if place == tagged {
            name.push('{');
        }
        let begin = name.len();
        encode(key, &mut name);
        name.push('=');
        encode(value, &mut name);
        if place == tagged {
            tag = begin..name.len();
            name.push('}');
        }
    }
    name.push_str(suffix);
    let tag = name.get(tag).unwrap_or_default();
    if name.len() <= MAX_BYTES && tag.len() <= MAX_TAG_BYTES {
        return name;
    }
    cut(&name, encoded_domain, tag)
}

/// Replaces a long name by one that ends in its hash. No other name has `~` behind its tag.
fn cut(name: &str, encoded_domain: &str, tag: &str) -> String {
    let mut cut = format!("{}|{{", beginning(encoded_domain));
    if tag.len() > MAX_TAG_BYTES {
        cut.push_str(beginning(tag));
        cut.push('~');
        hash(tag, &mut cut);
    } else {
        cut.push_str(tag);
    }
    cut.push_str("}~");
    hash(name, &mut cut);
    cut
}

fn beginning(text: &str) -> &str {
    let end = (0..=KEPT_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or(text)
}

/// Returns a hash that is short enough to be typed.
pub(super) fn short_hash(text: &str) -> String {
    let [a, b, c, d, e, f, ..]: [u8; 32] = Sha256::digest(text).into();
    const_hex::encode([a, b, c, d, e, f])
}

fn hash(text: &str, name: &mut String) {
    name.push_str(&const_hex::encode(Sha256::digest(text)));
}
