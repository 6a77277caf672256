//! argv as clients send it: what each command reads from it, which error the first wrong argument is, and that no
//! bytes at all do worse than be refused.

mod exact;
#[path = "model/settings.rs"]
mod settings;

use exact::operation::{assert_read_as_meant, parse, COMMANDS};
use exact::throttle;
use proptest::prelude::*;
use proptest::sample::{select, Index};
use std::collections::HashSet;
use tokenbucket::bucket::{Bucket, Operation, MAX_TIME_US};
use tokenbucket::effect::{Effect, HoldChange, HoldChanges, MAX_EXPIRE_AT_MS};
use tokenbucket::error::Error;
use tokenbucket::holds::{Hold, MAX_ID_LEN};
use tokenbucket::number::{MAX_MICRO, MICRO_PER_TOKEN};
use tokenbucket::request::{self, HoldWish};

/// `TAKE key 10 100/m` as a command and its arguments.
fn words(line: &str) -> (&str, Vec<&[u8]>) {
    let (command, arguments) = line.split_once(' ').unwrap_or((line, ""));
    (command, arguments.split(' ').filter(|word| !word.is_empty()).map(str::as_bytes).collect())
}

#[test]
fn each_command_reads_its_arguments() {
    let reserve = |max_wait_ms| Operation::Reserve { cost_micro: 3_000_000, max_wait_ms };
    for (line, operation) in [
        ("TAKE k 10 100/m", Operation::Take { cost_micro: 1_000_000 }),
        ("TAKE k 10 100/m 2.5", Operation::Take { cost_micro: 2_500_000 }),
        ("TAKE k 10 100/m 0", Operation::Take { cost_micro: 0 }),
        ("TAKE k 10 100/m 0.0000001", Operation::Take { cost_micro: 1 }),
        ("TAKEUPTO k 10 100/m 7", Operation::TakeUpTo { max_tokens: 7 }),
        ("TAKEUPTO k 10 100/m 1e12", Operation::TakeUpTo { max_tokens: 1_000_000_000_000 }),
        ("RESERVE k 10 100/m 3 0", reserve(0)),
        ("RESERVE k 10 100/m 3 3155760000000", reserve(3_155_760_000_000)),
        ("CHARGE k 10 100/m 0.0000001", Operation::Charge { amount_micro: 1 }),
        ("GIVE k 10 100/m 0.0000019", Operation::Give { amount_micro: 1 }),
    ] {
        let (command, arguments) = words(line);
        let read = parse(command, &arguments).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(read.len(), 1);
        assert_eq!((*read[0].key, read[0].operation), (b"k".as_slice(), operation), "{line}");
        assert_read_as_meant(command, &arguments);
    }
    let (_, arguments) = words("PEEK k 10 0 2");
    let read = request::peek(&arguments).unwrap();
    assert!(read.limit.is_pool() && read.operation == Operation::Take { cost_micro: 2_000_000 });
    let (command, arguments) = words("MTAKE 2 k 10 100/m 1 l 0 1 0");
    let keys: Vec<&[u8]> = parse(command, &arguments).unwrap().iter().map(|request| *request.key).collect();
    assert_eq!(keys, [b"k", b"l"]);
}

/// What a command on holds reads: of each bucket the key, the capacity, the name, and what is wanted.
fn read_holds(line: &str) -> Result<String, Error> {
    let (command, arguments) = words(line);
    let requests = match command {
        "HOLD" => vec![request::hold(&arguments)?],
        "SETTLE" => vec![request::settle(&arguments)?],
        "MHOLD" => request::multi_hold(&arguments)?,
        _ => request::multi_settle(&arguments)?,
    };
    let shown = requests.iter().map(|request| {
        let [key, id] = [*request.key, *request.id].map(|bytes| bytes.escape_ascii().to_string());
        let kind = if request.limit.is_pool() { "pool" } else { "bucket" };
        let wish = match request.wish {
            HoldWish::Set { amount_micro, ttl_ms } => format!("{amount_micro} for {ttl_ms}"),
            HoldWish::Settle { used_micro } => format!("{used_micro} used"),
        };
        format!("{kind} {key} of {}: {id}, {wish}", request.limit.capacity_micro())
    });
    Ok(shown.collect::<Vec<_>>().join("; "))
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
        ("MHOLD 2 7 id k 1 1 1", Error::NumKeysOfAmounts), ("MHOLD 1 7 id k 1 1 x", Error::Amount),
        ("MHOLD 2 7 id k 1 1 1 k 1 1 1", Error::DuplicateKey), ("MSETTLE 1", Error::WrongArity),
        ("MSETTLE 2 id k 1 1 1", Error::NumKeysOfUsed), ("MSETTLE 1 id k 1 0 1", Error::UsedOfPool),
    ];
    for (line, error) in wrong {
        assert_eq!(read_holds(line), Err(error), "{line}");
    }
    for (length, is_one) in [(0, false), (1, true), (MAX_ID_LEN, true), (MAX_ID_LEN + 1, false)] {
        let id = vec![0; length];
        let read =
            request::hold(&[b"k".as_slice(), b"1", b"1", b"1", b"1", &id]).map(|request| request.id.len());
        assert_eq!(read, if is_one { Ok(length) } else { Err(Error::Id) });
    }
}

#[test]
fn the_first_wrong_argument_is_the_error() {
    #[rustfmt::skip]
    let examples = [
        ("TAKE k 10", Error::WrongArity), ("TAKE k 10 1 1 1", Error::WrongArity),
        ("TAKE k x y z", Error::Capacity), ("TAKE k 10 y z", Error::Rate),
        ("TAKE k 10 1e13 z", Error::RateOutOfRange), ("TAKE k 10 1/36525d z", Error::RefillTooSlow),
        ("TAKE k 10 1 z", Error::Cost), ("TAKE k 10 1 -1", Error::Cost), ("TAKE k 10 1 1e13", Error::Cost),
        ("TAKE k -1 1 1", Error::Capacity), ("TAKE k 10 0 1", Error::RateOfPool), ("GIVE k 10 0/s 1", Error::Rate),
        ("TAKEUPTO k 10 1", Error::WrongArity), ("TAKEUPTO k 10 1 0", Error::Max),
        ("TAKEUPTO k 10 1 0.5", Error::Max), ("TAKEUPTO k 10 1 1000000000001", Error::Max),
        ("TAKEUPTO k 10 y z", Error::Rate), ("RESERVE k 10 1 1", Error::WrongArity),
        ("RESERVE k 10 1 1 1 1", Error::WrongArity), ("RESERVE k 10 1 x y", Error::Cost),
        ("RESERVE k 10 1 1 y", Error::MaxWait), ("RESERVE k 10 1 1 0.5", Error::MaxWait),
        ("RESERVE k 10 1 1 3155760000001", Error::MaxWait), ("CHARGE k 10 1", Error::WrongArity),
        ("CHARGE k 10 1 x", Error::Amount), ("CHARGE k 10 y x", Error::Rate),
        ("GIVE k 10 1 1 1", Error::WrongArity), ("GIVE k 10 1 x", Error::Amount),
        ("GIVE k x 1 x", Error::Capacity), ("MTAKE", Error::WrongArity),
        ("MTAKE 1", Error::NumKeysMismatch), ("MTAKE 0", Error::NumKeys),
        ("MTAKE 2 k 10 1 1", Error::NumKeysMismatch), ("MTAKE 1 k 10 1", Error::NumKeysMismatch),
        ("MTAKE 1 k 10 1 1 l", Error::NumKeysMismatch),
        ("MTAKE 1 k 10 1 1 l 10 1 1", Error::NumKeysMismatch), ("MTAKE 2 k 10 1 x k 10 1 y", Error::Cost),
        ("MTAKE 2 k 10 1 1 k x 1 y", Error::Capacity), ("MTAKE 2 k 10 1 1 k 10 1 1", Error::DuplicateKey),
    ];
    for (line, error) in examples {
        let (command, arguments) = words(line);
        assert_eq!(parse(command, &arguments).err(), Some(error), "{line}");
        assert_read_as_meant(command, &arguments);
    }
}

#[test]
fn an_error_is_shown_in_the_words_that_are_sent() {
    let words = "ERR max must be a whole number of tokens from 1 to 1e12";
    assert_eq!((Error::Max.to_string().as_str(), Error::Max.text().to_bytes()), (words, words.as_bytes()));
}

/// The server finds the keys by this argument, for its ACL and for cluster routing, and reads plain digits only. What
/// the two read differently would be a key that nobody checked.
#[test]
fn numkeys_is_read_in_plain_digits_only() {
    for numkeys in ["1", "2", "9", "10", "1000", "1024"] {
        assert_eq!(request::buckets(numkeys.as_bytes()), numkeys.parse().ok(), "{numkeys}");
    }
    let refused = "0,00,01,-1,+1, 1,1 ,1.0,1.,1e0,1e1,0x1,1025,10000,999999999999,9223372036854775807,\
        18446744073709551617,100000000000000000000000000000001,one,1\n,１,";
    for numkeys in refused.split(',') {
        assert_eq!(request::buckets(numkeys.as_bytes()), None, "{numkeys:?}");
        let group: [&[u8]; 5] = [numkeys.as_bytes(), b"k", b"10", b"1", b"1"];
        assert_eq!(request::multi_take(&group).err(), Some(Error::NumKeys), "{numkeys:?}");
    }
}

/// Mostly right words, and now and then a wrong one.
fn mostly(right: &'static str, wrong: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let one_of = |words: &'static str| select(words.split('|').collect::<Vec<_>>());
    prop_oneof![9 => one_of(right), 1 => one_of(wrong)].prop_map(|word| word.as_bytes().to_vec())
}

fn numbers() -> impl Strategy<Value = Vec<u8>> {
    mostly("0|1|10|2.5|1e3|1e12|0.0000001|+7|1.9999999", "|x|-1|1e13|inf|1 |0x1|1e|１")
}

fn rates() -> impl Strategy<Value = Vec<u8>> {
    mostly("5|0.25|100/m|10/10s|1/250ms|1e12|1/36525d|317", "|0|1/|1/w|1e13|1/36526d|-1|nan")
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => "[ab]{0,2}".prop_map(String::into_bytes), 1 => prop::collection::vec(any::<u8>(), 0..4)]
}

/// `key capacity rate cost`.
fn group() -> impl Strategy<Value = Vec<Vec<u8>>> {
    (keys(), numbers(), rates(), numbers())
        .prop_map(|(key, capacity, rate, cost)| vec![key, capacity, rate, cost])
}

/// The arguments of a call: mostly of the right number, mostly right.
fn calls() -> impl Strategy<Value = (&'static str, Vec<Vec<u8>>)> {
    let one = (select(COMMANDS[..5].to_vec()), group(), numbers(), any::<bool>());
    let one = one.prop_map(|(command, mut arguments, last, with_last)| {
        match command {
            "RESERVE" => arguments.push(last),
            "TAKEUPTO" if with_last => arguments.push(last),
            "TAKE" if with_last => drop(arguments.pop()),
            _ => {}
        }
        (command, arguments)
    });
    let several = (prop::collection::vec(group(), 1..5), prop::option::weighted(0.2, numbers()));
    let several = several.prop_map(|(groups, numkeys)| {
        let numkeys = numkeys.unwrap_or_else(|| groups.len().to_string().into_bytes());
        ("MTAKE", std::iter::once(numkeys).chain(groups.into_iter().flatten()).collect::<Vec<_>>())
    });
    let damage = prop::option::weighted(0.1, (any::<Index>(), any::<bool>()));
    (prop_oneof![one, several], damage).prop_map(|((command, mut arguments), damage)| {
        match damage {
            Some((index, true)) => drop(arguments.remove(index.index(arguments.len()))),
            Some((index, false)) => arguments.insert(index.index(arguments.len()), b"1".to_vec()),
            None => {}
        }
        (command, arguments)
    })
}

fn effects() -> impl Strategy<Value = Effect> {
    let level_micro = prop_oneof![-MAX_MICRO..=MAX_MICRO, select(vec![-MAX_MICRO, -1, 0, 1, MAX_MICRO])];
    let refilled_at_us = || prop_oneof![0..=MAX_TIME_US, select(vec![0, 1, MAX_TIME_US])];
    let expiries = prop_oneof![0..=MAX_EXPIRE_AT_MS, select(vec![0, 1, MAX_EXPIRE_AT_MS])];
    let holds = (refilled_at_us(), prop::collection::vec(hold_changes(), 0..4))
        .prop_map(|(until_us, changes)| HoldChanges { until_us, changes });
    let fields = (level_micro, refilled_at_us(), prop::option::of(expiries));
    let written = (fields, prop::option::weighted(0.3, holds)).prop_map(|(fields, holds)| {
        let (level_micro, refilled_at_us, expire_at_ms) = fields;
        let bucket = Bucket { level_micro, refilled_at_us };
        match holds {
            Some(holds) => Effect::Changed { bucket, expire_at_ms, holds },
            None => Effect::Stored { bucket, expire_at_ms },
        }
    });
    prop_oneof![9 => written, 1 => Just(Effect::Cleared)]
}

fn hold_changes() -> impl Strategy<Value = HoldChange> {
    let ids = || prop::collection::vec(any::<u8>(), 1..=MAX_ID_LEN).prop_map(Vec::into_boxed_slice);
    let set = (ids(), 1..=MAX_MICRO, 0..=MAX_TIME_US)
        .prop_map(|(id, amount_micro, ends_at_us)| HoldChange::Set(Hold { id, amount_micro, ends_at_us }));
    prop_oneof![set, ids().prop_map(HoldChange::Removed)]
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
    #![proptest_config(settings::cases("proptest-regressions/requests.txt", 16))]

    #[test]
    fn a_call_is_read_for_what_it_is((command, arguments) in calls()) {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        assert_read_as_meant(command, &arguments);
    }

    #[test]
    fn a_throttle_is_read_for_what_it_is(
        mut arguments in prop::collection::vec(
            prop_oneof![
                6 => select(vec!["1", "15", "30", "60", "1e3", "7.0", "999999999999"]),
                1 => select(vec!["-1", "0", "1e12", "1000000000001", "3155760000", "3155760001", "0.5", "", "x", "-2"]),
            ],
            3..=4,
        ),
        damage in prop::option::weighted(0.1, 0..6usize),
    ) {
        arguments.insert(0, "user");
        if let Some(length) = damage {
            arguments.resize(length, "1");
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let read = request::throttle(&arguments);
        match (read, throttle::read(&arguments)) {
            (Ok(read), Ok((limit, quantity))) => {
                prop_assert_eq!(*read.key, b"user");
                prop_assert_eq!(exact::whole(read.limit.capacity_micro()), limit.capacity.clone());
                prop_assert_eq!(read.cost_micro, quantity * MICRO_PER_TOKEN);
                let empty = Bucket { level_micro: 0, refilled_at_us: 0 };
                let refilled_in_us = read.limit.wait_us(Some(empty), limit.capacity_micro(), 0);
                prop_assert_eq!(refilled_in_us, limit.refill_us());
            }
            (read, meant) => prop_assert_eq!(read.err(), meant.err()),
        }
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
        let different: HashSet<&Vec<u8>> = keys.iter().collect();
        let expected = (different.len() < keys.len()).then_some(Error::DuplicateKey);
        let numkeys = keys.len().to_string();
        let groups = keys.iter().flat_map(|key| [key.as_slice(), b"10", b"100/m", b"1"]);
        let arguments: Vec<&[u8]> = std::iter::once(numkeys.as_bytes()).chain(groups).collect();
        prop_assert_eq!(request::multi_take(&arguments).err(), expected);
        let effect = forged(0, 0, -1);
        let pairs: Vec<&[u8]> = keys.iter().flat_map(|key| [key.as_slice(), effect.as_slice()]).collect();
        prop_assert_eq!(request::restore(&pairs).err(), expected);
    }

    /// And what is shorter, longer or of another version is none.
    #[test]
    fn an_effect_is_read_back_as_it_was_sent(effect in effects(), version in any::<u8>()) {
        const WITH_HOLDS: u8 = 2;
        let mut bytes = sent(&effect);
        prop_assert_eq!(Effect::decode(&bytes), Some(effect.clone()));
        let arguments: [&[u8]; 2] = [b"k", &bytes];
        let restored = request::restore(&arguments).unwrap();
        prop_assert_eq!(restored.len(), 1);
        prop_assert_eq!((*restored[0].0, restored[0].1.clone()), (b"k".as_slice(), effect));
        for length in (0..bytes.len()).filter(|length| *length != 1) {
            // What ends behind one of several changes of holds is an effect too, and nothing else is.
            let read = Effect::decode(&bytes[..length]).map(|effect| sent(&effect));
            prop_assert!(read.is_none_or(|read| bytes[0] == WITH_HOLDS && read == bytes[..length]));
        }
        prop_assert_eq!(Effect::decode(&[bytes.as_slice(), &[0]].concat()), None);
        let was = std::mem::replace(&mut bytes[0], version);
        prop_assert_eq!(Effect::decode(&bytes).is_some(), version == was);
    }

    #[test]
    fn an_effect_with_a_field_that_no_bucket_has_is_refused(level in fields(), refilled_at in fields(), expire_at in fields()) {
        let bytes = forged(level, refilled_at, expire_at);
        let decoded = Effect::decode(&bytes);
        let can_be = (-MAX_MICRO..=MAX_MICRO).contains(&level)
            && (0..=MAX_TIME_US).contains(&refilled_at)
            && (-1..=MAX_EXPIRE_AT_MS).contains(&expire_at);
        prop_assert_eq!(decoded.is_some(), can_be);
        if let Some(effect) = decoded {
            prop_assert_eq!(sent(&effect), bytes);
        }
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
    let effect = Effect::Stored { bucket, expire_at_ms: Some(0x0b_0c0d) };
    assert_eq!(sent(&effect), bytes);
    let unlimited = Effect::Stored { bucket, expire_at_ms: None };
    assert_eq!(sent(&unlimited)[17..], [0xff; 8]);
    assert_eq!(sent(&Effect::Cleared), [1]);
}
