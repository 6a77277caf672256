//! Holds beside a naive oracle that sweeps: it walks through every end in turn, and has neither order nor sums.

use proptest::prelude::*;
use tokenbucket::bucket::{
    Bucket, Change, Decision, Holding, Limit, Operation, Outcome, Returns, MAX_TIME_US,
};
use tokenbucket::holds::{Hold, Holds};
use tokenbucket::number::{MAX_MICRO, MICRO_PER_TOKEN};
use tokenbucket::rate::Rate;

const START_US: i64 = 1_767_225_600_000_000;

fn id(number: u32) -> Vec<u8> {
    // Long enough and alike, as names in use are.
    format!("request:{number}").into_bytes()
}

fn hold(number: u32, amount_micro: i64, ends_at_us: i64) -> Hold {
    Hold::checked(&id(number), amount_micro, ends_at_us).unwrap()
}

/// A list, searched from end to end.
#[derive(Clone, Default)]
struct List(Vec<Hold>);

impl List {
    fn remove(&mut self, id: &[u8]) -> Option<Hold> {
        let position = self.0.iter().position(|hold| *hold.id == *id)?;
        Some(self.0.remove(position))
    }

    fn set(&mut self, hold: Hold) {
        self.remove(&hold.id);
        self.0.push(hold);
        self.0.sort_by(|one, other| (one.ends_at_us, &one.id).cmp(&(other.ends_at_us, &other.id)));
    }

    fn drop_ended(&mut self, until_us: i64) -> usize {
        let before = self.0.len();
        self.0.retain(|hold| hold.ends_at_us > until_us);
        before - self.0.len()
    }

    fn sum(&self, until_us: i64) -> i128 {
        self.0
            .iter()
            .filter(|hold| hold.ends_at_us <= until_us)
            .map(|hold| i128::from(hold.amount_micro))
            .sum()
    }

    /// Level of a bucket without a capacity.
    fn level(&self, rate: &Rate, bucket: Bucket, counted_us: i64, at_us: i64) -> i128 {
        let flown = rate.flow(bucket.refilled_at_us, at_us).micro;
        i128::from(bucket.level_micro) + i128::from(flown) + self.sum(at_us)
            - self.sum(counted_us).min(self.sum(at_us))
    }
}

#[derive(Clone, Debug)]
enum Change1 {
    Set(u32, i64, i64),
    Remove(u32),
    DropEnded(i64),
}

fn change(ids: u32) -> impl Strategy<Value = Change1> {
    prop_oneof![
        8 => (0..ids, amounts(), ends()).prop_map(|(id, amount, end)| Change1::Set(id, amount, end)),
        3 => (0..ids).prop_map(Change1::Remove),
        1 => ends().prop_map(Change1::DropEnded),
    ]
}

fn amounts() -> impl Strategy<Value = i64> {
    prop_oneof![Just(1), 1..1000i64, 1..MAX_MICRO, Just(MAX_MICRO)]
}

/// Many of them at the same moment.
fn ends() -> impl Strategy<Value = i64> {
    prop_oneof![0..20i64, 0..1000i64, Just(500), Just(MAX_TIME_US)]
}

fn build(changes: &[Change1]) -> (Holds, List) {
    let (mut holds, mut list) = (Holds::default(), List::default());
    for change in changes {
        match *change {
            Change1::Set(number, amount, end) => {
                holds.set(hold(number, amount, end));
                list.set(hold(number, amount, end));
            }
            Change1::Remove(number) => assert_eq!(holds.remove(&id(number)), list.remove(&id(number))),
            Change1::DropEnded(until_us) => assert_eq!(holds.drop_ended(until_us), list.drop_ended(until_us)),
        }
    }
    (holds, list)
}

fn assert_same(holds: &Holds, list: &List) {
    assert!(holds.iter().eq(&list.0));
    assert_eq!((holds.len(), holds.is_empty()), (list.0.len(), list.0.is_empty()));
    assert_eq!(holds.last_end_us(), list.0.last().map_or(i64::MIN, |last| last.ends_at_us));
    for hold in &list.0 {
        assert_eq!(holds.get(&hold.id), Some(hold));
    }
    for at_us in [0, 1, 7, 250, 499, 500, 999, MAX_TIME_US] {
        assert_eq!(i128::from(holds.ended_micro(at_us)), list.sum(at_us).min(1 << 61));
        assert_eq!(holds.outstanding(at_us), list.0.iter().filter(|hold| hold.ends_at_us > at_us).count());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn they_are_what_a_sorted_list_is(changes in prop::collection::vec(change(400), 0..1200)) {
        let (holds, list) = build(&changes);
        assert_same(&holds, &list);
        let (read, is_whole) = Holds::decode(&holds.encode());
        prop_assert!(is_whole);
        assert_same(&read, &list);
        prop_assert_eq!(read.encode(), holds.encode());
    }

    #[test]
    fn the_moment_at_which_a_level_is_reached_is_the_first(
        changes in prop::collection::vec(change(300), 0..600),
        rate in prop_oneof![Just("1"), Just("1e6"), Just("0.3"), Just("1e12")],
        is_pool in any::<bool>(),
        level_micro in prop_oneof![-MAX_MICRO..MAX_MICRO, -2000..2000i64],
        refilled_at_us in 0..600i64,
        counted in prop::option::of(0..600i64),
        wanted in prop_oneof![0..MAX_MICRO, 0..3000i64],
    ) {
        let (holds, list) = build(&changes);
        let rate = if is_pool { Rate::NOTHING } else { Rate::parse(rate.as_bytes()).unwrap() };
        let bucket = Bucket { level_micro, refilled_at_us };
        // What counts is from the present on, which no refill is behind.
        let now_us = counted.unwrap_or(0).max(refilled_at_us);
        let counted_us = counted.map_or(i64::MIN, |_| now_us);
        let told_us = holds.reaches_at_us(&rate, bucket, counted_us, wanted).max(now_us);
        let level = |at_us| list.level(&rate, bucket, counted_us, at_us);
        if told_us <= MAX_TIME_US {
            prop_assert!(level(told_us) >= wanted.into());
        }
        if told_us > now_us {
            prop_assert!(level(told_us.min(MAX_TIME_US + 1) - 1) < wanted.into());
        }
    }

    #[test]
    fn bytes_from_outside_never_make_holds_that_cannot_be(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (holds, _) = Holds::decode(&bytes);
        for hold in holds.iter() {
            prop_assert!(Hold::checked(&hold.id, hold.amount_micro, hold.ends_at_us).is_some());
        }
        prop_assert!(Holds::decode(&holds.encode()).1);
    }
}

/// A bucket that is swept: at each end in turn it refills and takes back what was held.
#[derive(Clone)]
struct Swept {
    capacity_micro: i64,
    per_us: i64,
    level_micro: i64,
    at_us: i64,
    list: List,
}

impl Swept {
    fn flow_to(&mut self, at_us: i64) {
        let elapsed_us = (at_us - self.at_us).max(0);
        self.level_micro =
            self.level_micro.saturating_add(elapsed_us.saturating_mul(self.per_us)).min(self.capacity_micro);
        self.at_us = self.at_us.max(at_us);
    }

    fn sweep(&mut self, now_us: i64) {
        while let Some(first) = self.list.0.first().cloned().filter(|first| first.ends_at_us <= now_us) {
            self.flow_to(first.ends_at_us);
            self.level_micro = (self.level_micro + first.amount_micro).min(self.capacity_micro);
            self.list.0.remove(0);
        }
        self.flow_to(now_us);
    }

    fn held(&self, id: &[u8]) -> i64 {
        self.list.0.iter().find(|hold| *hold.id == *id).map_or(0, |hold| hold.amount_micro)
    }

    fn hold(&mut self, id: &[u8], amount_micro: i64, ends_at_us: i64, now_us: i64) -> bool {
        self.sweep(now_us);
        let lacking = amount_micro - self.held(id);
        if lacking > 0 && lacking > self.level_micro {
            return false;
        }
        self.level_micro = (self.level_micro - lacking).min(self.capacity_micro);
        self.list.remove(id);
        if amount_micro > 0 {
            self.list.set(Hold::checked(id, amount_micro, ends_at_us).unwrap());
        }
        true
    }

    fn take(&mut self, cost_micro: i64, now_us: i64) -> bool {
        self.sweep(now_us);
        let is_allowed = cost_micro <= self.level_micro;
        self.level_micro -= if is_allowed { cost_micro } else { 0 };
        is_allowed
    }

    fn settle(&mut self, id: &[u8], used_micro: i64, now_us: i64) -> bool {
        self.sweep(now_us);
        let Some(own) = self.list.remove(id) else {
            return false;
        };
        self.level_micro = (self.level_micro + own.amount_micro - used_micro).min(self.capacity_micro);
        true
    }
}

/// The module's bucket as commands drive it.
struct Kept {
    limit: Limit,
    stored: Option<Bucket>,
    holds: Holds,
}

impl Kept {
    fn store(&mut self, change: Change, now_us: i64) {
        match change {
            Change::Keep => return,
            Change::Store { bucket, .. } => self.stored = Some(bucket),
            Change::Clear => self.stored = None,
        }
        self.holds.drop_ended(now_us);
        assert!(self.stored.is_some() || self.holds.is_empty());
    }

    fn carry_out(&mut self, holding: Holding, id: &[u8], hold: Option<Hold>, now_us: i64) -> Outcome {
        match holding {
            Holding::Kept(outcome) => {
                self.store(outcome.change, now_us);
                outcome
            }
            Holding::Moved { bucket, taken_micro } => {
                self.holds.drop_ended(now_us);
                self.holds.remove(id);
                hold.into_iter().for_each(|hold| self.holds.set(hold));
                let outcome = self.limit.moved(bucket, &self.holds, taken_micro, now_us);
                self.store(outcome.change, now_us);
                outcome
            }
        }
    }

    fn hold(&mut self, id: &[u8], amount_micro: i64, ends_at_us: i64, now_us: i64) -> Decision {
        let holding = self.limit.hold(self.stored, &mut self.holds, id, amount_micro, now_us);
        self.carry_out(holding, id, Hold::checked(id, amount_micro, ends_at_us), now_us).decision
    }

    fn settle(&mut self, id: &[u8], used_micro: i64, now_us: i64) -> Decision {
        let holding = self.limit.settle(self.stored, &self.holds, id, used_micro, now_us).unwrap();
        self.carry_out(holding, id, None, now_us).decision
    }

    fn take(&mut self, cost_micro: i64, now_us: i64) -> Decision {
        let take = Operation::Take { cost_micro };
        let outcome = self.limit.decide_with(self.stored, &self.holds, take, now_us).unwrap();
        self.store(outcome.change, now_us);
        outcome.decision
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Hold(u32, i64, i64),
    Settle(u32, i64),
    Take(i64),
    /// The limit changes.
    Capacity(i64),
}

const TOKEN: i64 = MICRO_PER_TOKEN;

fn step() -> impl Strategy<Value = Step> {
    let micro = || prop_oneof![0..12 * TOKEN, (0..12i64).prop_map(|tokens| tokens * TOKEN)];
    prop_oneof![
        3 => prop_oneof![0..10_000_000i64, (0..10_000i64).prop_map(|ms| ms * 1000)].prop_map(Step::Wait),
        5 => (0..12u32, micro(), 1..20_000i64).prop_map(|(id, amount, ttl_ms)| Step::Hold(id, amount, ttl_ms)),
        2 => (0..12u32, micro()).prop_map(|(id, used)| Step::Settle(id, used)),
        1 => micro().prop_map(Step::Take),
        1 => (1..14i64).prop_map(|tokens| Step::Capacity(tokens * TOKEN)),
    ]
}

/// The told wait is right: the same call then is allowed, and one millisecond earlier it is not.
fn assert_honest(told: Decision, swept: &Swept, now_us: i64, call: impl Fn(&mut Swept, i64) -> bool) {
    let is_allowed_at = |at_us| call(&mut swept.clone(), at_us);
    if told.retry_after_ms < 0 {
        // No end of a hold is a moment at which it could be, nor is any later one.
        let ends = swept.list.0.iter().map(|hold| (hold.ends_at_us + 999) / 1000 * 1000);
        for at_us in ends.flat_map(|end_us| [end_us - 1000, end_us]).chain([now_us + 1_000_000_000]) {
            let on_grid_us = now_us + (at_us - now_us) / 1000 * 1000;
            assert!(
                on_grid_us < now_us || !is_allowed_at(on_grid_us),
                "allowed at {on_grid_us} in spite of {told:?}"
            );
        }
        return;
    }
    let then_us = now_us + told.retry_after_ms * 1000;
    assert!(is_allowed_at(then_us), "{told:?}");
    assert!(!is_allowed_at(then_us - 1000), "{told:?}");
}

fn assert_reset(told: Decision, swept: &Swept, now_us: i64) {
    let is_full_at = |at_us| {
        let mut then = swept.clone();
        then.sweep(at_us);
        then.level_micro == then.capacity_micro
    };
    let longest_us = 1 << 60;
    let then_us = now_us + told.reset_after_ms.saturating_mul(1000);
    assert!(then_us > longest_us || is_full_at(then_us), "{told:?}");
    assert!(told.reset_after_ms == 0 || !is_full_at(then_us.min(longest_us) - 1000), "{told:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn buckets_with_holds_do_what_a_swept_one_does(
        steps in prop::collection::vec(step(), 1..60),
        per_us in 0..3i64,
    ) {
        let capacity_micro = 10 * TOKEN;
        let limit = |capacity_micro| match per_us {
            0 => Limit::pool(capacity_micro),
            rate => Limit::new(capacity_micro, Rate::per_seconds(rate.unsigned_abs(), 1).unwrap()).unwrap(),
        };
        let mut now_us = START_US;
        let mut kept = Kept { limit: limit(capacity_micro), stored: None, holds: Holds::default() };
        let mut swept = Swept { capacity_micro, per_us, level_micro: capacity_micro, at_us: now_us, list: List::default() };
        for step in steps {
            let before = Swept { list: swept.list.clone(), ..swept };
            let told = match step {
                Step::Wait(us) => {
                    now_us += us;
                    continue;
                }
                Step::Capacity(capacity_micro) => {
                    // What flowed until the last write is cut off at the capacity of that time; what flows since, at the
                    // new one. The oracle knows no last write: it changes limits at a write only.
                    if kept.stored.is_some() && kept.take(0, now_us).allowed == 1 && per_us == 0 {
                        swept.sweep(now_us);
                        kept.hold(b"touch", 0, now_us, now_us);
                        kept.stored = Some(Bucket { level_micro: swept.level_micro, refilled_at_us: now_us });
                        kept.holds.drop_ended(now_us);
                        kept.limit = limit(capacity_micro);
                        swept.capacity_micro = capacity_micro;
                        swept.level_micro = swept.level_micro.min(capacity_micro);
                    }
                    continue;
                }
                Step::Hold(number, amount, ttl_ms) => {
                    let ends_at_us = now_us + ttl_ms * 1000;
                    let told = kept.hold(&id(number), amount, ends_at_us, now_us);
                    let is_allowed = swept.hold(&id(number), amount, ends_at_us, now_us);
                    prop_assert_eq!(told.allowed == 1, is_allowed);
                    if !is_allowed {
                        assert_honest(told, &before, now_us, |then, at_us| then.hold(&id(number), amount, at_us + 1, at_us));
                    }
                    told
                }
                Step::Settle(number, used) => {
                    let used = if per_us == 0 { 0 } else { used };
                    let told = kept.settle(&id(number), used, now_us);
                    prop_assert_eq!(told.allowed == 1, swept.settle(&id(number), used, now_us));
                    told
                }
                Step::Take(cost) => {
                    let told = kept.take(cost, now_us);
                    let is_allowed = swept.take(cost, now_us);
                    prop_assert_eq!(told.allowed == 1, is_allowed);
                    if !is_allowed {
                        assert_honest(told, &before, now_us, |then, at_us| then.take(cost, at_us));
                    }
                    told
                }
            };
            prop_assert_eq!(told.remaining, swept.level_micro.div_euclid(TOKEN), "{:?}", told);
            assert_reset(told, &swept, now_us);
        }
    }
}
