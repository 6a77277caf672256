//! Buckets of which tokens are held, under a few names, and come back.

use super::exact::{whole, Holding, Judged, Limit, Operation};
use super::scenario::{self, Amount, Tick, Wish};
use proptest::prelude::*;
use tokenbucket::bucket::MAX_TIME_US;

#[derive(Clone, Copy, Debug)]
enum Call {
    Hold(u8, Amount, Tick),
    Settle(u8, Amount),
    Other(Wish),
}

fn calls() -> impl Strategy<Value = Call> {
    let ids = || 0..12u8;
    let lasts = prop_oneof![3 => scenario::ticks(), 1 => Just(Tick::Forward(0))];
    let holds = (ids(), scenario::amounts(), lasts);
    prop_oneof![
        5 => holds.prop_map(|(id, amount, lasts)| Call::Hold(id, amount, lasts)),
        2 => (ids(), scenario::amounts()).prop_map(|(id, used)| Call::Settle(id, used)),
        2 => scenario::wishes().prop_map(Call::Other),
    ]
}

impl Call {
    /// Makes it. Returns what was told to wait, in milliseconds.
    fn make(self, judged: &mut Judged, limit: &Limit, now_us: i64, told_ms: i64) -> i64 {
        let id = |number| format!("request:{number}");
        let outcome = match self {
            Self::Hold(number, amount, lasts) => {
                let ttl_ms = ((lasts.after(now_us, limit, told_ms) - now_us) / 1000).max(1);
                let amount_micro = amount.micro(limit);
                judged.hold(limit, &Holding::Set { id: id(number), amount_micro, ttl_ms }, now_us)
            }
            Self::Settle(number, used) => {
                let used_micro = if limit.is_pool() { 0 } else { used.micro(limit) };
                judged.hold(limit, &Holding::Settle { id: id(number), used_micro }, now_us)
            }
            Self::Other(wish) => {
                let operation = match wish.of(limit, told_ms) {
                    // Of a pool tokens are held, but not taken.
                    _ if limit.is_pool() => Operation::Give { amount_micro: 1 },
                    operation => operation,
                };
                judged.call(limit, operation, now_us)
            }
        };
        outcome.map_or(0, |outcome| outcome.decision.retry_after_ms)
    }
}

fn pools() -> impl Strategy<Value = Limit> {
    scenario::limits(Just("1e12".to_owned()))
        .prop_map(|limit| Limit::pool(&format!("{}e-6", limit.capacity_micro())))
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Also while the limits change from call to call, where nothing is rounded.
    #[test]
    fn what_is_held_comes_back_when_it_has_to(
        limits in prop_oneof![
            prop::collection::vec(scenario::limits(scenario::whole_rates()), 1..4),
            prop::collection::vec(scenario::limits(scenario::rates()), 1),
            prop::collection::vec(pools(), 1..3),
        ],
        steps in prop::collection::vec((scenario::ticks(), calls(), any::<prop::sample::Index>()), 1..60),
        late in any::<bool>(),
    ) {
        let mut judged = Judged::default();
        judged.expires_late = late;
        let (mut now_us, mut told_ms) = (1_700_000_000_000_000, 0);
        for (tick, call, limit) in steps {
            let limit = limit.get(&limits);
            // Early enough for any hold to end.
            now_us = tick.after(now_us, limit, told_ms).min(MAX_TIME_US / 2);
            told_ms = call.make(&mut judged, limit, now_us, told_ms);
            let level = judged.model.level(limit, now_us);
            prop_assert!(!limit.is_whole() || level.low == level.high, "{:?}", level);
            prop_assert!(level.high <= whole(limit.capacity_micro()), "{:?}", level);
        }
    }
}
