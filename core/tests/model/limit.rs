//! What comes with a call: how much a bucket holds, and how tokens flow into it.

use super::calendar::Calendar;
use super::number;
use super::{whole, Exact, MILLION};
use num_bigint::BigInt;
use num_traits::{One, ToPrimitive, Zero};
use tokenbucket_core::bucket::{self, MAX_TIME_US};
use tokenbucket_core::error::Error;
use tokenbucket_core::number::{micro_tokens, Rounding, MAX_MICRO};
use tokenbucket_core::rate::{Rate, RateError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// So many micro-tokens in each microsecond, which is tokens in each second.
    Steady(Exact),
    /// All at once, at moments.
    Calendar(Calendar),
}

impl Flow {
    pub fn read(rate: &[u8]) -> Result<Self, RateError> {
        let text = std::str::from_utf8(rate).map_err(|_| RateError::Malformed)?;
        match text.split_once(['/', '@']) {
            Some((count, period)) if text[count.len()..].starts_with('@') => {
                Calendar::read(count, period).map(Self::Calendar)
            }
            _ => Ok(Self::Steady(number::rate(rate)?.per_second)),
        }
    }

    /// Micro-tokens that flow in within 100 years, or as many as a bucket may hold.
    pub fn largest_capacity_micro(&self) -> i64 {
        match self {
            Self::Steady(per_second) => number::largest_capacity_micro(per_second),
            Self::Calendar(calendar) => calendar.largest_capacity_micro(),
        }
    }

    /// Micro-tokens that flow in between two moments; none if the clock stepped back.
    pub fn between(&self, from_us: i64, to_us: i64) -> Exact {
        match self {
            Self::Steady(rate) => rate * whole((to_us - from_us).max(0)),
            Self::Calendar(calendar) => calendar.between(from_us, to_us),
        }
    }

    /// How long after a moment so many micro-tokens have flowed in, in microseconds; `None` if they never do.
    fn lasts_us(&self, from_us: i64, micro: &Exact) -> Option<Exact> {
        match self {
            Self::Steady(rate) => (!rate.is_zero()).then(|| micro / rate),
            Self::Calendar(calendar) => Some(calendar.lasts_us(from_us, micro)),
        }
    }

    /// What a write may lose: a micro-token, or what flows in a microsecond if that is less; nothing at a whole number
    /// of tokens per second.
    pub fn loss(&self) -> Exact {
        match self {
            Self::Steady(rate) if !rate.is_integer() => rate.clone().min(Exact::one()),
            Self::Steady(_) | Self::Calendar(_) => Exact::zero(),
        }
    }

    /// What the rest of a micro-token that a write leaves over may come to when it is looked at under another flow: how
    /// much less, and how much more. At less than a token a second the rest is kept as the time in which it flowed.
    pub fn rest_under(&self, next: &Self) -> (Exact, Exact) {
        match (self, next) {
            _ if self.rest().is_zero() || self == next => (Exact::zero(), Exact::zero()),
            // The time may reach back over boundaries.
            (Self::Steady(written), Self::Calendar(next)) => {
                (Exact::one(), next.most_within(&written.recip()))
            }
            (Self::Steady(written), Self::Steady(next)) if next > written => {
                (Exact::zero(), (next - written) / written)
            }
            _ => (Exact::one(), Exact::zero()),
        }
    }

    /// What is lost where another flow begins, which takes no rest over.
    pub fn loss_at_end(&self) -> Exact {
        match self {
            Self::Steady(rate) if !rate.is_integer() => Exact::one(),
            Self::Steady(_) | Self::Calendar(_) => Exact::zero(),
        }
    }

    /// The longest time between two moments at which something flows in, in microseconds.
    pub fn longest_period_us(&self) -> i64 {
        match self {
            Self::Steady(_) => 0,
            Self::Calendar(calendar) => calendar.longest_period_us(),
        }
    }

    /// What of that rest is lost when the clock steps back.
    pub fn rest(&self) -> Exact {
        match self {
            Self::Steady(rate) if !rate.is_zero() && *rate < Exact::one() => Exact::one(),
            Self::Steady(_) | Self::Calendar(_) => Exact::zero(),
        }
    }
}

/// The end of a hold: when, and how much comes back then.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    pub at_us: i64,
    /// Micro-tokens.
    pub micro: Exact,
}

/// A limit as a client words it, and as it is meant.
#[derive(Clone, PartialEq, Eq)]
pub struct Limit {
    /// As words of a command: `10 100/m`.
    pub words: String,
    /// Micro-tokens.
    pub capacity: Exact,
    pub flow: Flow,
}

impl std::fmt::Debug for Limit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.words)
    }
}

impl Limit {
    /// A limit that the contract allows, and that the module must not round.
    pub fn new(capacity: &str, rate: &str) -> Self {
        Self::read(capacity.as_bytes(), rate.as_bytes())
            .unwrap_or_else(|error| panic!("{capacity} {rate}: {error}"))
    }

    /// Makes a limit of a capacity in micro-tokens; one that would take too long to refill is made smaller.
    pub fn of_micro(capacity_micro: i64, rate: &str) -> Self {
        let flow = Flow::read(rate.as_bytes()).unwrap_or_else(|error| panic!("{rate}: {error:?}"));
        let largest = flow.largest_capacity_micro();
        Self::new(&format!("{}e-6", capacity_micro.min(largest)), rate)
    }

    /// What a capacity and a rate mean, or the error of the first that is wrong.
    pub fn read(capacity: &[u8], rate: &[u8]) -> Result<Self, Error> {
        let capacity_micro = number::amount(capacity, Rounding::Down).ok_or(Error::Capacity)?;
        let flow = Flow::read(rate).map_err(|error| match error {
            RateError::Malformed => Error::Rate,
            RateError::Zero => Error::RateOfPool,
            RateError::OutOfRange => Error::RateOutOfRange,
        })?;
        if capacity_micro > flow.largest_capacity_micro() {
            return Err(Error::RefillTooSlow);
        }
        let words = format!("{} {}", capacity.escape_ascii(), rate.escape_ascii());
        Ok(Self { words, capacity: whole(capacity_micro), flow })
    }

    /// A pool, into which nothing flows: the rate `0`.
    pub fn pool(capacity: &str) -> Self {
        Self::stopped(number::amount(capacity.as_bytes(), Rounding::Down).expect(capacity), capacity)
    }

    fn stopped(capacity_micro: i64, capacity: &str) -> Self {
        let words = format!("{capacity} 0");
        Self { words, capacity: whole(capacity_micro), flow: Flow::Steady(Exact::zero()) }
    }

    /// One of so many times the capacity, if that is filled in time.
    pub fn times(&self, times: i64) -> Self {
        let capacity = format!("{}e-6", self.capacity_micro().saturating_mul(times).min(MAX_MICRO));
        let rate = self.words.split(' ').next_back().unwrap();
        if self.is_pool() {
            return Self::pool(&capacity);
        }
        Self::read(capacity.as_bytes(), rate.as_bytes()).unwrap_or_else(|_| self.clone())
    }

    /// What an override by this limit does to calls that bring the pool `own`: only the capacity counts.
    pub fn as_pool(&self) -> Self {
        let capacity_micro = self.capacity_micro();
        Self::stopped(capacity_micro, &format!("{capacity_micro}e-6"))
    }

    pub fn is_pool(&self) -> bool {
        self.flow == Flow::Steady(Exact::zero())
    }

    pub fn module(&self) -> bucket::Limit {
        let (capacity, rate) = self.words.split_once(' ').unwrap();
        let capacity_micro = micro_tokens(capacity.as_bytes(), Rounding::Down).expect(capacity);
        if self.is_pool() {
            return bucket::Limit::pool(capacity_micro);
        }
        bucket::Limit::new(capacity_micro, Rate::parse(rate.as_bytes()).expect(rate)).expect(&self.words)
    }

    pub fn capacity_micro(&self) -> i64 {
        self.capacity.to_integer().to_i64().unwrap()
    }

    /// Returns whether nothing is ever rounded under it.
    pub fn is_whole(&self) -> bool {
        self.flow.loss().is_zero()
    }

    /// What a level becomes between two moments: what flows in is added, never beyond the capacity.
    pub fn level_at(&self, level: &Exact, from_us: i64, to_us: i64) -> Exact {
        (level + self.flow.between(from_us, to_us)).min(self.capacity.clone())
    }

    /// How long after a moment a level reaches `wanted` by what flows in, in microseconds; nothing is there at once.
    pub fn reaches_in_us(&self, level: &Exact, from_us: i64, wanted: &Exact) -> Exact {
        self.reaches_with_us(level, from_us, wanted, &[]).expect("something flows in")
    }

    /// Returns after how many microseconds a level reaches `wanted` if holds end meanwhile; `None` if it never does.
    pub fn reaches_with_us(
        &self,
        level: &Exact,
        from_us: i64,
        wanted: &Exact,
        ends: &[End],
    ) -> Option<Exact> {
        let (mut level, mut at_us) = (level.clone(), from_us);
        for end in ends.iter().filter(|end| end.at_us > from_us) {
            if let Some(in_us) = self.flow_reaches_us(&level, at_us, wanted) {
                if whole(at_us) + &in_us <= whole(end.at_us) {
                    return Some(whole(at_us - from_us) + in_us);
                }
            }
            level += self.flow.between(at_us, end.at_us) + &end.micro;
            at_us = end.at_us;
        }
        Some(whole(at_us - from_us) + self.flow_reaches_us(&level, at_us, wanted)?)
    }

    fn flow_reaches_us(&self, level: &Exact, from_us: i64, wanted: &Exact) -> Option<Exact> {
        if level >= wanted {
            return Some(Exact::zero());
        }
        self.flow.lasts_us(from_us, &(wanted - level))
    }

    /// Microseconds from empty to full, as far as a clock counts; an hour for a pool, which never is by itself.
    pub fn refill_us(&self) -> i64 {
        if self.is_pool() {
            return 3_600_000_000;
        }
        let time_us = self.reaches_in_us(&Exact::zero(), 0, &self.capacity);
        time_us.ceil().to_integer().to_i64().unwrap_or(MAX_TIME_US)
    }
}

/// A time as it is told: in milliseconds, rounded up.
pub fn milliseconds(time_us: &Exact) -> BigInt {
    (time_us / whole(1000)).ceil().to_integer()
}

/// The deepest debt, in micro-tokens.
pub fn is_too_deep(level: &Exact) -> bool {
    *level < whole(-MAX_MICRO)
}

/// Whole tokens, rounded down.
pub fn tokens(micro: &Exact) -> BigInt {
    (micro / whole(MILLION)).floor().to_integer()
}
