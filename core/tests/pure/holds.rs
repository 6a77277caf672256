//! The holds of one bucket beside a sorted list: their order, what they bring when, the room they take, and their bytes.
//! What becomes of a bucket that has holds is in `sequences.rs`.

use super::model::call::{ended, ends};
use super::model::judged::outstanding;
use super::model::{whole, Limit};
use super::strategies::damaged;
use num_traits::ToPrimitive;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokenbucket_core::bucket::{Bucket, Expiring, MAX_TIME_US};
use tokenbucket_core::hold::{Extension, ExtensionChange, ExtensionChanges, Hold, MAX_HOLDS, MAX_ID_LEN};
use tokenbucket_core::number::MAX_MICRO;
use tokenbucket_core::rate::Rate;

/// A hold whose name is as long and as much like the others as names in use are.
fn hold(number: u32, amount_micro: i64, ends_at_us: i64) -> Hold {
    let id = format!("request:{number}");
    Hold::checked(id.as_bytes(), amount_micro, ends_at_us).unwrap()
}

#[derive(Clone, Debug)]
enum Change {
    Set(Hold),
    Remove(Hold),
    DropEnded(i64),
    DropFirst(usize),
}

/// Many of them at the same moment.
fn moments() -> impl Strategy<Value = i64> {
    prop_oneof![0..20i64, 0..1000i64, Just(500), Just(MAX_TIME_US)]
}

/// Of so many holds, or of one alone.
fn changes(ids: u32, most: usize) -> impl Strategy<Value = Vec<Change>> {
    let change = |ids: u32| {
        let amounts = prop_oneof![Just(1), 1..1000i64, 1..MAX_MICRO, Just(MAX_MICRO)];
        let holds = (0..ids, amounts, moments()).prop_map(|(number, amount, end)| hold(number, amount, end));
        prop_oneof![
            8 => holds.prop_map(Change::Set),
            3 => (0..ids).prop_map(|number| Change::Remove(hold(number, 1, 0))),
            1 => moments().prop_map(Change::DropEnded),
            1 => prop_oneof![0..4usize, 0..200usize].prop_map(Change::DropFirst),
        ]
    };
    prop_oneof![
        1 => prop::collection::vec(change(1), 0..5),
        4 => prop::collection::vec(change(ids), 0..most),
    ]
}

/// What flows in, as the model and the module have it; one of them is nothing.
fn flows() -> impl Strategy<Value = (Limit, Rate)> {
    let rates = ["1", "1e6", "0.3", "1e12"];
    let flows = rates.map(|rate| (Limit::new("1", rate), Rate::parse(rate.as_bytes()).unwrap()));
    prop::sample::select(flows.into_iter().chain([(Limit::pool("1"), Rate::NOTHING)]).collect::<Vec<_>>())
}

/// In the order of their ends.
fn in_order(by_id: &BTreeMap<Arc<[u8]>, Hold>) -> Vec<Hold> {
    let mut list: Vec<_> = by_id.values().cloned().collect();
    list.sort_by_key(|hold| (hold.ends_at_us, hold.id.clone()));
    list
}

/// The holds that changes lead to, and the same in order.
fn build(changes: &[Change]) -> (Extension, Vec<Hold>) {
    let (mut extension, mut by_id) = (Extension::default(), BTreeMap::new());
    for change in changes {
        let known = by_id.len();
        match change {
            Change::Set(hold) => {
                ExtensionChange::Set(hold.clone()).apply(&mut extension);
                by_id.insert(hold.id.clone(), hold.clone());
            }
            Change::Remove(hold) => assert_eq!(extension.holds.remove(&hold.id), by_id.remove(&hold.id)),
            Change::DropEnded(until_us) => {
                by_id.retain(|_, hold| hold.ends_at_us > *until_us);
                assert_eq!(extension.holds.drop_ended(*until_us), known - by_id.len());
            }
            Change::DropFirst(count) => {
                in_order(&by_id).iter().take(*count).for_each(|hold| drop(by_id.remove(&hold.id)));
                extension.holds.drop_first(*count);
            }
        }
        assert_eq!(extension.holds.len(), by_id.len());
    }
    let list = in_order(&by_id);
    (extension, list)
}

fn assert_same(extension: &Extension, list: &[Hold]) {
    assert!(extension.holds.iter().eq(list));
    assert_eq!((extension.holds.len(), extension.is_empty()), (list.len(), list.is_empty()));
    assert_eq!(extension.last_end_us(), list.last().map_or(i64::MIN, |last| last.ends_at_us));
    // Many have an entry in a table beside them.
    let beside = if list.len() > 8 { 25 } else { 0 };
    let least_bytes: usize = list.iter().map(|hold| size_of::<Hold>() + 16 + beside + hold.id.len()).sum();
    assert!(extension.bytes() > least_bytes, "{} bytes of {} holds", extension.bytes(), list.len());
    assert!(list.iter().all(|hold| extension.holds.get(&hold.id) == Some(hold)));
    assert_eq!(extension.holds.get(b"request:no"), None);
    for at_us in [0, 1, 7, 250, 499, 500, 999, MAX_TIME_US] {
        let (ended, outstanding): (Vec<&Hold>, Vec<_>) =
            list.iter().partition(|hold| hold.ends_at_us <= at_us);
        let ended_micro: i128 = ended.iter().map(|hold| i128::from(hold.amount_micro)).sum();
        assert_eq!(i128::from(extension.holds.returned_micro(i64::MIN, at_us)), ended_micro.min(1 << 61));
        assert_eq!(extension.holds.outstanding(at_us), outstanding.len());
        assert!(ended.iter().all(|hold| extension.holds.outstanding_of(&hold.id, at_us).is_none()));
        assert!(outstanding
            .iter()
            .all(|hold| extension.holds.outstanding_of(&hold.id, at_us) == Some(*hold)));
    }
}

proptest! {
    #![proptest_config(super::config(1))]

    #[test]
    fn they_are_what_a_sorted_list_is(changes in changes(400, 1200)) {
        let (extension, list) = build(&changes);
        assert_same(&extension, &list);
        let (read, is_whole) = Extension::decode(&extension.encode());
        prop_assert!(is_whole);
        assert_same(&read, &list);
    }

    /// As a replica or a file has a bucket that has expired and begun anew on the master. Fewer leave the others as they
    /// are.
    #[test]
    fn changes_that_set_all_holds_lead_to_them_from_any_others(
        before in changes(10, 30),
        after in changes(10, 30),
        number in 0..10u32,
    ) {
        let (mut extension, one) = (build(&before).0, hold(number, 7, 600));
        let (_, list) = build(&[&before[..], &[Change::Set(one.clone())]].concat());
        let set_one = ExtensionChanges { dropped: 0, changes: vec![ExtensionChange::Set(one)], len: list.len() as u32 };
        prop_assert!(set_one.apply(&mut extension));
        assert_same(&extension, &list);
        let ((mut extension, _), (_, list)) = (build(&before), build(&after));
        let set = list.iter().cloned().map(ExtensionChange::Set).collect();
        let changes = ExtensionChanges { dropped: 0, changes: set, len: list.len() as u32 };
        prop_assert!(changes.apply(&mut extension));
        assert_same(&extension, &list);
    }

    /// What has come back by `included_until_us` is in the level already.
    #[test]
    fn a_level_is_reached_when_the_model_says(
        changes in changes(300, 600),
        (limit, rate) in flows(),
        level_micro in prop_oneof![-MAX_MICRO..MAX_MICRO, -2000..2000i64],
        refilled_at_us in 0..600i64,
        counted in prop::option::of(0..600i64),
        wanted_micro in prop_oneof![0..MAX_MICRO, 0..3000i64],
    ) {
        let (extension, list) = build(&changes);
        let now_us = counted.unwrap_or(0).max(refilled_at_us);
        let included_until_us = counted.map_or(i64::MIN, |_| now_us);
        let held = outstanding(list.iter(), included_until_us);
        let level = whole(level_micro) + ended(&held, refilled_at_us);
        let reached_in_us = limit.reaches_with_us(&level, refilled_at_us, &whole(wanted_micro), &ends(&held));
        let reached_in_us = reached_in_us.and_then(|us| us.ceil().to_integer().to_i64()).unwrap_or(i64::MAX);
        let reached_at_us = reached_in_us.saturating_add(refilled_at_us).clamp(now_us, MAX_TIME_US + 1);
        let bucket = Bucket { level_micro, refilled_at_us };
        let told_us = extension.reaches_at_us(&rate, bucket, included_until_us, wanted_micro);
        prop_assert_eq!(told_us.clamp(now_us, MAX_TIME_US + 1), reached_at_us);
    }

    /// A file that somebody else made may have them in any order, and sorting many of them could take very long.
    #[test]
    fn holds_that_are_not_in_order_are_left_out(
        changes in changes(20, 60),
        (one, other) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let (_, list) = build(&changes);
        prop_assume!(list.len() > 1);
        let mut swapped = list.clone();
        swapped.swap(one.index(list.len()), other.index(list.len()));
        let mut bytes = Vec::new();
        swapped.iter().for_each(|hold| hold.encode(&mut bytes));
        let (extension, is_whole) = Extension::decode(&bytes);
        prop_assert_eq!(is_whole, swapped == list);
        let mut kept: Vec<Hold> = Vec::new();
        for hold in swapped {
            if kept.last().is_none_or(|last| last.is_before(&hold)) {
                kept.push(hold);
            }
        }
        assert_same(&extension, &kept);
    }

    /// Bytes that somebody else made: what can be no hold is left out, and that is told.
    #[test]
    fn damaged_bytes_never_make_holds_that_cannot_be(
        bytes in damaged(
            // Now and then each of them is there twice.
            changes(20, 20)
                .prop_map(|changes| build(&changes).0.encode().repeat(1 + changes.len() % 2))
                .prop_filter("there is something to damage", |bytes| !bytes.is_empty()),
            prop_oneof![any::<u8>(), Just(0), Just(MAX_ID_LEN as u8 + 1)],
        ),
    ) {
        let (extension, is_whole) = Extension::decode(&bytes);
        for hold in extension.holds.iter() {
            let checked = Hold::checked(&hold.id, hold.amount_micro, hold.ends_at_us);
            prop_assert_eq!(checked.as_ref(), Some(hold));
        }
        let saved = extension.encode();
        prop_assert_eq!(is_whole, saved.len() == bytes.len());
        prop_assert_eq!(Extension::decode(&saved).0.encode(), saved);
    }
}

#[test]
fn a_bucket_has_no_more_holds_than_there_may_be_whatever_bytes_say() {
    let mut bytes = Vec::new();
    for (number, is_within) in (0..=MAX_HOLDS).map(|number| (number, number < MAX_HOLDS)) {
        let hold = Hold { id: number.to_be_bytes().into(), amount_micro: 1, ends_at_us: number.into() };
        hold.encode(&mut bytes);
        if number + 1 >= MAX_HOLDS {
            let (extension, is_whole) = Extension::decode(&bytes);
            assert_eq!((extension.holds.len(), is_whole), (MAX_HOLDS as usize, is_within));
        }
    }
}

#[test]
fn a_hold_has_a_name_an_amount_and_an_end_within_bounds() {
    let is_one = |len, micro, ends_at_us| Hold::checked(&vec![b'i'; len], micro, ends_at_us).is_some();
    assert!(is_one(1, 1, 0) && is_one(MAX_ID_LEN, MAX_MICRO, MAX_TIME_US));
    assert!(!is_one(0, 1, 0) && !is_one(MAX_ID_LEN + 1, 1, 0));
    assert!(!is_one(1, 0, 0) && !is_one(1, MAX_MICRO + 1, 0));
    assert!(!is_one(1, 1, -1) && !is_one(1, 1, MAX_TIME_US + 1));
}

/// The room that holds leave is freed or used again: after a burst that ended together, and where a hold in a hundred
/// stays, in any part of the order.
#[test]
fn a_bucket_has_no_more_memory_than_its_holds_need() {
    const HOLDS: u32 = 10_000;
    let fill = |extension: &mut Extension, count: u32, end_us: fn(u32) -> i64| {
        (0..count).for_each(|number| extension.holds.set(hold(number, 1, end_us(number))));
        extension.bytes()
    };
    // It is freed while they end too.
    let mut burst = Extension::default();
    let burst_bytes = fill(&mut burst, 8 * HOLDS, |number| i64::from(number / HOLDS));
    (0..7).for_each(|end_us| assert_eq!(burst.holds.drop_ended(end_us), HOLDS as usize));
    assert!(burst.bytes() < burst_bytes / 4, "{} of {burst_bytes} bytes for an eighth", burst.bytes());
    let mut extension = Extension::default();
    let empty_bytes = extension.bytes();
    assert!(
        fill(&mut extension, 1, |_| 2) - empty_bytes < 4 * size_of::<Hold>(),
        "there is room for more than one"
    );
    let few_bytes = fill(&mut extension, 20, |_| 2);
    fill(&mut extension, 10 * HOLDS, |number| i64::from(number < 20) + 1);
    assert_eq!(extension.holds.drop_ended(1), 10 * HOLDS as usize - 20);
    assert!(extension.bytes() <= few_bytes, "{} bytes after a burst, {few_bytes} before", extension.bytes());
    extension = Extension::default();
    let first_bytes = fill(&mut extension, HOLDS, i64::from);
    assert!(first_bytes < 4 * size_of::<Hold>() * HOLDS as usize, "{first_bytes} bytes");
    for _ in 0..3 {
        for number in (0..HOLDS).map(|number| number * 7919 % HOLDS).filter(|number| number % 100 != 0) {
            ExtensionChange::Removed(hold(number, 1, 0).id).apply(&mut extension);
        }
        assert!(
            extension.bytes() < first_bytes / 10,
            "{} of {first_bytes} bytes are left",
            extension.bytes()
        );
        let bytes = fill(&mut extension, HOLDS, i64::from);
        assert!(bytes < first_bytes * 5 / 4, "{bytes} bytes, {first_bytes} at first");
    }
    (5..HOLDS).for_each(|number| drop(extension.holds.remove(&hold(number, 1, 0).id)));
    assert!(extension.bytes() < 100 * size_of::<Hold>(), "{} bytes of five", extension.bytes());
}
