//! Limits, calls and clocks for the properties: any that a client or a server can bring about.

use super::oracle::bucket::TOKEN;
use super::oracle::module::{Found, Worded, CENTURY_US};
use super::oracle::rational::{integer, Exact};
use num_traits::Pow;
use proptest::prelude::*;
use tokenbucket::bucket::{Bucket, Limit, Operation, MAX_TIME_US};
use tokenbucket::number::{MAX_MICRO, MAX_TOKENS};

/// The longest wait that a caller can accept, in milliseconds.
pub const MAX_WAIT_MS: i64 = CENTURY_US / 1000;

/// Units of a period as a client writes them, and in microseconds.
const UNITS: [(&str, i64); 5] =
    [("ms", 1000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

/// Numbers of all sizes from 0 to `most`.
pub fn spread(most: i64) -> impl Strategy<Value = i64> {
    let bits = 64 - most.leading_zeros();
    (0..=bits, any::<u64>()).prop_map(move |(bits, random)| {
        let mask = 1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1);
        i64::try_from(random & mask).unwrap_or(most).min(most)
    })
}

/// Whole numbers of tokens per second, in several spellings.
pub fn whole_rates() -> impl Strategy<Value = (String, Exact)> {
    (spread(MAX_TOKENS), 0..4).prop_map(|(count, spelling)| {
        let count = count.max(1);
        let words = match spelling {
            0 if count <= MAX_TOKENS / 60 => format!("{}/m", count * 60),
            1 if count % 1000 == 0 => format!("{}/ms", count / 1000),
            2 if count <= MAX_TOKENS / 10 => format!("{}/10s", count * 10),
            _ => count.to_string(),
        };
        (words, integer(count))
    })
}

/// All rates, `count/period`; some with more decimal places than fit a machine word.
pub fn rates() -> impl Strategy<Value = (String, Exact)> {
    let usual = [(100, 1, 2), (1, 250, 0), (5000, 1, 3), (37, 10, 1), (1, 1, 4), (7, 3, 1)];
    let usual =
        proptest::sample::select(usual.to_vec()).prop_map(|(count, number, unit)| (count, 0, number, unit));
    let power = prop_oneof![4 => Just(0), 1 => -20..=20i32];
    let any = (spread(MAX_TOKENS - 1), power, spread(MAX_TOKENS - 1), 0..UNITS.len());
    prop_oneof![1 => usual, 3 => any].prop_map(|(count, power, number, unit)| {
        let (count, number, (unit, unit_us)) = (count.max(1), number.max(1), UNITS[unit]);
        let factor: Exact = Pow::pow(integer(10), power);
        let rate = integer(count) * integer(TOKEN) * factor / (integer(number) * integer(unit_us));
        let slowest = integer(TOKEN) / integer(CENTURY_US);
        if rate < slowest {
            ("1/36525d".to_owned(), slowest)
        } else if rate > integer(MAX_TOKENS) {
            ("1e12".to_owned(), integer(MAX_TOKENS))
        } else if power == 0 {
            (format!("{count}/{number}{unit}"), rate)
        } else {
            (format!("{count}e{power}/{number}{unit}"), rate)
        }
    })
}

/// Capacities in micro-tokens: usual ones, and all others.
fn capacities() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => (1..=20i64).prop_map(|tokens| tokens * TOKEN),
        4 => spread(MAX_MICRO),
        1 => proptest::sample::select(vec![0, 1, TOKEN - 1, TOKEN + 1, MAX_MICRO]),
    ]
}

pub fn limits(rates: impl Strategy<Value = (String, Exact)>) -> impl Strategy<Value = Worded> {
    (capacities(), rates).prop_map(|(capacity, rate)| Worded::new(capacity, &rate))
}

/// An amount that means something to the limit it meets.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    Micro(i64),
    Tokens(i64),
    /// Thousandths of the capacity.
    Part(i64),
    /// The capacity, or next to it.
    All(i64),
}

impl Amount {
    pub fn micro(self, limit: &Limit) -> i64 {
        let capacity = limit.capacity_micro();
        let micro = match self {
            Self::Micro(micro) => micro,
            Self::Tokens(tokens) => tokens * TOKEN,
            Self::Part(part) => capacity / 1000 * part + capacity % 1000 * part / 1000,
            Self::All(off_by) => capacity + off_by,
        };
        micro.clamp(0, MAX_MICRO)
    }
}

pub fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        2 => spread(MAX_MICRO).prop_map(Amount::Micro),
        4 => (0..=3i64).prop_map(Amount::Tokens),
        4 => (0..=1000i64).prop_map(Amount::Part),
        1 => (-1..=1i64).prop_map(Amount::All),
    ]
}

/// A call, before it knows its limit.
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    Take(Amount),
    TakeUpTo(i64),
    Reserve(Amount, Patience),
    Charge(Amount),
    Give(Amount),
}

/// How long a reserver would wait.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    Ms(i64),
    /// Thousandths of the time from empty to full.
    Part(i64),
    /// As long as it was told last.
    AsTold,
}

impl Wish {
    pub fn of(self, limit: &Worded, told_ms: i64) -> Operation {
        let micro = |amount: Amount| amount.micro(&limit.limit);
        match self {
            Self::Take(amount) => Operation::Take { cost_micro: micro(amount) },
            Self::TakeUpTo(max_tokens) => Operation::TakeUpTo { max_tokens },
            Self::Reserve(amount, patience) => {
                let max_wait_ms = match patience {
                    Patience::Ms(wait_ms) => wait_ms,
                    Patience::Part(part) => limit.refill_us() / 1_000_000 * part,
                    Patience::AsTold => told_ms,
                };
                Operation::Reserve {
                    cost_micro: micro(amount),
                    max_wait_ms: max_wait_ms.clamp(0, MAX_WAIT_MS),
                }
            }
            Self::Charge(amount) => Operation::Charge { amount_micro: micro(amount) },
            Self::Give(amount) => Operation::Give { amount_micro: micro(amount) },
        }
    }
}

/// What an operation would take or give, in micro-tokens; at most, where that depends.
pub fn amount_micro(operation: Operation) -> i64 {
    match operation {
        Operation::Take { cost_micro } | Operation::Reserve { cost_micro, .. } => cost_micro,
        Operation::TakeUpTo { max_tokens } => max_tokens.saturating_mul(TOKEN),
        Operation::Charge { amount_micro } | Operation::Give { amount_micro } => amount_micro,
    }
}

pub fn takes() -> impl Strategy<Value = Wish> {
    amounts().prop_map(Wish::Take)
}

pub fn takes_up_to() -> impl Strategy<Value = Wish> {
    prop_oneof![1..=5i64, spread(MAX_TOKENS)].prop_map(|max_tokens| Wish::TakeUpTo(max_tokens.max(1)))
}

pub fn reserves() -> impl Strategy<Value = Wish> {
    let patience = prop_oneof![
        spread(MAX_WAIT_MS).prop_map(Patience::Ms),
        (0..=2000i64).prop_map(Patience::Part),
        Just(Patience::AsTold),
    ];
    (amounts(), patience).prop_map(|(amount, patience)| Wish::Reserve(amount, patience))
}

pub fn gives() -> impl Strategy<Value = Wish> {
    amounts().prop_map(Wish::Give)
}

/// All that can be wanted of a bucket.
pub fn wishes() -> impl Strategy<Value = Wish> {
    prop_oneof![
        4 => takes(),
        2 => takes_up_to(),
        2 => reserves(),
        1 => amounts().prop_map(Wish::Charge),
        2 => gives(),
    ]
}

/// What the clock does between two calls.
#[derive(Clone, Copy, Debug)]
pub enum Tick {
    Forward(i64),
    Back(i64),
    /// Thousandths of the time from empty to full.
    Part(i64),
    /// What the last reply told to wait, or next to it, in milliseconds.
    AsTold(i64),
}

pub fn ticks() -> impl Strategy<Value = Tick> {
    prop_oneof![
        2 => Just(Tick::Forward(0)),
        // Replies are rounded to milliseconds: those are where they may go wrong.
        4 => spread(100_000).prop_map(|ms| Tick::Forward(ms * 1000)),
        4 => spread(10_000_000).prop_map(Tick::Forward),
        1 => spread(MAX_TIME_US).prop_map(Tick::Forward),
        4 => (0..=1500i64).prop_map(Tick::Part),
        3 => (-1..=1i64).prop_map(Tick::AsTold),
    ]
}

/// The same on a clock that is set back now and then.
pub fn unsteady_ticks() -> impl Strategy<Value = Tick> {
    prop_oneof![6 => ticks(), 1 => spread(MAX_TIME_US).prop_map(Tick::Back), 1 => spread(10_000).prop_map(Tick::Back)]
}

/// Now, or at either end of time.
pub fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 1_700_000_000_000_000..1_700_000_001_000_000i64,
        1 => Just(0),
        1 => spread(1_000_000_000).prop_map(|us| MAX_TIME_US - us),
    ]
}

impl Tick {
    pub fn after(self, now_us: i64, limit: &Worded, told_ms: i64) -> i64 {
        let next_us = match self {
            Self::Forward(us) => now_us.saturating_add(us),
            Self::Back(us) => now_us - us,
            Self::Part(part) => now_us.saturating_add(limit.refill_us() / 1000 * part),
            Self::AsTold(off_by_ms) => {
                now_us.saturating_add((told_ms + off_by_ms).max(0).saturating_mul(1000))
            }
        };
        next_us.clamp(0, MAX_TIME_US)
    }
}

/// One call of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub tick: Tick,
    pub wish: Wish,
    /// Which of the sequence's limits comes with the call.
    pub limit: prop::sample::Index,
}

pub fn steps(
    ticks: impl Strategy<Value = Tick>,
    wishes: impl Strategy<Value = Wish>,
) -> impl Strategy<Value = Vec<Step>> {
    let step = (ticks, wishes, any::<prop::sample::Index>());
    prop::collection::vec(step.prop_map(|(tick, wish, limit)| Step { tick, wish, limit }), 1..40)
}

/// Any state that a bucket may be in, and the time that has passed since.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    level: Option<Amount>,
    in_debt: bool,
    refilled_at_us: i64,
    tick: Tick,
}

impl Sight {
    pub fn of(self, limit: &Worded) -> Found {
        let stored = self.level.map(|level| {
            let level = level.micro(&limit.limit);
            let level_micro = if self.in_debt { -level } else { level };
            Bucket { level_micro, refilled_at_us: self.refilled_at_us }
        });
        Found { stored, now_us: self.tick.after(self.refilled_at_us, limit, 0) }
    }
}

pub fn sights(ticks: impl Strategy<Value = Tick>) -> impl Strategy<Value = Sight> {
    (prop::option::weighted(0.9, amounts()), prop::bool::weighted(0.3), starts(), ticks)
        .prop_map(|(level, in_debt, refilled_at_us, tick)| Sight { level, in_debt, refilled_at_us, tick })
}
