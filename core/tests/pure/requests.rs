//! argv as clients send it: what each command reads from it, which error the first wrong argument is, and that no
//! bytes at all do worse than be refused.

use super::model::operation::{parse, Parsed};
use super::strategies::near_bounds;
use proptest::prelude::*;
use proptest::sample::{select, Index};
use std::collections::HashSet;
use std::sync::Arc;
use tokenbucket_core::bucket::{Bucket, MAX_TIME_US};
use tokenbucket_core::effect::{self, Effect};
use tokenbucket_core::error::Error;
use tokenbucket_core::expiry::MAX_EXPIRE_AT_MS;
use tokenbucket_core::hold::{
    Extension, ExtensionChange, ExtensionChanges, Hold, Override, MAX_HOLDS, MAX_ID_LEN,
};
use tokenbucket_core::number::MAX_MICRO;
use tokenbucket_core::request::{self, Wanted};

fn shown(Parsed { requests, max_wait_ms, share }: Parsed) -> String {
    let shown = requests.iter().map(|request| {
        let id = request.id().map(|id| id.escape_ascii().to_string()).unwrap_or_default();
        let kind = if request.limit.is_pool() { "pool" } else { "bucket" };
        let wanted = match request.wanted {
            Wanted::Hold { amount_micro, ttl_ms, .. } => format!("{id}, {amount_micro} for {ttl_ms}"),
            Wanted::Renew { ttl_ms, .. } => format!("{id} for {ttl_ms}"),
            Wanted::Settle { used_micro, .. } => format!("{id}, {used_micro} used"),
            Wanted::Tokens(operation) => format!("{operation:?}"),
            Wanted::Override { ttl_ms, .. } => format!("overrides for {ttl_ms}"),
        };
        format!("{kind} {} of {}: {wanted}", request.key.escape_ascii(), request.limit.capacity_micro())
    });
    let share = share.map(|share| format!("share {} {}", share.tenant.escape_ascii(), share.weight_micro));
    let waits = max_wait_ms.map(|ms| format!("waits {ms}"));
    shown.chain(waits).chain(share).collect::<Vec<_>>().join("; ")
}

/// Which argument of a wrong call is the error: `errors.txt`.
#[test]
fn commands_read_their_arguments() {
    for (call, expected) in include_str!("requests.txt").lines().map(|line| line.split_once(" => ").unwrap())
    {
        let (command, arguments) = call.split_once(' ').unwrap();
        let arguments: Vec<&[u8]> = arguments.split(' ').map(str::as_bytes).collect();
        assert_eq!(parse(&command[3..], &arguments).map(shown).as_deref(), Ok(expected), "{call}");
    }
    assert_eq!((request::key(&["k"]), request::key(&["k", "l"])), (Ok(&"k"), Err(Error::WrongArity)));
}

fn hold_changes() -> impl Strategy<Value = ExtensionChange> {
    let ids = || prop::collection::vec(any::<u8>(), 1..=MAX_ID_LEN).prop_map(Arc::from);
    let set = (ids(), 1..=MAX_MICRO, 0..=MAX_TIME_US).prop_map(|(id, amount_micro, ends_at_us)| {
        ExtensionChange::Set(Hold { id, amount_micro, ends_at_us })
    });
    let rates = select(vec!["0", "100/m", "1e3", "7@mo+05:30", "1/36525d"]);
    let overrides =
        prop::option::of(("[0-9]{1,4}", rates, any::<bool>(), [0..=MAX_TIME_US, 0..=MAX_TIME_US]));
    let overrides = (overrides, prop::option::of(0..=MAX_MICRO)).prop_map(|(written, withheld_micro)| {
        let parsed = |(capacity, rate, fills, [begin_us, end_us]): (String, &str, bool, [i64; 2])| {
            let parsed = Override::parse(capacity.as_bytes(), rate.as_bytes(), fills, (begin_us, end_us));
            let limit_override = parsed.map(Box::new);
            let mut extension = Extension { limit_override, ..Extension::default() };
            withheld_micro.into_iter().for_each(|micro| extension.withhold(micro));
            extension.limit_override
        };
        ExtensionChange::Override(written.and_then(parsed))
    });
    prop_oneof![set, ids().prop_map(ExtensionChange::Removed), overrides]
}

fn sent(effect: &Effect) -> Vec<u8> {
    effect.encode().as_ref().to_vec()
}

/// An effect with any three numbers in it, as somebody might send who is no master of ours.
fn forged(level_micro: i64, refilled_at_us: i64, expire_at_ms: i64) -> Vec<u8> {
    let fields = [level_micro, refilled_at_us, expire_at_ms].map(i64::to_le_bytes);
    std::iter::once(1).chain(fields.into_iter().flatten()).collect()
}

proptest! {
    #![proptest_config(super::config(64))]

    /// Few keys and many, alike and not, binary and empty: the same key is found wherever it stands.
    #[test]
    fn the_same_key_twice_is_an_error(
        mut keys in prop_oneof![
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 1..80),
            prop::collection::vec("[a-z]{0,3}:[0-9]{1,6}".prop_map(String::into_bytes), 1..80),
        ],
        copied in prop::option::of((any::<Index>(), any::<Index>())),
    ) {
        if let Some((from, to)) = copied {
            let copy = keys[from.index(keys.len())].clone();
            keys.insert(to.index(keys.len()), copy);
        }
        let mut seen = HashSet::new();
        let expected = keys.iter().position(|key| !seen.insert(key)).map(|place| Error::DuplicateKey.at(place));
        let numkeys = keys.len().to_string();
        let groups = keys.iter().flat_map(|key| [key.as_slice(), b"10", b"100/m", b"1"]);
        let arguments: Vec<&[u8]> = std::iter::once(numkeys.as_bytes()).chain(groups).collect();
        prop_assert_eq!(request::multi_take(&arguments).err(), expected);
        let effect = forged(0, 0, -1);
        let pairs: Vec<&[u8]> = keys.iter().flat_map(|key| [key.as_slice(), effect.as_slice()]).collect();
        prop_assert_eq!(effect::read_all(&pairs).err(), expected);
    }

    /// And what is shorter, longer, of another version, or has a field that no bucket has, is none.
    #[test]
    fn an_effect_is_read_back_as_it_was_sent(
        (level_micro, refilled_at_us, expires_at) in (near_bounds(), near_bounds(), near_bounds()),
        holds in prop::option::of((any::<u32>(), prop::collection::vec(hold_changes(), 0..4), 0..=MAX_HOLDS)),
        version in any::<u8>(),
    ) {
        let mut bytes = forged(level_micro, refilled_at_us, expires_at);
        let bucket = Bucket { level_micro, refilled_at_us };
        let expire_at_ms = (expires_at >= 0).then_some(expires_at);
        let can_be = (-MAX_MICRO..=MAX_MICRO).contains(&level_micro)
            && (0..=MAX_TIME_US).contains(&refilled_at_us)
            && (-1..=MAX_EXPIRE_AT_MS).contains(&expires_at);
        let stored = can_be.then_some(Effect::Stored { bucket, expire_at_ms, extension: None });
        prop_assert_eq!(Effect::decode(&bytes), stored.clone());
        let Some(mut effect) = stored else { return Ok(()) };
        prop_assert_eq!(&sent(&effect), &bytes);
        let has_holds = holds.is_some();
        if let Some((dropped, changes, len)) = holds {
            let set = changes.iter().filter_map(|change| match change {
                ExtensionChange::Set(hold) => Some(hold),
                ExtensionChange::Removed(_) | ExtensionChange::Override(_) => None,
            });
            let is_in_order = set.is_sorted_by(|hold, next| hold.is_before(next));
            effect = Effect::Stored { bucket, expire_at_ms, extension: Some(ExtensionChanges { dropped, changes, len }) };
            bytes = sent(&effect);
            if !is_in_order {
                // Applying it could take very long.
                prop_assert_eq!(Effect::decode(&bytes), None);
                return Ok(());
            }
        }
        let arguments = [b"k".as_slice(), &bytes];
        prop_assert_eq!(effect::read_all(&arguments).unwrap(), [(&arguments[0], effect)]);
        for length in (0..bytes.len()).filter(|length| *length != 1) {
            // What ends before changes of holds, or behind one of several, is an effect too, and nothing else is.
            let read = Effect::decode(&bytes[..length]).map(|effect| sent(&effect));
            prop_assert!(read.is_none_or(|read| has_holds && read == bytes[..length]));
        }
        prop_assert_eq!(Effect::decode(&[bytes.as_slice(), &[0]].concat()), None);
        let was = std::mem::replace(&mut bytes[0], version);
        prop_assert_eq!(Effect::decode(&bytes).is_some(), version == was);
    }
}

/// An effect that makes these changes to the holds of a bucket.
fn changed(changes: Vec<ExtensionChange>, len: u32) -> Effect {
    let bucket = Bucket { level_micro: 5_000_000, refilled_at_us: 0 };
    Effect::Stored {
        bucket,
        expire_at_ms: None,
        extension: Some(ExtensionChanges { dropped: 0, changes, len }),
    }
}

#[test]
fn what_no_hold_can_be_is_in_no_effect() {
    let set = |id: &[u8], amount_micro, ends_at_us| {
        ExtensionChange::Set(Hold { id: id.into(), amount_micro, ends_at_us })
    };
    for impossible in [
        vec![set(b"a", 0, 1)],
        vec![set(b"", 1, 1)],
        vec![ExtensionChange::Removed((*b"").into())],
        vec![set(b"a", 1, 1), set(b"a", 2, 1)],
    ] {
        assert_eq!(Effect::decode(&sent(&changed(impossible.clone(), 1))), None, "{impossible:?}");
    }
    let of_one = sent(&changed(vec![set(b"a", 1, 1)], 1));
    for unknown in [
        b"\x05\x01z".as_slice(),
        b"\x03\0\0\0\0\0\0\0\x0010\0",
        b"\x03\0\0\0\0\0\0\0\x0010 1",
        b"\x03\0\0\0\0\0\0\0\x0010 1 \0",
        b"\x03\0\0\0\0\0\0\0\xff10 1\0",
        b"\x03\0\0\0\0\0\0\0\x001e13 1\0",
    ] {
        assert_eq!(Effect::decode(&[&of_one, unknown].concat()), None, "{}", unknown.escape_ascii());
    }
    // As many as a bucket may have, with an override, and one more.
    for (changes, len, is_one) in [
        (MAX_HOLDS + 1, MAX_HOLDS, true),
        (MAX_HOLDS + 2, MAX_HOLDS, false),
        (1, MAX_HOLDS + 1, false),
        (1, u32::MAX, false),
    ] {
        let effect = changed((0..changes).map(|end| set(b"id", 1, end.into())).collect(), len);
        assert_eq!(Effect::decode(&sent(&effect)).is_some(), is_one, "{changes} changes, {len} holds");
    }
}

/// Replicas of another version read them, and files that are years old hold them.
#[test]
fn the_bytes_of_an_effect_do_not_change() {
    let bucket = Bucket { level_micro: -2, refilled_at_us: 0x0102_0304_0506 };
    let bytes = [
        1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 6, 5, 4, 3, 2, 1, 0, 0, 0x0d, 0x0c, 0x0b, 0, 0, 0,
        0, 0,
    ];
    let effect = Effect::Stored { bucket, expire_at_ms: Some(0x0b_0c0d), extension: None };
    assert_eq!(sent(&effect), bytes);
    let unlimited = Effect::Stored { bucket, expire_at_ms: None, extension: None };
    assert_eq!(sent(&unlimited)[17..], [0xff; 8]);
    assert_eq!((sent(&Effect::Cleared), Effect::decode(&[1])), (vec![1], Some(Effect::Cleared)));
    let hold = Hold { id: (*b"id").into(), amount_micro: 3, ends_at_us: 4 };
    let changes = vec![ExtensionChange::Removed((*b"gone").into()), ExtensionChange::Set(hold)];
    let holds = ExtensionChanges { dropped: 5, changes, len: 6 };
    let changed = Effect::Stored { bucket, expire_at_ms: Some(0x0b_0c0d), extension: Some(holds) };
    let behind = [
        [5, 0, 0, 0, 6, 0, 0, 0, 2, 4].as_slice(),
        b"gone",
        &[1, 4, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2],
        b"id",
    ];
    assert_eq!(sent(&changed), [bytes.as_slice(), &behind.concat()].concat());
    for effect in [effect, unlimited, changed] {
        assert_eq!(Effect::decode(&sent(&effect)), Some(effect));
    }
}
