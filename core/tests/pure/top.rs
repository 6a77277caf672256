//! Counters of who is denied most, against the truth: what `tokenbucket_core::top` promises at every moment.

use super::config;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use tokenbucket_core::top::{Denied, Top, MAX_KEY_LEN};

/// Keys of which some come far more often than others, and some meet when they are cut.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    let any = (0..5u32).prop_flat_map(|crowd| (0..4u32.pow(crowd)).prop_map(|number| number.to_le_bytes()));
    (any, prop_oneof![9 => Just(0), 1 => Just(MAX_KEY_LEN - 3)])
        .prop_map(|(name, before)| [vec![b'x'; before], name.to_vec()].concat())
}

/// How often each key was denied, and when that was last.
type Truth<'a> = HashMap<&'a [u8], (u64, i64)>;

/// Compares every key with its own count, after so many denials.
fn assert_counted(top: &Top, truth: &Truth, denials: u64) {
    let listed: Vec<Denied> = top.iter().collect();
    assert!(listed.is_sorted_by(|one, next| one.denied >= next.denied), "{listed:?}");
    assert_eq!(listed.iter().map(|counted| counted.denied).sum::<u64>(), denials);
    let found: HashSet<&[u8]> = listed.iter().map(|counted| counted.key).collect();
    let most = truth.len().min(top.max_counters());
    assert_eq!((found.len(), listed.len()), (most, most));
    let share = denials / top.max_counters() as u64;
    for Denied { key, denied, last_denied_ms } in listed {
        let (true_denied, true_last_ms) = truth[key];
        assert!((true_denied..=true_denied + share).contains(&denied), "{key:?}: {denied}");
        assert_eq!(last_denied_ms, true_last_ms);
    }
    for (key, (denied, _)) in truth {
        assert!(*denied <= share || found.contains(key), "{key:?} was denied {denied} times");
    }
}

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn counts_are_never_below_the_truth_and_above_it_by_at_most_a_counters_share(
        most in prop_oneof![1 => Just(1), 2 => 1..20usize],
        denials in prop::collection::vec(keys(), 1..400),
    ) {
        let (mut top, mut truth) = (Top::new(most), Truth::new());
        prop_assert_eq!(top.max_counters(), most);
        for (now_ms, key) in (1..).zip(&denials) {
            top.count(key, now_ms);
            let key = &key[..key.len().min(MAX_KEY_LEN)];
            let (denied, _) = truth.get(key).copied().unwrap_or_default();
            truth.insert(key, (denied + 1, now_ms));
            assert_counted(&top, &truth, now_ms as u64);
        }
    }
}
