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

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn counts_are_never_below_the_truth_and_above_it_by_at_most_a_counters_share(
        most in prop_oneof![1 => Just(1), 2 => 1..20usize],
        denials in prop::collection::vec(keys(), 1..400),
    ) {
        let (mut top, mut truth) = (Top::new(most), HashMap::new());
        prop_assert_eq!(top.max_counters(), most);
        for (now_ms, key) in (1..).zip(&denials) {
            top.count(key, now_ms);
            let key = &key[..key.len().min(MAX_KEY_LEN)];
            let (denied, last_denied_ms) = truth.entry(key).or_insert((0, 0));
            (*denied, *last_denied_ms) = (*denied + 1, now_ms);
            let listed: Vec<Denied> = top.iter().collect();
            prop_assert!(listed.is_sorted_by(|one, next| one.denied >= next.denied), "{listed:?}");
            prop_assert_eq!(listed.iter().map(|counted| counted.denied).sum::<u64>(), now_ms as u64);
            let found: HashSet<&[u8]> = listed.iter().map(|counted| counted.key).collect();
            prop_assert_eq!((found.len(), listed.len()), (truth.len().min(most), truth.len().min(most)));
            let share = now_ms as u64 / most as u64;
            for Denied { key, denied, last_denied_ms } in listed {
                let (true_denied, true_last_ms) = truth[key];
                prop_assert!((true_denied..=true_denied + share).contains(&denied), "{key:?}: {denied}");
                prop_assert_eq!(last_denied_ms, true_last_ms);
            }
            for (key, (denied, _)) in &truth {
                prop_assert!(*denied <= share || found.contains(key), "{key:?} was denied {denied} times");
            }
        }
    }
}
