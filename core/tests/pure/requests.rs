//! argv as clients send it: what each command reads from it, which error the first wrong argument is, and that no
//! bytes at all do worse than be refused.

use super::model::operation::assert_read_as_meant;
use proptest::prelude::*;
use proptest::sample::{select, Index};
use std::collections::HashSet;
use std::sync::Arc;
use tokenbucket_core::bucket::{Bucket, MAX_TIME_US};
use tokenbucket_core::effect::{Effect, HoldChange, HoldChanges};
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::expiry::MAX_EXPIRE_AT_MS;
use tokenbucket_core::hold::{Hold, MAX_HOLDS, MAX_ID_LEN};
use tokenbucket_core::number::MAX_MICRO;
use tokenbucket_core::request::{self, Request, Waiting, Wanted, MAX_TURN_WAIT_MS};

/// What a command on holds reads: of each bucket the key, the capacity, the name, and what is wanted.
fn read_holds(line: &str) -> Result<String, Refusal> {
    let (command, arguments) = line.split_once(' ').unwrap();
    let arguments: Vec<&[u8]> = arguments.split(' ').map(str::as_bytes).collect();
    let requests = match command {
        "HOLD" => vec![request::hold(&arguments)?],
        "SETTLE" => vec![request::settle(&arguments)?],
        "MHOLD" => request::multi_hold(&arguments)?,
        _ => request::multi_settle(&arguments)?,
    };
    Ok(shown(&requests))
}

fn shown(requests: &[Request<&[u8]>]) -> String {
    let shown = requests.iter().map(|request| {
        let id = request.id().map(|id| id.escape_ascii().to_string()).unwrap_or_default();
        let kind = if request.limit.is_pool() { "pool" } else { "bucket" };
        let wanted = match request.wanted {
            Wanted::Hold { amount_micro, ttl_ms, .. } => format!("{id}, {amount_micro} for {ttl_ms}"),
            Wanted::Settle { used_micro, .. } => format!("{id}, {used_micro} used"),
            Wanted::Tokens(operation) => format!("{operation:?}"),
        };
        format!("{kind} {} of {}: {wanted}", request.key.escape_ascii(), request.limit.capacity_micro())
    });
    shown.collect::<Vec<_>>().join("; ")
}

/// What a command that waits reads: how long, and what the one without the B does.
fn read_waiting(line: &str) -> Result<(String, i64, Option<(String, i64)>), Refusal> {
    let (command, arguments) = line.split_once(' ').unwrap();
    let arguments: Vec<&[u8]> = arguments.split(' ').map(str::as_bytes).collect();
    let Waiting { requests, max_wait_ms, share } = match command {
        "BTAKE" => request::blocking_take(&arguments)?,
        "BMTAKE" => request::blocking_multi_take(&arguments)?,
        "BHOLD" => request::blocking_hold(&arguments)?,
        _ => request::blocking_multi_hold(&arguments)?,
    };
    let share = share.map(|share| (share.tenant.escape_ascii().to_string(), share.weight_micro));
    Ok((shown(&requests), max_wait_ms, share))
}

#[test]
fn commands_that_wait_read_their_arguments() {
    for (line, read, max_wait_ms) in [
        ("BTAKE k 10 1/m 2.5 0", "bucket k of 10000000: Take { cost_micro: 2500000 }", 0),
        ("BTAKE k 10 1 0 2592000000", "bucket k of 10000000: Take { cost_micro: 0 }", MAX_TURN_WAIT_MS),
        (
            "BMTAKE 2 7 k 1 1 2 l 0 1 1",
            "bucket k of 1000000: Take { cost_micro: 2000000 }; bucket l of 0: Take { cost_micro: 1000000 }",
            7,
        ),
        ("BHOLD k 10 0 2 60000 id 1e3", "pool k of 10000000: id, 2000000 for 60000", 1000),
        (
            "BMHOLD 2 60000 id 7 k 1 1 2 l 0 0 1",
            "bucket k of 1000000: id, 2000000 for 60000; pool l of 0: id, 1000000 for 60000",
            7,
        ),
    ] {
        assert_eq!(read_waiting(line), Ok((read.to_owned(), max_wait_ms, None)), "{line}");
    }
    for (line, tenant, weight_micro) in [
        ("BTAKE k 10 1 1 0 SHARE a", "a", 1_000_000),
        ("BTAKE k 10 1 1 0 share weight Weight 0.001", "weight", 1000),
        ("BHOLD k 10 0 1 1 id 0 Share a WEIGHT 1e3", "a", 1_000_000_000),
        ("BHOLD k 10 0 1 1 id 0 SHARE a WEIGHT 0.3333333", "a", 333_333),
    ] {
        let share = read_waiting(line).unwrap().2;
        assert_eq!(share, Some((tenant.to_owned(), weight_micro)), "{line}");
    }
    let long = format!("BTAKE k 10 1 1 0 SHARE {}", "a".repeat(129));
    assert_eq!(read_waiting(&long).map_err(|refusal| refusal.error), Err(Error::Tenant));
    #[rustfmt::skip]
    let wrong = [
        ("BTAKE k 10 1 1 0 SHARE", Error::WrongArity), ("BTAKE k 10 1 1 0 SHARE a WEIGHT", Error::WrongArity),
        ("BTAKE k 10 1 1 0 SHARE a WEIGHT 1 x", Error::WrongArity), ("BTAKE k 10 1 1 0 SHARED a", Error::ShareOption),
        ("BTAKE k 10 1 1 0 SHARE a WEIGH 1", Error::ShareOption), ("BTAKE k 10 1 1 0 SHARE ", Error::Tenant),
        ("BTAKE k 10 1 1 0 SHARE a WEIGHT 0.0009", Error::Weight), ("BHOLD k 1 0 1 1 id 0 SHARE a WEIGHT 1000.1", Error::Weight),
        ("BTAKE k 10 1 1 x SHARE ", Error::MaxTurnWait), ("BMTAKE 1 7 k 1 1 1 SHARE a", Error::ShareOfSeveral),
        ("BMHOLD 1 1 id 7 k 1 1 1 share a", Error::ShareOfSeveral), ("BMTAKE 1 7 k 1 1 1 SHARED a", Error::NumKeysMismatch),
        ("BTAKE k 10 1 7", Error::WrongArity), ("BTAKE k 10 1 1 7 7", Error::WrongArity), ("BTAKE k x 1 1 x", Error::Capacity),
        ("BTAKE k 10 1 1 -1", Error::MaxTurnWait), ("BTAKE k 10 1 1 0.5", Error::MaxTurnWait),
        ("BTAKE k 10 1 1 2592000001", Error::MaxTurnWait), ("BTAKE k 10 0 1 7", Error::RateOfPool),
        ("BMTAKE 1", Error::WrongArity), ("BMTAKE 0 x", Error::MaxTurnWait), ("BMTAKE 0 7", Error::NumKeys),
        ("BMTAKE 2 7 k 10 1 1", Error::NumKeysMismatch), ("BMTAKE 1 7 k 10 1", Error::NumKeysMismatch),
        ("BMTAKE 1 7 k 10 1 x", Error::Cost), ("BMTAKE 2 7 k 1 1 1 k 1 1 1", Error::DuplicateKey),
        ("BHOLD k 10 1 1 60000 id", Error::WrongArity), ("BHOLD k 10 1 1 0 id x", Error::Ttl),
        ("BHOLD k 10 1 1 1 id x", Error::MaxTurnWait), ("BMHOLD 1 1 id", Error::WrongArity),
        ("BMHOLD 0 0 id x", Error::Ttl), ("BMHOLD 0 1  x", Error::Id), ("BMHOLD 0 1 id x", Error::MaxTurnWait),
        ("BMHOLD 0 1 id 7", Error::NumKeys), ("BMHOLD 2 1 id 7 k 1 1 1", Error::NumKeysMismatch),
        ("BMHOLD 1 1 id 7 k 1 1 x", Error::Amount), ("BMHOLD 2 1 id 7 k 1 1 1 k 1 1 1", Error::DuplicateKey),
    ];
    for (line, error) in wrong {
        assert_eq!(read_waiting(line).map_err(|refusal| refusal.error), Err(error), "{line}");
    }
}

#[test]
fn commands_on_holds_read_their_arguments() {
    for (line, read) in [
        ("HOLD k 10 1/m 2.5 60000 id", "bucket k of 10000000: id, 2500000 for 60000"),
        ("HOLD k 1 0 0.0000001 1e0 id", "pool k of 1000000: id, 1 for 1"),
        ("HOLD k 1 1 0 2592000000 id", "bucket k of 1000000: id, 0 for 2592000000"),
        ("SETTLE k 10 1 id 0.0000001", "bucket k of 10000000: id, 1 used"),
        ("SETTLE k 10 0 id 0", "pool k of 10000000: id, 0 used"),
        (
            "MHOLD 2 7 id k 1 1 2 l 0 0 1",
            "bucket k of 1000000: id, 2000000 for 7; pool l of 0: id, 1000000 for 7",
        ),
        (
            "MSETTLE 2 id k 1 1 2 l 2 0 0",
            "bucket k of 1000000: id, 2000000 used; pool l of 2000000: id, 0 used",
        ),
    ] {
        assert_eq!(read_holds(line).as_deref(), Ok(read), "{line}");
    }
    #[rustfmt::skip]
    let wrong = [
        ("HOLD k 10 1 1 1", Error::WrongArity), ("HOLD k x x x 0 id", Error::Capacity), ("HOLD k 1 x x 0 id", Error::Rate),
        ("HOLD k 1 1 x 0 id", Error::Amount), ("HOLD k 1 1 1 0 id", Error::Ttl), ("HOLD k 1 1 1 0.5 id", Error::Ttl),
        ("HOLD k 1 1 1 2592000001 id", Error::Ttl), ("SETTLE k 1 1 id", Error::WrongArity),
        ("SETTLE k 1 x id x", Error::Rate), ("SETTLE k 1 1 id x", Error::Used), ("SETTLE k 1 0 id 1", Error::UsedOfPool),
        ("MHOLD 1 7", Error::WrongArity), ("MHOLD 1 0 id k x 1 1", Error::Ttl), ("MHOLD 0 7 id", Error::NumKeys),
        ("MHOLD 2 7 id k 1 1 1", Error::NumKeysMismatch), ("MHOLD 1 7 id k 1 1 x", Error::Amount),
        ("MHOLD 2 7 id k 1 1 1 k 1 1 1", Error::DuplicateKey), ("MSETTLE 1", Error::WrongArity),
        ("MSETTLE 2 id k 1 1 1", Error::NumKeysMismatch), ("MSETTLE 1 id k 1 0 1", Error::UsedOfPool),
    ];
    for (line, error) in wrong {
        assert_eq!(read_holds(line).map_err(|refusal| refusal.error), Err(error), "{line}");
    }
    for (length, is_one) in [(0, false), (1, true), (MAX_ID_LEN, true), (MAX_ID_LEN + 1, false)] {
        let id = vec![0; length];
        let read = request::hold(&[b"k".as_slice(), b"1", b"1", b"1", b"1", &id])
            .map(|request| request.id().unwrap().len());
        assert_eq!(read, if is_one { Ok(length) } else { Err(Error::Id) });
    }
}

/// What may stand in any place of a call: numbers and rates, right and wrong.
const WORDS: &str =
    "0|1|10|2.5|1e3|1e12|0.0000001|0.0000019|+7|1.9999999|3155760000000|15|30|60|7.0|999999999999|\
    |x|-1|1e13|1000000000001|3155760001|3155760001000|inf|1 |0x1|1e|１|-2|0.5|b|c|2|02|+1|1.|1.0|\
    5|0.25|100/m|10/10s|1/250ms|1/36525d|317|7@d|0/s|1/|1/w|1/36526d|nan";

/// A few calls of all commands that decide, some at the bounds, and some with a number of keys that the server would not
/// find: it looks for them, for its ACL and for cluster routing, behind plain digits only.
const CALLS: &str = "TAKE a 10 5|TAKE a 1e3 100/m 2.5|PEEK a 10 1|PEEK a 10 0 1|TAKEUPTO a 10 7@d 7|\
    RESERVE a 10 1/36525d 1 60|CHARGE a 2.5 1e12 317|GIVE a 10 1/250ms 1|GIVE  0 0 0|MTAKE 1 a 10 5 1|\
    MTAKE 01 a 10 5 1|MTAKE +1 a 10 5 1|MTAKE 1.0 a 10 5 1|MTAKE 1e0 a 10 5 1|MTAKE 1025 a 10 5 1|\
    MTAKE 2 a 10 5 1 b 1 100/m 0|MTAKE 4 a 10 5 1 b 1 100/m 0 c 30 10/10s 1.5  1e3 7@d 7|\
    THROTTLE a 15 30 60|THROTTLE a -1 1e3 3155760000 0|THROTTLE a 7.0 30 60 1|\
    TAKEUPTO a 10 1 1e12|TAKEUPTO a 10 1 1|TAKEUPTO a 10 1 0|\
    RESERVE a 10 1 1 3155760000000|RESERVE a 10 1 1 3155760000001";

#[test]
fn calls_are_read_for_what_they_are() {
    for call in CALLS.split('|') {
        let (command, arguments) = call.split_once(' ').unwrap();
        assert_read_as_meant(command, &arguments.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    }
    assert_eq!((request::key(&["k"]), request::key(&["k", "l"])), (Ok(&"k"), Err(Error::WrongArity)));
}

/// Calls of which up to three words are others; now and then one is left out or put in.
fn calls() -> impl Strategy<Value = (&'static str, Vec<Vec<u8>>)> {
    let word = prop_oneof![
        9 => select(WORDS.split('|').collect::<Vec<_>>()).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    let changes = prop::collection::vec((any::<Index>(), word, 0..20u8), 0..=3);
    (select(CALLS.split('|').collect::<Vec<_>>()), changes).prop_map(|(call, changes)| {
        let (command, arguments) = call.split_once(' ').unwrap();
        let mut arguments: Vec<_> = arguments.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        for (index, word, how) in changes {
            let place = index.index(arguments.len());
            match how {
                0 => drop(arguments.remove(place)),
                1 => arguments.insert(place, word),
                _ => arguments[place] = word,
            }
        }
        (command, arguments)
    })
}

fn hold_changes() -> impl Strategy<Value = HoldChange> {
    let ids = || prop::collection::vec(any::<u8>(), 1..=MAX_ID_LEN).prop_map(Arc::from);
    let set = (ids(), 1..=MAX_MICRO, 0..=MAX_TIME_US)
        .prop_map(|(id, amount_micro, ends_at_us)| HoldChange::Set(Hold { id, amount_micro, ends_at_us }));
    prop_oneof![set, ids().prop_map(HoldChange::Removed)]
}

/// The hold that a change sets.
fn set(change: &HoldChange) -> Option<&Hold> {
    match change {
        HoldChange::Set(hold) => Some(hold),
        HoldChange::Removed(_) => None,
    }
}

fn sent(effect: &Effect) -> Vec<u8> {
    effect.encode().as_ref().to_vec()
}

/// An effect with any three numbers in it, as somebody might send who is no master of ours.
fn forged(level_micro: i64, refilled_at_us: i64, expire_at_ms: i64) -> Vec<u8> {
    let fields = [level_micro, refilled_at_us, expire_at_ms].map(i64::to_le_bytes);
    std::iter::once(1).chain(fields.into_iter().flatten()).collect()
}

/// Numbers around every bound that a field has.
fn fields() -> impl Strategy<Value = i64> {
    let edges = [i64::MIN, -MAX_MICRO, 0, MAX_EXPIRE_AT_MS, MAX_MICRO, MAX_TIME_US, i64::MAX];
    prop_oneof![
        3 => (select(edges.to_vec()), -2..=2i64).prop_map(|(edge, off_by)| edge.saturating_add(off_by)),
        1 => any::<i64>(),
    ]
}

proptest! {
    #![proptest_config(super::config(64))]

    #[test]
    fn a_call_is_read_for_what_it_is((command, arguments) in calls()) {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        assert_read_as_meant(command, &arguments);
    }

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
        prop_assert_eq!(request::restore(&pairs).err(), expected);
    }

    /// And what is shorter, longer, of another version, or has a field that no bucket has, is none.
    #[test]
    fn an_effect_is_read_back_as_it_was_sent(
        (level_micro, refilled_at_us, expires_at) in (fields(), fields(), fields()),
        holds in prop::option::of((any::<u32>(), prop::collection::vec(hold_changes(), 0..4), 0..=MAX_HOLDS)),
        version in any::<u8>(),
    ) {
        let mut bytes = forged(level_micro, refilled_at_us, expires_at);
        let bucket = Bucket { level_micro, refilled_at_us };
        let expire_at_ms = (expires_at >= 0).then_some(expires_at);
        let can_be = (-MAX_MICRO..=MAX_MICRO).contains(&level_micro)
            && (0..=MAX_TIME_US).contains(&refilled_at_us)
            && (-1..=MAX_EXPIRE_AT_MS).contains(&expires_at);
        let stored = can_be.then_some(Effect::Stored { bucket, expire_at_ms, holds: None });
        prop_assert_eq!(Effect::decode(&bytes), stored.clone());
        let Some(mut effect) = stored else { return Ok(()) };
        prop_assert_eq!(&sent(&effect), &bytes);
        let has_holds = holds.is_some();
        if let Some((dropped, changes, len)) = holds {
            let is_in_order = changes.iter().filter_map(set).is_sorted_by(|hold, next| hold.is_before(next));
            effect = Effect::Stored { bucket, expire_at_ms, holds: Some(HoldChanges { dropped, changes, len }) };
            bytes = sent(&effect);
            if !is_in_order {
                // Applying it could take very long.
                prop_assert_eq!(Effect::decode(&bytes), None);
                return Ok(());
            }
        }
        let arguments = [b"k".as_slice(), &bytes];
        prop_assert_eq!(request::restore(&arguments).unwrap(), [(&arguments[0], effect)]);
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

#[test]
fn what_no_hold_can_be_is_in_no_effect() {
    let changed = |changes: &[HoldChange]| {
        let bucket = Bucket { level_micro: 5_000_000, refilled_at_us: 0 };
        let holds = HoldChanges { dropped: 0, changes: changes.to_vec(), len: 1 };
        Effect::Stored { bucket, expire_at_ms: None, holds: Some(holds) }
    };
    let set = |id: &[u8], amount_micro, ends_at_us| {
        HoldChange::Set(Hold { id: id.into(), amount_micro, ends_at_us })
    };
    let removed = |id: &[u8]| HoldChange::Removed(id.into());
    for possible in [
        vec![],
        vec![set(b"z", 1, 0), set(b"a", 1, 1), set(b"b", 1, 1)],
        vec![removed(b"z"), set(b"b", 1, 2), removed(b"a"), removed(b"a")],
    ] {
        let effect = changed(&possible);
        assert_eq!(Effect::decode(&sent(&effect)), Some(effect));
    }
    for impossible in [
        vec![set(b"a", 0, 1)],
        vec![set(b"", 1, 1)],
        vec![removed(b"")],
        // Not in order, or twice.
        vec![set(b"a", 1, 1), set(b"z", 1, 0)],
        vec![set(b"b", 1, 1), removed(b"z"), set(b"a", 1, 1)],
        vec![set(b"a", 1, 1), set(b"a", 2, 1)],
    ] {
        assert_eq!(Effect::decode(&sent(&changed(&impossible))), None, "{impossible:?}");
    }
    let unknown = [sent(&changed(&[set(b"a", 1, 1)])), vec![3, 1, b'z']].concat();
    assert_eq!(Effect::decode(&unknown), None);
}

/// Of so many that a bucket may have, and of one more.
#[test]
fn an_effect_has_at_most_as_many_holds_as_a_bucket() {
    let set =
        |end: u32| HoldChange::Set(Hold { id: (*b"id").into(), amount_micro: 1, ends_at_us: end.into() });
    for (changes, len, is_one) in [
        (MAX_HOLDS, MAX_HOLDS, true),
        (MAX_HOLDS + 1, MAX_HOLDS, false),
        (1, MAX_HOLDS + 1, false),
        (1, u32::MAX, false),
    ] {
        let bucket = Bucket { level_micro: 5_000_000, refilled_at_us: 0 };
        let holds = HoldChanges { dropped: 0, changes: (0..changes).map(set).collect(), len };
        let effect = Effect::Stored { bucket, expire_at_ms: None, holds: Some(holds) };
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
    let effect = Effect::Stored { bucket, expire_at_ms: Some(0x0b_0c0d), holds: None };
    assert_eq!(sent(&effect), bytes);
    let unlimited = Effect::Stored { bucket, expire_at_ms: None, holds: None };
    assert_eq!(sent(&unlimited)[17..], [0xff; 8]);
    assert_eq!((sent(&Effect::Cleared), Effect::decode(&[1])), (vec![1], Some(Effect::Cleared)));
    let hold = Hold { id: (*b"id").into(), amount_micro: 3, ends_at_us: 4 };
    let changes = vec![HoldChange::Removed((*b"gone").into()), HoldChange::Set(hold)];
    let holds = HoldChanges { dropped: 5, changes, len: 6 };
    let changed = Effect::Stored { bucket, expire_at_ms: Some(0x0b_0c0d), holds: Some(holds) };
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
