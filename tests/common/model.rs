//! The same bucket in exact arithmetic, by which decisions are judged.
//!
//! It knows neither micro-tokens nor how the module stores anything: tokens and rates are fractions of whole
//! numbers, and what flows in is multiplied out. The module may hold less than the model, by what SPEC allows it
//! to lose (`slack`), and never more.

use super::Decision;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{FromPrimitive, Signed, ToPrimitive, Zero};

/// Tokens, or tokens per microsecond.
pub type Exact = BigRational;

/// Microseconds in a second, and micro-tokens in a token.
const MILLION: i64 = 1_000_000;

/// A whole number.
pub fn whole(number: i64) -> Exact {
    Exact::from_integer(BigInt::from(number))
}

/// `numerator / denominator`.
pub fn fraction(numerator: i64, denominator: i64) -> Exact {
    Exact::new(numerator.into(), denominator.into())
}

/// Reads `12`, `-0.25`, `1e3`.
pub fn exact(decimal: &str) -> Exact {
    let (mantissa, exponent) = decimal.split_once(['e', 'E']).unwrap_or((decimal, "0"));
    let (before, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: BigInt = format!("{before}{behind}").parse().unwrap();
    let exponent = exponent.parse::<i32>().unwrap() - i32::try_from(behind.len()).unwrap();
    let ten = Exact::from_i64(10).unwrap();
    Exact::from_integer(digits) * num_traits::Pow::pow(ten, exponent)
}

/// A limit as a client words it, and as it is meant.
#[derive(Clone, Debug)]
pub struct ExactLimit {
    /// As words of a command: `10 100/m`.
    pub words: String,
    pub capacity: Exact,
    /// Tokens per microsecond.
    pub rate: Exact,
}

impl ExactLimit {
    /// `count` tokens in `period_us` microseconds, as the client words it in `rate`.
    pub fn new(capacity: &str, rate: &str, count: &str, period_us: i64) -> Self {
        Self {
            words: format!("{capacity} {rate}"),
            capacity: exact(capacity),
            rate: exact(count) / whole(period_us),
        }
    }

    /// What a write may lose: a micro-token, or what flows in a microsecond if that is less; nothing at a whole
    /// number of tokens per second.
    fn loss(&self) -> Exact {
        if (&self.rate * whole(MILLION)).is_integer() {
            return Exact::zero();
        }
        self.rate.clone().min(fraction(1, MILLION))
    }

    /// Microseconds in which `tokens` flow.
    pub fn time_us(&self, tokens: &Exact) -> Exact {
        tokens.clone().max(Exact::zero()) / &self.rate
    }
}

/// An exact bucket.
#[derive(Clone, Debug, Default)]
pub struct Model {
    stored: Option<Stored>,
}

#[derive(Clone, Debug)]
struct Stored {
    level: Exact,
    at_us: i64,
    slack: Exact,
    /// When it is full under the limit of the last write, in Unix microseconds.
    full_at_us: Exact,
}

/// A level between the lowest that the module may have and the exact one.
#[derive(Clone, Debug)]
pub struct Level {
    pub lowest: Exact,
    pub highest: Exact,
}

/// What is wanted of a bucket, in tokens.
#[derive(Clone, Debug)]
pub enum Wish {
    Take(Exact),
    TakeUpTo(i64),
    /// The cost, and the longest wait in milliseconds.
    Reserve(Exact, i64),
    Charge(Exact),
    Give(Exact),
}

impl Wish {
    /// As a client words it. Amounts must be whole micro-tokens.
    pub fn words(&self, key: &str, limit: &ExactLimit) -> String {
        let limit = &limit.words;
        match self {
            Self::Take(cost) => format!("TB.TAKE {key} {limit} {}", millionths(cost)),
            Self::TakeUpTo(max) => format!("TB.TAKEUPTO {key} {limit} {max}"),
            Self::Reserve(cost, wait_ms) => {
                format!("TB.RESERVE {key} {limit} {} {wait_ms}", millionths(cost))
            }
            Self::Charge(amount) => format!("TB.CHARGE {key} {limit} {}", millionths(amount)),
            Self::Give(amount) => format!("TB.GIVE {key} {limit} {}", millionths(amount)),
        }
    }
}

fn millionths(tokens: &Exact) -> String {
    let micro = tokens * whole(MILLION);
    assert!(micro.is_integer(), "{tokens} would be rounded");
    format!("{micro}e-6")
}

impl Model {
    /// The level at `now_us`. A clock that is behind the last write adds nothing.
    pub fn level(&self, limit: &ExactLimit, now_us: i64) -> Level {
        let Some(stored) = &self.stored else {
            return Level { lowest: limit.capacity.clone(), highest: limit.capacity.clone() };
        };
        let flowed = &limit.rate * whole((now_us - stored.at_us).max(0));
        let stored = Level { lowest: &stored.level - &stored.slack, highest: stored.level.clone() };
        let Level { lowest, highest } = stored.at_most(&limit.capacity);
        Level { lowest: lowest + &flowed, highest: highest + flowed }.at_most(&limit.capacity)
    }

    /// Forgets the bucket because its key is gone, which it must not be before the bucket was full.
    pub fn vanish(&mut self, now_us: i64) {
        if let Some(stored) = self.stored.take() {
            assert!(
                whole(now_us) >= stored.full_at_us,
                "the key was gone at {now_us}, too early: {stored:?}"
            );
        }
    }

    /// Compares what `TB.STATE` shows.
    pub fn judge_state(&self, limit: &ExactLimit, now_us: i64, level: &str, refilled_at_us: i64) {
        let flowed = &limit.rate * whole((now_us - refilled_at_us).max(0));
        let shown = (exact(level) + flowed).min(limit.capacity.clone());
        let Level { lowest, highest } = self.level(limit, now_us);
        assert!(
            lowest <= shown && shown <= highest,
            "state {level} @ {refilled_at_us}: {shown}, not {self:?}"
        );
    }

    /// Judges a decision at `now_us` without following it.
    #[allow(dead_code)] // For tests/chaos.
    pub fn judge(&self, limit: &ExactLimit, wish: &Wish, now_us: i64, decision: Decision) {
        self.clone().follow(limit, wish, now_us, decision);
    }

    /// Judges a decision at `now_us`, and does what it says.
    pub fn follow(&mut self, limit: &ExactLimit, wish: &Wish, now_us: i64, decision: Decision) {
        let before = self.level(limit, now_us);
        let context = || format!("{} {wish:?} at {now_us}: {decision:?}, {self:?}", limit.words);
        let taken = match judge_wish(limit, wish, &before, decision) {
            Ok(taken) => taken,
            Err(objection) => panic!("{objection}: {}", context()),
        };
        let after = Level { lowest: &before.lowest - &taken, highest: &before.highest - &taken };
        let after = after.at_most(&limit.capacity);
        if let Err(objection) = judge_fields(limit, &after, decision) {
            panic!("{objection}: {}", context());
        }
        self.write(limit, now_us, taken, after, decision.allowed == 0);
    }

    fn write(&mut self, limit: &ExactLimit, now_us: i64, taken: Exact, after: Level, denied: bool) {
        if taken.is_zero() {
            // Nothing is written, except that a denial counts on from a clock that stepped back.
            if let Some(stored) = self.stored.as_mut().filter(|stored| denied && now_us < stored.at_us) {
                stored.at_us = now_us;
                stored.full_at_us = whole(now_us) + limit.time_us(&(&limit.capacity - &stored.level));
            }
            return;
        }
        if taken.is_negative() && after.lowest == limit.capacity {
            self.stored = None;
            return;
        }
        let slack = &after.highest - &after.lowest + limit.loss();
        let full_at_us = whole(now_us) + limit.time_us(&(&limit.capacity - &after.highest));
        self.stored = Some(Stored { level: after.highest, at_us: now_us, slack, full_at_us });
    }
}

impl Level {
    fn at_most(self, capacity: &Exact) -> Self {
        Self { lowest: self.lowest.min(capacity.clone()), highest: self.highest.min(capacity.clone()) }
    }
}

/// Whether a decision is right, and how many tokens it takes (gives, if negative).
fn judge_wish(limit: &ExactLimit, wish: &Wish, before: &Level, decision: Decision) -> Result<Exact, String> {
    let allowed = decision.allowed != 0;
    let retry_ms = decision.retry_after_ms;
    let none = Exact::zero();
    match wish {
        Wish::Take(cost) if allowed => {
            ensure(*cost <= before.highest, "granted more than there is")?;
            ensure(retry_ms == 0, "a wait for what was granted")?;
            Ok(cost.clone())
        }
        Wish::Take(cost) => {
            ensure(*cost > before.lowest, "denied what is there")?;
            judge_wait(limit, cost, before, retry_ms)?;
            Ok(none)
        }
        Wish::TakeUpTo(max) => {
            let most = floor(&before.highest).min(*max).max(0);
            let least = floor(&before.lowest).min(*max).max(0);
            ensure((least..=most).contains(&decision.allowed), "not as many tokens as there are")?;
            if allowed {
                ensure(retry_ms == 0, "a wait for what was granted")?;
            } else {
                judge_wait(limit, &whole(1), before, retry_ms)?;
            }
            Ok(whole(decision.allowed))
        }
        Wish::Reserve(cost, max_wait_ms) => {
            judge_wait(limit, cost, before, retry_ms)?;
            let acceptable = (0..=*max_wait_ms).contains(&retry_ms);
            ensure(acceptable == allowed, "granted or denied against the wait that is told")?;
            Ok(if allowed { cost.clone() } else { none })
        }
        Wish::Charge(amount) => {
            ensure(allowed, "a charge is never denied")?;
            let after = Level { lowest: &before.lowest - amount, highest: &before.highest - amount };
            judge_wait(limit, &none, &after, retry_ms)?;
            Ok(amount.clone())
        }
        Wish::Give(amount) => {
            ensure(allowed && retry_ms == 0, "a gift is never denied and needs no wait")?;
            // No more than there is room for; a bucket that may be full counts as full.
            Ok(-amount.clone().min(&limit.capacity - &before.lowest))
        }
    }
}

/// Whether `told_ms` is when the level reaches `wanted`, or -1 if it never does.
fn judge_wait(limit: &ExactLimit, wanted: &Exact, level: &Level, told_ms: i64) -> Result<(), String> {
    if *wanted > limit.capacity {
        return ensure(told_ms == -1, "hope where there is none");
    }
    let earliest_ms = wait_ms(limit, &(wanted - &level.highest));
    let latest_ms = wait_ms(limit, &(wanted - &level.lowest));
    ensure(
        (earliest_ms..=latest_ms).contains(&told_ms),
        &format!("a wait of {told_ms} ms, not {earliest_ms} to {latest_ms}"),
    )
}

fn judge_fields(limit: &ExactLimit, after: &Level, decision: Decision) -> Result<(), String> {
    let remaining = floor(&after.lowest)..=floor(&after.highest);
    ensure(remaining.contains(&decision.remaining), &format!("remaining not in {remaining:?}"))?;
    let earliest_ms = wait_ms(limit, &(&limit.capacity - &after.highest));
    let latest_ms = wait_ms(limit, &(&limit.capacity - &after.lowest));
    let reset_ms = earliest_ms..=latest_ms;
    ensure(reset_ms.contains(&decision.reset_after_ms), &format!("reset not in {reset_ms:?}"))
}

fn ensure(condition: bool, objection: &str) -> Result<(), String> {
    if condition {
        Ok(())
    } else {
        Err(objection.to_owned())
    }
}

/// Milliseconds in which `tokens` flow, rounded up, 0 for none.
fn wait_ms(limit: &ExactLimit, tokens: &Exact) -> i64 {
    (limit.time_us(tokens) / whole(1000)).ceil().to_integer().to_i64().unwrap_or(i64::MAX)
}

fn floor(tokens: &Exact) -> i64 {
    tokens.floor().to_integer().to_i64().unwrap()
}
