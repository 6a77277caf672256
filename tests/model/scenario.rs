//! Limits, calls and clocks for the properties: any that a client or a server can bring about.

use super::exact::operation::LONGEST_WAIT_MS;
use super::exact::{number, Bucket, Flow, Limit, Operation, MILLION};
use proptest::prelude::*;
use proptest::string::string_regex;
use std::fmt::Debug;
use tokenbucket::bucket::MAX_TIME_US;
use tokenbucket::number::{MAX_MICRO, MAX_TOKENS};
use tokenbucket::rate::RateError;

/// Numbers of all sizes from 0 to `most`.
pub fn spread(most: i64) -> impl Strategy<Value = i64> {
    let bits = 64 - most.leading_zeros();
    (0..=bits, any::<u64>()).prop_map(move |(bits, random)| {
        let mask = 1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1);
        i64::try_from(random & mask).unwrap_or(most).min(most)
    })
}

/// Whole numbers of tokens per second, in several spellings.
pub fn whole_rates() -> impl Strategy<Value = String> {
    (spread(MAX_TOKENS), 0..4).prop_map(|(count, spelling)| match (spelling, count.max(1)) {
        (0, count) if count <= MAX_TOKENS / 60 => format!("{}/m", count * 60),
        (1, count) if count % 1000 == 0 => format!("{}/ms", count / 1000),
        (2, count) if count <= MAX_TOKENS / 10 => format!("{}/10s", count * 10),
        (_, count) => count.to_string(),
    })
}

/// Rates by the calendar.
pub fn calendar_rates() -> impl Strategy<Value = String> {
    let usual =
        proptest::sample::select(vec!["1000@d", "10@mo", "5@10s", "3@w", "100@15m", "1@y", "1000@d+09:00"]);
    let period = "([1-9][0-9]{0,4}(ms|s|m|h|d)|(ms|s|m|h|d|w|mo|y)|(w|mo|y))";
    let behind = format!("(|e-6|\\.5)@{period}(|[+-](0[0-9]|1[0-3]):[0-5][0-9])");
    let any = (spread(MAX_TOKENS), string_regex(&behind).unwrap());
    let any = any.prop_map(|(count, behind)| format!("{count}{behind}"));
    prop_oneof![1 => usual.prop_map(str::to_owned), 3 => any].prop_map(|words| {
        match Flow::read(words.as_bytes()) {
            Ok(_) => words,
            Err(_) => "1@d-14:00".to_owned(),
        }
    })
}

/// All rates; some with more decimal places than fit a machine word.
pub fn rates() -> impl Strategy<Value = String> {
    let usual = proptest::sample::select(vec!["100/m", "1/250ms", "5000/h", "37/10s", "1/d", "7/3s"]);
    let size = || spread(MAX_TOKENS - 1).prop_map(|size| size.max(1));
    let any = (size(), "(||||||e1?[0-9])/", size(), "(||||||e1?[0-9]|e-[1-9])(ms|s|m|h|d)");
    let any = any.prop_map(|(count, up, number, down)| format!("{count}{up}{number}{down}"));
    let steady = prop_oneof![1 => usual.prop_map(str::to_owned), 3 => any].prop_map(|words| {
        let is_fast = || words.len() % 2 == 0;
        match number::rate(words.as_bytes()) {
            Err(RateError::OutOfRange) if is_fast() => "1e12".to_owned(),
            Err(RateError::OutOfRange) => "1/36525d".to_owned(),
            _ => words,
        }
    });
    prop_oneof![3 => steady, 1 => calendar_rates()]
}

/// At any capacity in micro-tokens: usual ones, and all others.
pub fn limits(rates: impl Strategy<Value = String>) -> impl Strategy<Value = Limit> {
    let capacities = prop_oneof![
        4 => (1..=20i64).prop_map(|tokens| tokens * MILLION),
        4 => spread(MAX_MICRO),
        1 => proptest::sample::select(vec![0, 1, MILLION - 1, MILLION + 1, MAX_MICRO]),
    ];
    (capacities, rates).prop_map(|(capacity_micro, rate)| Limit::of_micro(capacity_micro, &rate))
}

/// An amount that means something to the limit it meets: thousandths of its capacity, and micro-tokens beside that.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    thousandths: i64,
    micro: i64,
}

impl Amount {
    pub fn micro(self, limit: &Limit) -> i64 {
        let part = i128::from(limit.capacity_micro()) * i128::from(self.thousandths) / 1000;
        (part as i64 + self.micro).clamp(0, MAX_MICRO)
    }
}

pub fn amounts() -> impl Strategy<Value = Amount> {
    let parts = prop_oneof![
        2 => (Just(0), spread(MAX_MICRO)),
        4 => (Just(0), (0..=3i64).prop_map(|tokens| tokens * MILLION)),
        4 => (0..=1000i64, Just(0)),
        1 => (Just(1000), -1..=1i64),
    ];
    parts.prop_map(|(thousandths, micro)| Amount { thousandths, micro })
}

/// A call, before it knows its limit.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    Take(Amount),
    TakeUpTo(i64),
    /// As patiently as until a tick of the clock.
    Reserve(Amount, Tick),
    Charge(Amount),
    Give(Amount),
}

impl Wish {
    pub fn of(self, limit: &Limit, told_ms: i64) -> Operation {
        match self {
            Self::Take(cost) => Operation::Take { cost_micro: cost.micro(limit) },
            Self::TakeUpTo(max_tokens) => Operation::TakeUpTo { max_tokens },
            Self::Reserve(cost, patience) => {
                let max_wait_ms = (patience.after(0, limit, told_ms) / 1000).min(LONGEST_WAIT_MS);
                Operation::Reserve { cost_micro: cost.micro(limit), max_wait_ms }
            }
            Self::Charge(amount) => Operation::Charge { amount_micro: amount.micro(limit) },
            Self::Give(amount) => Operation::Give { amount_micro: amount.micro(limit) },
        }
    }
}

pub fn reserves() -> impl Strategy<Value = Wish> {
    let patience = prop_oneof![
        spread(LONGEST_WAIT_MS).prop_map(|ms| Tick::By(ms * 1000)),
        (0..=2000i64).prop_map(Tick::Part),
        Just(Tick::AsTold(0)),
    ];
    (amounts(), patience).prop_map(|(amount, patience)| Wish::Reserve(amount, patience))
}

/// All that can be wanted of a bucket.
pub fn wishes() -> impl Strategy<Value = Wish> {
    let up_to = prop_oneof![1..=5i64, spread(MAX_TOKENS)];
    prop_oneof![
        4 => amounts().prop_map(Wish::Take),
        2 => up_to.prop_map(|max_tokens| Wish::TakeUpTo(max_tokens.max(1))),
        2 => reserves(),
        1 => amounts().prop_map(Wish::Charge),
        2 => amounts().prop_map(Wish::Give),
    ]
}

/// What the clock does between two calls.
#[derive(Clone, Copy, Debug)]
pub enum Tick {
    /// Microseconds, back if negative.
    By(i64),
    /// Thousandths of the time from empty to full.
    Part(i64),
    /// What the last reply told to wait, or next to it, in milliseconds.
    AsTold(i64),
}

impl Tick {
    pub fn after(self, now_us: i64, limit: &Limit, told_ms: i64) -> i64 {
        let later = |us| now_us.saturating_add(us);
        let next_us = match self {
            Self::By(us) => later(us),
            Self::Part(part) => later(limit.refill_us() / 1000 * part),
            Self::AsTold(off_by_ms) => later((told_ms + off_by_ms).max(0).saturating_mul(1000)),
        };
        next_us.clamp(0, MAX_TIME_US)
    }
}

pub fn ticks() -> impl Strategy<Value = Tick> {
    prop_oneof![
        2 => Just(Tick::By(0)),
        // Replies are rounded to milliseconds: those are where they may go wrong.
        4 => spread(100_000).prop_map(|ms| Tick::By(ms * 1000)),
        4 => spread(10_000_000).prop_map(Tick::By),
        1 => spread(MAX_TIME_US).prop_map(Tick::By),
        4 => (0..=1500i64).prop_map(Tick::Part),
        3 => (-1..=1i64).prop_map(Tick::AsTold),
    ]
}

/// The same on a clock that is set back now and then.
pub fn unsteady_ticks() -> impl Strategy<Value = Tick> {
    prop_oneof![
        6 => ticks(),
        1 => spread(MAX_TIME_US).prop_map(|us| Tick::By(-us)),
        1 => spread(10_000).prop_map(|us| Tick::By(-us)),
    ]
}

/// Now, or at either end of time.
pub fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 1_700_000_000_000_000..1_700_000_001_000_000i64,
        1 => Just(0),
        1 => spread(1_000_000_000).prop_map(|us| MAX_TIME_US - us),
    ]
}

/// What the clock does before a call of a sequence, what is wanted then, and which of the sequence's limits comes with
/// the call.
pub type Step<W> = (Tick, W, prop::sample::Index);

pub fn steps<W: Debug + Clone>(
    ticks: impl Strategy<Value = Tick>,
    wishes: impl Strategy<Value = W>,
) -> impl Strategy<Value = Vec<Step<W>>> {
    prop::collection::vec((ticks, wishes, any::<prop::sample::Index>()), 1..40)
}

/// Walks a sequence: at each step, the limit, what is wanted, the time, and what was told to wait last, in milliseconds;
/// back comes what is told now.
pub fn walk<W: Clone>(
    limits: &[Limit],
    start_us: i64,
    steps: &[Step<W>],
    mut call: impl FnMut(&Limit, W, i64, i64) -> i64,
) {
    let (mut now_us, mut told_ms) = (start_us, 0);
    for (tick, wish, limit) in steps {
        let limit = limit.get(limits);
        now_us = tick.after(now_us, limit, told_ms);
        told_ms = call(limit, wish.clone(), now_us, told_ms);
    }
}

/// A limit, any state that a bucket may be in under it, and a time to look at that.
pub fn sights(
    rates: impl Strategy<Value = String>,
    ticks: impl Strategy<Value = Tick>,
) -> impl Strategy<Value = (Limit, Option<Bucket>, i64)> {
    let levels = prop::option::weighted(0.9, (amounts(), prop_oneof![7 => Just(1), 3 => Just(-1)]));
    (limits(rates), levels, starts(), ticks).prop_map(|(limit, level, refilled_at_us, tick)| {
        let level_micro = level.map(|(amount, sign)| sign * amount.micro(&limit));
        let now_us = tick.after(refilled_at_us, &limit, 0);
        (limit, level_micro.map(|level_micro| Bucket { level_micro, refilled_at_us }), now_us)
    })
}
