//! Whose turn it is among calls that wait: random calls, clocks and disconnects, and how often a queue of a thousand asks.

use super::model::queue::Share;
use super::model::MILLION;
use super::waiting::{self, Name, Part, Server, TTL_US};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::HashMap;
use tokenbucket_core::bucket::{Limit, Operation};
use tokenbucket_core::rate::Rate;

pub fn limit(tokens: i64, rate: &str) -> Limit {
    let rate = Rate::parse(rate.as_bytes());
    rate.map_or(Limit::pool(tokens * MILLION), |rate| Limit::new(tokens * MILLION, rate).unwrap())
}

pub fn part(key: &[u8], limit: Limit, wanted_micro: i64, id: Option<u8>) -> Part {
    waiting::part(key.into(), limit, wanted_micro, id.map(|id| [id].into()))
}

/// The usual limit of a bucket, and the one that comes now and then.
fn limits_of(bucket: u8) -> [Limit; 2] {
    match bucket {
        0 => [limit(4, "1"), limit(3, "2/s")],
        1 => [limit(5, "5@10s"), limit(5, "1/3s")],
        2 => [limit(3, "0"), limit(2, "1/10s")],
        _ => [limit(4, "0"), limit(5, "0")],
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Of which of two databases.
    Call {
        db: i32,
        parts: Vec<Part>,
        max_wait_us: Option<i64>,
        share: Option<Share>,
    },
    /// The first of these that allows, or the one that is held already.
    OneOf(i32, Vec<Vec<Part>>),
    Give {
        db: i32,
        part: Part,
        micro: i64,
    },
    Settle {
        db: i32,
        part: Part,
    },
    Vanish(Option<i32>, u8),
    Rename(i32, u8, u8),
    Flush(Option<i32>),
    /// A capacity in tokens, whether nothing flows in, and for how many milliseconds.
    Override(i32, u8, i64, bool, i64),
    Disconnect(Index),
    Sleep(i64),
    SetBack(i64),
}

fn amounts() -> impl Strategy<Value = i64> {
    prop_oneof![8 => (0..=4i64).prop_map(|tokens| tokens * MILLION), 2 => 0..4 * MILLION]
}

/// Of one bucket. A pool knows holds alone.
fn parts_of(bucket: u8, id: Option<u8>) -> impl Strategy<Value = Part> {
    (amounts(), prop::bool::weighted(0.1)).prop_map(move |(wanted_micro, is_other)| {
        let limit = limits_of(bucket)[usize::from(is_other)];
        let id = if limit.is_pool() { Some(id.unwrap_or(9)) } else { id };
        part(&[bucket], limit, wanted_micro.min(limit.capacity_micro()), id)
    })
}

/// Of up to all four buckets, and now and then of as many as a call can have.
fn parts() -> impl Strategy<Value = Vec<Part>> {
    let several = (prop::option::of(0..3u8), prop::sample::subsequence(vec![0, 1, 2, 3u8], 1..=4));
    let several = several.prop_flat_map(|(id, buckets)| {
        buckets.into_iter().map(|bucket| parts_of(bucket, id).boxed()).collect::<Vec<_>>()
    });
    let wide = (1..=1023u16, parts_of(0, None)).prop_map(|(others, first)| {
        let other = |number: u16| part(&number.to_be_bytes(), limit(2, "1"), MILLION, None);
        std::iter::once(first).chain((0..others).map(other)).collect()
    });
    prop_oneof![99 => several, 1 => wide]
}

fn single() -> BoxedStrategy<Vec<Part>> {
    let one = (prop::option::of(0..3u8), 0..3u8).prop_flat_map(|(id, bucket)| parts_of(bucket, id));
    one.prop_map(|part| vec![part]).boxed()
}

pub fn share(tenant: &[u8], weight_micro: i64) -> Share {
    Share { tenant: tenant.into(), weight_micro }
}

/// With shares of three tenants, whose weights differ from call to call, for so many of them against one without.
fn shares(with: u32) -> BoxedStrategy<Option<Share>> {
    let weights = prop_oneof![3 => Just(MILLION), 2 => Just(3 * MILLION), 1 => 1000..=1000 * MILLION];
    let some = (0..3u8, weights).prop_map(|(tenant, weight_micro)| Some(share(&[tenant], weight_micro)));
    prop_oneof![with => some, 1 => Just(None)].boxed()
}

/// Each with the number of examinations that its slice has time for. `None`: for all.
fn steps(
    parts: BoxedStrategy<Vec<Part>>,
    shares: BoxedStrategy<Option<Share>>,
) -> impl Strategy<Value = (Step, Option<usize>)> {
    let slices = prop_oneof![1 => Just(None), 2 => (0..6usize).prop_map(Some)];
    (step(parts, shares), slices)
}

fn step(
    parts: BoxedStrategy<Vec<Part>>,
    shares: BoxedStrategy<Option<Share>>,
) -> impl Strategy<Value = Step> {
    let dbs = || prop_oneof![6 => Just(0), 1 => Just(1)];
    let any_db = || prop::option::of(0..2);
    let id = || (0..3u8).prop_map(Some);
    let one = |id: Option<u8>| (0..4u8).prop_flat_map(move |bucket| parts_of(bucket, id));
    let times = || prop_oneof![0..3000i64, 0..12 * MILLION, Just(TTL_US), Just(MILLION)];
    let waits = prop_oneof![1 => Just(None), 4 => prop_oneof![1..3000i64, times().prop_map(|us| us + 1), Just(1000 * MILLION)].prop_map(Some)];
    prop_oneof![
        4 => (dbs(), vec(parts.clone(), 1..4)).prop_map(|(db, alternatives)| Step::OneOf(db, alternatives)),
        20 => (dbs(), parts, waits, shares).prop_map(|(db, parts, max_wait_us, share)| {
            let share = share.filter(|_| parts.len() == 1);
            Step::Call { db, parts, max_wait_us, share }
        }),
        2 => (dbs(), one(None), -4..=4i64).prop_map(|(db, part, tokens)| Step::Give { db, part, micro: tokens * MILLION }),
        3 => (dbs(), id().prop_flat_map(one)).prop_map(|(db, part)| Step::Settle { db, part }),
        1 => (any_db(), 0..4u8).prop_map(|(db, bucket)| Step::Vanish(db, bucket)),
        2 => (dbs(), 0..4u8, 0..4u8).prop_map(|(db, from, to)| Step::Rename(db, from, to)),
        1 => any_db().prop_map(Step::Flush),
        2 => (dbs(), 0..4u8, 0..6i64, any::<bool>(), prop_oneof![1 => Just(0), 1 => 1..3i64, 2 => 1..12_000i64]).prop_map(|(db, bucket, tokens, stops, ttl_ms)| Step::Override(db, bucket, tokens, stops, ttl_ms)),
        2 => any::<Index>().prop_map(Step::Disconnect),
        6 => times().prop_map(Step::Sleep),
        1 => times().prop_map(Step::SetBack),
    ]
}

/// Returns whether a call wants any, and its hold has enough of each bucket.
fn is_held(server: &Server, db: i32, parts: &[Part], is_enough: fn(&Part, i64) -> bool) -> bool {
    let held = |part: &Part| {
        part.id().and_then(|_| server.world.held_of(db, part)).map_or(0, |held| held.amount_micro)
    };
    parts.iter().any(|part| part.wanted.micro() > 0) && parts.iter().all(|part| is_enough(part, held(part)))
}

fn make(server: &mut Server, step: Step) {
    match step {
        Step::Call { db, parts, max_wait_us, share } => {
            server.call_with(db, &parts, max_wait_us, share);
        }
        Step::OneOf(db, alternatives) => {
            let place =
                |is_enough| alternatives.iter().position(|parts| is_held(server, db, parts, is_enough));
            let is_there = |part: &Part, micro| part.wanted.micro() == 0 || micro > 0;
            let held = place(|part, micro| part.wanted.micro() == micro).or_else(|| place(is_there));
            let asked =
                alternatives.iter().enumerate().filter(|(place, _)| held.is_none_or(|held| held == *place));
            let _granted = asked.map(|(_, parts)| parts).find(|parts| server.call(db, parts, None).0);
        }
        // Only ending holds fill a pool.
        Step::Give { part, .. } if part.limit.is_pool() => {}
        Step::Give { db, part, micro } => server.give(db, &part, micro),
        Step::Settle { db, part } => {
            let used_micro = if part.limit.is_pool() { 0 } else { part.wanted.micro() };
            server.settle(db, &waiting::part(part.key.clone(), part.limit, used_micro, part.id().cloned()))
        }
        Step::Vanish(db, bucket) => server.vanish(db, &[bucket]),
        Step::Rename(db, from, to) => server.rename(db, &[from], &[to]),
        Step::Flush(db) => server.flush(db),
        Step::Override(db, bucket, tokens, stops, ttl_ms) => {
            server.override_limit(
                db,
                &[bucket],
                [&tokens.to_string(), if stops { "0" } else { "2" }],
                ttl_ms,
            );
        }
        Step::Disconnect(_) if server.queue.count() == 0 => {}
        Step::Disconnect(who) => {
            server.disconnect(server.waiting.calls[who.index(server.queue.count())].arrival)
        }
        Step::Sleep(by_us) if server.slice.is_some() => server.sleep_between_slices(by_us),
        Step::Sleep(by_us) => server.sleep(by_us),
        Step::SetBack(by_us) => server.set_back(by_us),
    }
}

proptest! {
    #![proptest_config(super::config(24))]

    #[test]
    fn everyone_is_served_when_the_model_says(steps in vec(steps(parts().boxed(), Just(None).boxed()), 1..80)) {
        run(steps);
    }
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Calls of one key, most of them with a share.
    #[test]
    fn shares_are_served_when_the_model_says(steps in vec(steps(single(), shares(4)), 1..80)) {
        run(steps);
    }

    /// Calls of several keys among them: nothing that one lacks is taken, and none is left that could be served.
    #[test]
    fn calls_of_several_keys_wait_beside_shares(steps in vec(steps(parts().boxed(), shares(1)), 1..80)) {
        run(steps);
    }
}

proptest! {
    #![proptest_config(super::config(4))]

    /// So few calls at one key that tenants often leave, and return while others wait.
    #[test]
    fn tenants_that_return_are_served_when_the_model_says(
        steps in vec((0..10u8, shares(2), 200_000..=MILLION, any::<Index>()), 100),
    ) {
        let mut server = Server::default();
        let of = |wanted_micro| part(b"k", limit(1, "1/d"), wanted_micro, None);
        for (kind, share, micro, who) in steps {
            match kind {
                0..5 => drop(server.call_with(0, &[of(micro)], Some(1000 * MILLION), share)),
                5..9 => server.give(0, &of(0), micro),
                _ => make(&mut server, Step::Disconnect(who)),
            }
        }
        server.close();
    }
}

fn run(steps: Vec<(Step, Option<usize>)>) {
    let mut server = Server::default();
    server.world.now_us = 1_700_000_000 * MILLION;
    for (step, slice) in steps {
        server.slice = slice;
        make(&mut server, step);
    }
    server.close();
}

proptest! {
    #![proptest_config(super::config(1))]

    /// Hundreds at one bucket, often in debt, under two limits; they come at the end and leave anywhere.
    #[test]
    fn a_long_queue_keeps_its_order(
        steps in vec((0..11u8, amounts(), any::<bool>(), any::<Index>()), 100..500),
    ) {
        let limits = [limit(5, "1"), limit(4, "2")];
        let mut server = Server::default();
        server.give(0, &part(b"k", limits[0], 0, None), -20 * MILLION);
        for (kind, wanted_micro, is_other, who) in steps {
            let wanted = part(b"k", limits[usize::from(is_other)], wanted_micro, None);
            match kind {
                0..6 => drop(server.call(0, &[wanted], Some(1000 * MILLION))),
                6..9 => make(&mut server, Step::Disconnect(who)),
                9 => server.give(0, &wanted, 3 * MILLION - wanted_micro),
                _ => server.sleep(wanted_micro / 4),
            }
        }
        server.close();
    }
}

/// While two tenants wait, what they were granted, divided by their weights, differs by at most twice the largest cost, divided
/// by its weight.
fn assert_shared(weights_micro: [i64; 2], calls: usize, grants: usize, mut cost: impl FnMut() -> i64) {
    let mut server = Server::default();
    let all = part(b"k", limit(1, "1/d"), MILLION, None);
    assert!(server.call(0, std::slice::from_ref(&all), None).0);
    let (mut waiting, mut granted, mut largest) = (HashMap::new(), [0.0f64; 2], 0.0f64);
    let mut served = 0;
    while served < grants {
        for (tenant, weight_micro) in weights_micro.into_iter().enumerate() {
            while waiting.values().filter(|(of, _)| *of == tenant).count() < calls {
                let wanted = part(b"k", all.limit, cost(), None);
                let by_weight = wanted.wanted.micro() as f64 / weight_micro as f64;
                let share = share(&[tenant as u8], weight_micro);
                let arrival = server.call_with(0, &[wanted], Some(i64::MAX / 2), Some(share)).1;
                largest = largest.max(by_weight);
                waiting.insert(arrival.unwrap(), (tenant, by_weight));
            }
        }
        server.give(0, &all, cost());
        for arrival in server.served.drain(..) {
            let (tenant, by_weight) = waiting.remove(&arrival).unwrap();
            served += 1;
            granted[tenant] += by_weight;
            let differ = (granted[0] - granted[1]).abs();
            assert!(
                differ <= 2.0 * largest * (1.0 + 1e-9),
                "{granted:?} differ by more than twice {largest}"
            );
        }
    }
}

#[test]
fn ten_thousand_grants_are_shared_by_weights_1_and_3() {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    assert_shared([MILLION, 3 * MILLION], 6, 10_000, || 200_000 + i64::from(random.next_u32()) % 800_001);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn grants_are_shared_by_all_weights(
        costs in vec(200_000..=MILLION, 500),
        weights in [1000..=1000 * MILLION, 1000..=1000 * MILLION],
        // So many that none runs out in one turn.
        calls in 6..20usize,
    ) {
        let mut costs = costs.into_iter().cycle();
        assert_shared(weights, calls, 200, || costs.next().unwrap());
    }
}

/// The tenant of those without a share was idle, which saves nothing up.
#[test]
fn a_call_of_two_keys_takes_nothing_that_an_earlier_one_with_a_share_lacks() {
    let mut server = Server::default();
    let of = |key: &[u8], tokens| part(key, limit(4, "1/d"), tokens * MILLION, None);
    let shared = |server: &mut Server, tokens| {
        server.call_with(0, &[of(b"k", tokens)], Some(1000 * MILLION), Some(share(b"a", MILLION)))
    };
    assert!(server.call(0, &[of(b"k", 4)], None).0);
    let _served = [3, 2].map(|tokens| shared(&mut server, tokens));
    server.give(0, &of(b"k", 0), 3 * MILLION);
    server.give(0, &of(b"k", 0), MILLION);
    assert_eq!(server.served.len(), 1);
    let (is_allowed, arrival) = server.call(0, &[of(b"other", 1), of(b"k", 1)], Some(1000 * MILLION));
    assert_eq!((is_allowed, server.served.len()), (false, 1), "one token is there, and the first lacks two");
    server.give(0, &of(b"k", 0), 2 * MILLION);
    assert_eq!(server.served.last().copied(), arrival);
}

/// Whatever the reason why the one that is next is put off.
#[test]
fn a_call_that_is_put_off_keeps_those_behind_it() {
    let mut server = Server::default();
    let of = |micro| part(b"k", limit(4, "1/d"), micro, None);
    assert!(server.call(0, &[of(4 * MILLION)], None).0);
    let share = |tenant| Some(share(tenant, MILLION));
    let [first, second, third] = [share(b"a"), share(b"b"), share(b"a")]
        .map(|share| server.call_with(0, &[of(MILLION)], Some(MILLION), share).1.unwrap());
    server.world.operate(0, &of(0), Operation::Give { amount_micro: 3 * MILLION });
    server.queue.mark(0, b"k");
    server.slice = Some(0);
    let late = server.call_with(0, &[of(MILLION)], Some(MILLION), share(b"a")).1.unwrap();
    assert_eq!(server.turn(), Some(first));
    server.queue.grant(first);
    assert_eq!(server.turn(), Some(second));
    server.queue.postpone(second, 1000);
    assert_eq!(server.turn(), None, "neither {third} nor {late} overtakes");
    server.world.now_us += 1000;
    for call in [second, third, late] {
        server.world.operate(0, &of(0), Operation::Give { amount_micro: MILLION });
        server.queue.mark(0, b"k");
        assert_eq!(server.turn(), Some(call));
        server.queue.grant(call);
    }
}

/// Keys where no call has a share are not counted.
#[test]
fn the_waiting_calls_of_each_tenant_are_counted() {
    let mut server = Server::default();
    let [a, b] = [b"a", b"b"].map(|tenant| Some(share(tenant, MILLION)));
    for (key, share) in
        [(b"k", &b), (b"k", &None), (b"k", &a), (b"k", &a), (b"l", &b), (b"l", &b), (b"m", &a), (b"m", &None)]
    {
        let one = part(key, limit(1, "1/d"), MILLION, None);
        server.world.take(0, &one, TTL_US);
        server.call_with(0, &[one], Some(MILLION), share.clone());
    }
    // One of them is granted and has left.
    server.give(0, &part(b"m", limit(1, "1/d"), 0, None), MILLION);
    let counted = |key: Option<(i32, &[u8])>| {
        let counted = server.queue.tenants(key, 3).into_iter();
        counted.map(|(tenant, calls)| (tenant.map(|tenant| tenant.to_vec()), calls)).collect::<Vec<_>>()
    };
    let [a, b] = [b"a", b"b"].map(|tenant| Some(tenant.to_vec()));
    assert_eq!(counted(None), [(b.clone(), 3), (a.clone(), 2), (None, 1)]);
    assert_eq!(server.queue.tenants(None, 1).len(), 1);
    assert_eq!(counted(Some((0, b"k"))), [(a, 2), (None, 1), (b.clone(), 1)]);
    assert_eq!(counted(Some((0, b"l"))), [(b, 2)]);
    assert_eq!([counted(Some((0, b"m"))), counted(Some((1, b"k")))], [vec![], vec![]]);
}

/// What is still to be examined keeps newcomers only from what those calls want.
#[test]
fn a_call_that_is_not_due_keeps_no_newcomer_from_what_it_does_not_lack() {
    let mut server = Server::default();
    let of = |key: &[u8]| part(key, limit(1, "1/d"), MILLION, None);
    assert!(server.call(0, &[of(b"k"), of(b"m")], None).0);
    for parts in [vec![of(b"k"), of(b"l")], vec![of(b"m")]] {
        server.call(0, &parts, Some(MILLION));
    }
    server.queue.mark(0, b"m");
    let seen = server.world.seen(0, b"l");
    assert_eq!(server.queue.wanted_before(0, b"l", &seen, &limit(1, "1/d"), MILLION), None);
}

#[test]
fn a_call_whose_hold_comes_with_another_bucket_is_served() {
    let mut server = Server::default();
    let hold = |tokens, id| part(b"k", limit(4, "0"), tokens * MILLION, Some(id));
    assert!(server.call(0, &[hold(4, 9)], None).0);
    server.call(0, &[hold(2, 1)], Some(MILLION));
    let second = server.call_with(0, &[hold(1, 2)], Some(MILLION), Some(share(b"a", MILLION))).1;
    server.world.change_hold(0, &hold(0, 9), None);
    let is_held = |(tokens, id)| server.world.change_hold(0, &hold(tokens, id), Some(TTL_US));
    assert!([(1, 2), (3, 9)].into_iter().all(is_held));
    server.queue.mark_gone(None, Some(b"k"));
    assert_eq!(server.turn(), second);
}

/// It keeps those behind it meanwhile, as it would if it lacked something.
#[test]
fn a_call_that_got_nothing_in_its_turn_is_looked_at_again() {
    let mut server = Server::default();
    let [wanted, all] = [1, 3].map(|tokens| part(b"k", limit(3, "0"), tokens * MILLION, Some(tokens as u8)));
    assert!(server.call(0, std::slice::from_ref(&all), None).0);
    let arrivals = [(); 2].map(|()| server.call(0, std::slice::from_ref(&wanted), Some(MILLION)).1);
    server.world.change_hold(0, &part(b"k", all.limit, 0, Some(3)), None);
    server.queue.mark(0, &all.key);
    assert_eq!(server.turn(), arrivals[0]);
    assert_eq!(server.turn(), arrivals[0]);
    server.queue.postpone(arrivals[0].unwrap(), 1000);
    assert_eq!((server.turn(), server.queue.next_look_us()), (None, Some(1000)));
    server.world.now_us = 999;
    assert_eq!(server.turn(), None);
    server.world.now_us = 1000;
    assert_eq!(server.turn(), arrivals[0]);
    server.queue.leave(arrivals[0].unwrap());
    assert_eq!(server.turn(), arrivals[1]);
}

/// That hold may be as large as an earlier call wants it.
#[test]
fn an_earlier_call_that_asks_for_the_same_hold_is_served_first() {
    let mut server = Server::default();
    let hold = |key: &[u8], tokens, id| part(key, limit(4, "0"), tokens * MILLION, Some(id));
    assert!(server.call(0, &[hold(b"k", 4, 2), hold(b"other", 4, 2)], None).0);
    let [earlier, later] = [vec![hold(b"k", 2, 1)], vec![hold(b"other", 1, 1), hold(b"k", 3, 1)]]
        .map(|parts| server.call(0, &parts, Some(MILLION)).1);
    server.world.change_hold(0, &hold(b"k", 1, 2), None);
    server.world.change_hold(0, &hold(b"k", 2, 1), Some(TTL_US));
    server.world.change_hold(0, &hold(b"other", 0, 2), None);
    server.queue.mark(0, b"other");
    server.queue.mark_hold(0, b"k", &[1]);
    assert_eq!(server.turn(), earlier);
    server.queue.leave(earlier.unwrap());
    assert_eq!(server.turn(), later);
}

/// A hold above the capacity, which was larger before, can only grow while it lasts.
#[test]
fn a_hold_that_can_no_longer_grow_keeps_nobody() {
    let mut server = Server::default();
    let hold = |capacity, tokens, id| part(b"k", limit(capacity, "1/d"), tokens * MILLION, Some(id));
    assert!(server.call(0, &[hold(10, 2, 2)], None).0);
    server.sleep(1000);
    assert!(server.call(0, &[hold(10, 8, 1)], None).0);
    let [large, small] = [hold(5, 9, 1), hold(5, 1, 3)].map(|part| server.call(0, &[part], Some(MILLION)).1);
    server.world.change_hold(0, &hold(5, 0, 1), None);
    server.queue.mark_hold(0, b"k", &[1]);
    assert_eq!(server.turn(), large, "it is denied");
    server.queue.leave(large.unwrap());
    assert_eq!(server.turn(), small);
    // Nor while it lasts, if what it lacks comes with its own end.
    let mut server = Server::default();
    assert!([hold(10, 8, 1), hold(10, 2, 2)].into_iter().all(|part| server.call(0, &[part], None).0));
    server.call(0, &[hold(5, 9, 1)], Some(60 * MILLION));
    assert_eq!(server.queue.count(), 0, "it is denied");
}

/// An override denies what its hold now lacks. Until that is seen, no newcomer takes what belongs to the call behind it.
#[test]
fn a_call_whose_hold_shrinks_or_ends_under_an_override_keeps_nobody() {
    let take = |key: &[u8], tokens| part(key, limit(4, "1/d"), tokens * MILLION, None);
    let hold = |key: &[u8], tokens, id| part(key, limit(4, "0"), tokens * MILLION, Some(id));
    let shrink = |server: &mut Server| assert!(server.call(0, &[hold(b"held", 1, 1)], None).0);
    let end = |server: &mut Server| server.sleep_between_slices(TTL_US);
    for change in [&shrink as &dyn Fn(&mut Server), &end] {
        let mut server = Server::default();
        assert!(server.call(0, &[take(b"k", 1), take(b"l", 1), hold(b"held", 2, 1)], None).0);
        server.call(0, &[take(b"k", 4)], Some(2 * TTL_US));
        server.call(0, &[take(b"k", 1), take(b"l", 4), hold(b"held", 2, 1)], Some(2 * TTL_US));
        let behind = server.call(0, &[take(b"l", 1), hold(b"other", 1, 2)], Some(TTL_US)).1;
        server.override_limit(0, b"held", ["0", "0"], 10_000);
        server.slice = Some(0);
        change(&mut server);
        assert!(!server.call(0, &[hold(b"other", 4, 3)], None).0);
        server.finish();
        assert_eq!(server.served, Vec::from_iter(behind));
    }
}

/// Two are due, and the second would be kept by an earlier call if a newcomer took what is free.
#[test]
fn a_newcomer_takes_nothing_after_which_one_who_is_due_is_kept() {
    let mut server = Server::default();
    let take = |key: &[u8], tokens| part(key, limit(4, "1/d"), tokens * MILLION, None);
    let hold = |tokens, id| part(b"pool", limit(4, "0"), tokens * MILLION, Some(id));
    assert!(server.call(0, &[take(b"k", 1), take(b"l", 4)], None).0);
    server.call(0, &[take(b"k", 4), hold(3, 1)], Some(MILLION));
    let due = [2, 3].map(|id| server.call(0, &[take(b"l", 1), hold(1, id)], Some(MILLION)).1.unwrap());
    server.slice = Some(0);
    server.give(0, &take(b"l", 0), 2 * MILLION);
    assert!(!server.call(0, &[hold(1, 4)], None).0);
    server.finish();
    assert_eq!(server.served, due);
}

/// The later one is also before a call with a share, which is earlier than both.
#[test]
fn calls_that_are_due_at_once_are_served_in_order_of_arrival() {
    let mut server = Server::default();
    let take = |key: &[u8], tokens| part(key, limit(4, "1/d"), tokens * MILLION, None);
    let hold = |tokens, id| part(b"pool", limit(4, "0"), tokens * MILLION, Some(id));
    assert!(server.call(0, &[take(b"l", 4), take(b"m", 4), hold(4, 1)], None).0);
    // Those without a share wait from now on.
    server.call(0, &[take(b"m", 1), hold(0, 9)], Some(MILLION));
    for (tokens, id) in [(1, 2), (3, 3)] {
        server.call_with(0, &[hold(tokens, id)], Some(MILLION), Some(share(b"a", MILLION)));
    }
    assert!(server.call(0, &[hold(3, 1)], None).0);
    assert_eq!(server.served.len(), 1);
    let first = server.call(0, &[take(b"k", 1), take(b"l", 1)], Some(MILLION)).1.unwrap();
    server.slice = Some(0);
    server.give(0, &take(b"l", 0), MILLION);
    assert!(server.call(0, &[hold(2, 1)], None).0);
    let second = server.call(0, &[take(b"k", 1), hold(1, 4)], Some(MILLION)).1.unwrap();
    server.finish();
    assert_eq!(server.served[1..], [first, second]);
}

/// Calls that wait for a bucket that all of them want and for one of their own.
struct Crowd {
    server: Server,
    id: fn(u16) -> Option<u16>,
}

const CROWD: u16 = 1000;

/// Questions about a bucket that has changed, and about each call that is served: whether it holds and lacks its two.
const FOR_A_CHANGE: usize = 2;
const FOR_A_CALL: usize = 8;

impl Crowd {
    fn part(&self, number: Option<u16>, of: u16, micro: i64) -> Part {
        let key = number.map_or(Name::from(*b"shared"), |number| number.to_be_bytes().into());
        let id = (self.id)(of).map(|id| id.to_be_bytes().into());
        // A limit of its own, which must not cost a look of its own.
        waiting::part(key, limit(20_000 + i64::from(of), "1/d"), micro, id)
    }

    fn enter(&mut self, number: u16, is_shared_first: bool) {
        let mut parts = vec![self.part(None, number, MILLION), self.part(Some(number), number, MILLION)];
        if !is_shared_first {
            parts.reverse();
        }
        self.server.queue.enter(0, parts, i64::MAX, None, &mut self.server.world);
        assert_eq!(self.serve(), 0, "it lacks something");
    }

    /// Gives to the shared bucket. Returns how many are served.
    fn give(&mut self, micro: i64) -> usize {
        let shared = self.part(None, 0, MILLION);
        self.server.world.operate(0, &shared, Operation::Give { amount_micro: micro });
        self.server.queue.mark(0, &shared.key);
        self.serve()
    }

    fn serve(&mut self) -> usize {
        let mut served = 0;
        while let Some(arrival) = self.server.turn() {
            let number = u16::try_from(arrival - 1).unwrap();
            assert!(self.server.world.take(0, &self.part(None, number, MILLION), TTL_US));
            assert!(self.server.world.take(0, &self.part(Some(number), number, MILLION), TTL_US));
            self.server.queue.leave(arrival);
            served += 1;
        }
        served
    }

    fn asked(&mut self) -> usize {
        std::mem::take(&mut self.server.world.asked)
    }
}

/// Also where each of them enlarges a hold, or all of them the same one, or set the same one that is not there.
#[test]
fn a_change_asks_about_one_call_and_those_whom_it_serves() {
    let ids: [fn(u16) -> Option<u16>; 4] = [|_| None, Some, |_| Some(0), |_| Some(CROWD)];
    for (id, is_shared_first) in ids.into_iter().flat_map(|id| [(id, true), (id, false)]) {
        let mut crowd = Crowd { server: Server::default(), id };
        // Each holds two millionths of a token already, if it holds at all. Nothing else is left.
        let mut left_micro = 20_000 * MILLION;
        for id in (0..CROWD).filter(|number| id(*number) == Some(*number)) {
            assert!(crowd.server.world.take(0, &crowd.part(None, id, 2), 1 << 50));
            left_micro -= 2;
        }
        let shared = crowd.part(None, 0, MILLION);
        crowd.server.world.operate(0, &shared, Operation::Charge { amount_micro: left_micro });
        (0..CROWD).for_each(|number| crowd.enter(number, is_shared_first));
        assert!(crowd.asked() <= usize::from(CROWD) * FOR_A_CALL);
        assert_eq!((crowd.give(0), crowd.asked() <= FOR_A_CHANGE), (0, true));
        // All of them still lack what they want after a hold has shrunk.
        if let Some(id) = id(0) {
            crowd.server.world.take(0, &crowd.part(None, 0, 1), 1 << 50);
            crowd.server.queue.mark_hold(0, b"shared", &id.to_be_bytes());
            assert_eq!((crowd.give(0), crowd.asked() <= FOR_A_CHANGE), (0, true));
        }
        let seen = crowd.server.world.seen(0, b"shared");
        assert!(crowd.server.queue.wanted_before(0, b"shared", &seen, &shared.limit, MILLION).is_some());
        for tokens in [1, 3] {
            let served = crowd.give(tokens * MILLION);
            assert!(served > 0 || crowd.server.queue.count() == 0);
            assert!(crowd.asked() <= FOR_A_CHANGE + served * FOR_A_CALL, "to serve {served}");
        }
    }
}
