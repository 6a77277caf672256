//! When the key of a bucket goes.

use super::oracle::bucket::milliseconds;
use super::oracle::judge::Judge;
use super::oracle::module::Module;
use super::oracle::rational::integer;
use super::scenario;
use super::{told_ms, walk};
use num_traits::ToPrimitive;
use proptest::prelude::*;
use tokenbucket::bucket::{Change, Outcome, MAX_TIME_US};
use tokenbucket::effect::{ExpiryWindow, MAX_EXPIRE_AT_MS};

proptest! {
    #![proptest_config(super::config(8))]

    /// A key disappears when its bucket is full and not before, and soon enough: what is left by then is what a new
    /// bucket has.
    #[test]
    fn an_expired_bucket_was_full(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::ticks(), scenario::wishes()),
        late in any::<bool>(),
    ) {
        let (mut module, mut judge) = (Module::default(), Judge::default());
        let mut expire_at_ms = i64::MAX;
        walk(&[limit], start_us, &steps, |limit, operation, now_us| {
            if now_us / 1000 >= expire_at_ms {
                judge.expire(limit, now_us);
                (module.stored, expire_at_ms) = (None, i64::MAX);
            }
            let outcome = module.call(&limit.limit, operation, now_us);
            judge.hear(limit, operation, now_us, &outcome);
            if let Ok(Outcome { change: Change::Store { full_at_us, .. }, .. }) = outcome {
                let window = ExpiryWindow::new(full_at_us, now_us);
                expire_at_ms = if late { window.latest_ms } else { window.earliest_ms };
            }
            Ok(told_ms(outcome))
        })?;
    }
}

proptest! {
    #![proptest_config(super::config(32))]

    #[test]
    fn an_expiry_is_never_before_full_and_at_most_a_quarter_and_a_second_later(
        now_us in prop_oneof![scenario::starts(), scenario::spread(MAX_TIME_US)],
        until_full_us in scenario::spread(1 << 62),
        probe_ms in any::<i64>(),
        near_ms in -2..=2i64,
    ) {
        let full_at_us = now_us + until_full_us;
        let window = ExpiryWindow::new(full_at_us, now_us);
        let full_at_ms = milliseconds(&integer(full_at_us)).to_i64().unwrap();
        prop_assert_eq!(window.earliest_ms, full_at_ms);
        prop_assert!(window.latest_ms >= window.earliest_ms);
        let most_late_us = integer(until_full_us) / integer(4) + integer(1_000_000);
        prop_assert!(integer(window.latest_ms - full_at_ms) * integer(1000) <= most_late_us, "{:?}", window);
        let edges = [probe_ms, window.earliest_ms + near_ms, window.latest_ms + near_ms];
        for at_ms in edges {
            let inside = window.earliest_ms <= at_ms && at_ms <= window.latest_ms;
            prop_assert_eq!(window.contains(at_ms), inside, "{} in {:?}", at_ms, window);
        }
    }
}

/// Whatever the clock: what is set is an expiry that every server keeps.
#[test]
fn an_expiry_is_one_that_a_server_can_keep() {
    let moments = [i64::MIN, -1, 0, 1, 999, 1000, 1001, MAX_TIME_US, i64::MAX];
    for full_at_us in moments {
        for now_us in moments {
            let ExpiryWindow { earliest_ms, latest_ms } = ExpiryWindow::new(full_at_us, now_us);
            let in_order = 0 <= earliest_ms && earliest_ms <= latest_ms && latest_ms <= MAX_EXPIRE_AT_MS;
            assert!(in_order, "{earliest_ms} to {latest_ms} for {full_at_us} at {now_us}");
        }
    }
}
