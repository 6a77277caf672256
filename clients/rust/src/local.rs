//! Buckets in this process: what limits while the server is away, and what the fake decides with.
//!
//! They decide as the module does, to the micro-token.

use std::num::NonZeroUsize;

use lru::LruCache;
use redis::{Arg, Cmd, RedisError, RedisResult, Value};

use crate::decimal::Decimal;
use crate::limit::Limit;
use crate::refill::Refill;

const MICRO: i128 = 1_000_000;
const NEVER_MS: i64 = -1;
const MOST_NAMES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The buckets that are not full, by key.
pub(crate) struct Buckets {
    /// Since 1970.
    pub(crate) now_us: i128,
    of_keys: LruCache<String, Bucket>,
}

impl Buckets {
    /// At most 10,000: the least recently used go first.
    pub(crate) fn bounded() -> Self {
        Self { now_us: 0, of_keys: LruCache::new(MOST_NAMES) }
    }

    #[cfg(feature = "fake")]
    pub(crate) fn unbounded() -> Self {
        Self { now_us: 0, of_keys: LruCache::unbounded() }
    }

    #[cfg(feature = "fake")]
    pub(crate) fn clear(&mut self) {
        self.of_keys.clear();
    }
}

pub(crate) fn words_of(command: &Cmd) -> Vec<String> {
    let text = |word: Arg<&[u8]>| match word {
        Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    command.args_iter().map(text).collect()
}

/// A bucket as it was at `at_us`, in micro-tokens.
#[derive(Clone)]
struct Bucket {
    level: i128,
    at_us: i128,
    /// The next to expire first.
    holds: Vec<Held>,
}

#[derive(Clone)]
struct Held {
    id: String,
    amount: i128,
    expires_us: i128,
}

/// A limit in whole numbers.
struct Terms {
    capacity: i128,
    refill: Refill,
}

impl Terms {
    fn read(capacity: &str, rate: &str, may_be_pool: bool) -> RedisResult<Self> {
        let limit = Limit::new(capacity, rate).map_err(|error| refusal(&error.to_string()))?;
        let too_large = || refusal("limit is too large");
        let refill = Refill::of(&limit).ok_or_else(too_large)?;
        if refill.is_pool() && !may_be_pool {
            return Err(refusal("rate 0 is a pool that nothing but ending holds refills"));
        }
        let capacity = limit.capacity_micro().try_into().map_err(|_| too_large())?;
        Ok(Self { capacity, refill })
    }
}

impl Bucket {
    /// What it is at `moment`.
    fn flow_until(&mut self, moment: i128, terms: &Terms) {
        let (flow, at_us) = terms.refill.between(self.at_us, moment);
        if self.level + flow >= terms.capacity {
            (self.level, self.at_us) = (terms.capacity, moment);
        } else {
            (self.level, self.at_us) = (self.level + flow, at_us);
        }
    }

    /// Lets time pass: tokens flow in, and holds come back as they expire.
    fn pass_until(&mut self, moment: i128, terms: &Terms) {
        while self.holds.first().is_some_and(|held| held.expires_us <= moment) {
            let held = self.holds.remove(0);
            self.flow_until(held.expires_us, terms);
            self.level = terms.capacity.min(self.level + held.amount);
        }
        self.flow_until(moment, terms);
    }

    /// How long from `now` until there is so much if nobody acts, rounded up.
    fn ms_until(&self, wanted: i128, now: i128, terms: &Terms) -> i64 {
        if wanted > terms.capacity {
            return NEVER_MS;
        }
        let mut future = self.clone();
        loop {
            let next = future.holds.first().map(|held| held.expires_us);
            let reached = future.reaches(wanted, terms);
            if let Some(at) = reached.filter(|at| next.is_none_or(|next| *at <= next)) {
                return ms_from(now, at);
            }
            let Some(next) = next else { return NEVER_MS };
            future.pass_until(next, terms);
        }
    }

    /// When so much has flowed in, holds aside.
    fn reaches(&self, wanted: i128, terms: &Terms) -> Option<i128> {
        match wanted - self.level {
            ..=0 => Some(self.at_us),
            lacking => terms.refill.reaches(self.at_us, lacking),
        }
    }

    fn hold(&mut self, held: Held) {
        let place = self.holds.partition_point(|other| other.expires_us <= held.expires_us);
        self.holds.insert(place, held);
    }

    fn take_hold(&mut self, id: &str) -> Option<Held> {
        let place = self.holds.iter().position(|held| held.id == id)?;
        Some(self.holds.remove(place))
    }
}

fn ms_from(now: i128, at_us: i128) -> i64 {
    let us = (at_us - now).max(0);
    i64::try_from((us + 999) / 1000).unwrap_or(i64::MAX)
}

/// A bucket in one call.
struct View<'a> {
    buckets: &'a mut Buckets,
    key: String,
    terms: Terms,
    /// As it was found, from which waiting times are exact.
    found: Bucket,
    /// As it is now.
    bucket: Bucket,
}

impl View<'_> {
    fn wait_for(&self, micro: i128) -> i64 {
        if self.bucket.level >= micro {
            return 0;
        }
        // Holds that are over by now have come back since it was found.
        let is_same = self.found.holds.len() == self.bucket.holds.len();
        let from = if is_same { &self.found } else { &self.bucket };
        from.ms_until(micro, self.buckets.now_us, &self.terms)
    }

    fn reply(&self, bucket: &Bucket, granted: i128, retry_after_ms: i64) -> Decided {
        let reset_after_ms = bucket.ms_until(self.terms.capacity, self.buckets.now_us, &self.terms);
        Decided { granted, remaining: bucket.level.div_euclid(MICRO), retry_after_ms, reset_after_ms }
    }

    fn untouched(&self, granted: i128, retry_after_ms: i64) -> Decided {
        let reset_after_ms = self.wait_for(self.terms.capacity);
        Decided { reset_after_ms, ..self.reply(&self.bucket, granted, retry_after_ms) }
    }

    fn with_level(&self, level: i128) -> Bucket {
        Bucket { level, ..self.bucket.clone() }
    }

    fn keep(&mut self, bucket: Bucket) {
        if bucket.level >= self.terms.capacity && bucket.holds.is_empty() {
            self.buckets.of_keys.pop(&self.key);
        } else {
            self.buckets.of_keys.put(self.key.clone(), bucket);
        }
    }

    /// `waits_ms`: how far into debt it may go.
    fn take(&mut self, cost: i128, waits_ms: i64, writes: bool) -> Decided {
        let wait_ms = self.wait_for(cost);
        if wait_ms < 0 || wait_ms > waits_ms {
            return self.untouched(0, wait_ms);
        }
        if cost == 0 {
            return self.untouched(1, wait_ms);
        }
        let bucket = self.with_level(self.bucket.level - cost);
        let decided = self.reply(&bucket, 1, wait_ms);
        if writes {
            self.keep(bucket);
        }
        decided
    }

    fn take_up_to(&mut self, most: i128) -> Decided {
        let granted = self.bucket.level.div_euclid(MICRO).clamp(0, most);
        if granted == 0 {
            return self.untouched(0, self.wait_for(MICRO));
        }
        let bucket = self.with_level(self.bucket.level - granted * MICRO);
        let decided = self.reply(&bucket, granted, 0);
        self.keep(bucket);
        decided
    }

    fn charge(&mut self, amount: i128) -> Decided {
        if amount == 0 {
            return self.untouched(1, self.wait_for(0));
        }
        let bucket = self.with_level(self.bucket.level - amount);
        let wait_ms = bucket.ms_until(0, self.buckets.now_us, &self.terms);
        let decided = self.reply(&bucket, 1, wait_ms);
        self.keep(bucket);
        decided
    }

    fn give(&mut self, amount: i128) -> Decided {
        if amount == 0 {
            return self.untouched(1, 0);
        }
        let bucket = self.with_level(self.terms.capacity.min(self.bucket.level + amount));
        let decided = self.reply(&bucket, 1, 0);
        self.keep(bucket);
        decided
    }

    /// Holds `amount` under `id`, instead of what it holds.
    fn hold(&mut self, id: &str, amount: i128, expires_us: i128, writes: bool) -> Decided {
        let mut bucket = self.bucket.clone();
        let held = bucket.take_hold(id).map_or(0, |held| held.amount);
        let more = amount - held;
        if more > self.bucket.level && more > 0 {
            return self.untouched(0, self.wait_for(more));
        }
        bucket.level = self.terms.capacity.min(bucket.level - more);
        if amount > 0 {
            bucket.hold(Held { id: id.to_owned(), amount, expires_us });
        }
        let decided = self.reply(&bucket, 1, 0);
        if writes {
            self.keep(bucket);
        }
        decided
    }

    fn settle(&mut self, id: &str, used: i128) -> Decided {
        let mut bucket = self.bucket.clone();
        let Some(held) = bucket.take_hold(id) else { return self.untouched(0, NEVER_MS) };
        bucket.level = self.terms.capacity.min(bucket.level + held.amount - used);
        let wait_ms = bucket.ms_until(0, self.buckets.now_us, &self.terms);
        let decided = self.reply(&bucket, 1, wait_ms);
        self.keep(bucket);
        decided
    }
}

struct Decided {
    granted: i128,
    remaining: i128,
    retry_after_ms: i64,
    reset_after_ms: i64,
}

impl Decided {
    fn into_fields(self) -> Vec<Value> {
        let integer = |number: i128| Value::Int(number.try_into().unwrap_or(i64::MAX));
        let Self { granted, remaining, retry_after_ms, reset_after_ms } = self;
        vec![integer(granted), integer(remaining), Value::Int(retry_after_ms), Value::Int(reset_after_ms)]
    }
}

impl Buckets {
    /// Runs a command as a server does, given as its words.
    pub(crate) fn run(&mut self, words: &[String]) -> RedisResult<Value> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["TB.MTAKE", _, ref groups @ ..] => self.take_all(groups),
            ["TB.MHOLD", _, ttl_ms, id, ref groups @ ..] => self.hold_all(ttl_ms, id, groups),
            ["TB.MSETTLE", _, id, ref groups @ ..] => {
                self.each(groups, true, |view, used| Ok(view.settle(id, cost(used)?))).map(joint)
            }
            ["DEL", ref keys @ ..] => {
                let gone = keys.iter().filter(|key| self.of_keys.pop(**key).is_some()).count();
                Ok(Value::Int(gone as i64))
            }
            [name, key, capacity, rate, ref rest @ ..] => {
                let may_be_pool = matches!(name, "TB.PEEK" | "TB.GIVE");
                let mut view = self.look(key, Terms::read(capacity, rate, may_be_pool)?);
                view_one(&mut view, name, rest).map(|decided| Value::Array(decided.into_fields()))
            }
            _ => Err(unknown(&words)),
        }
    }

    fn look(&mut self, key: &str, terms: Terms) -> View<'_> {
        let full = || Bucket { level: terms.capacity, at_us: self.now_us, holds: Vec::new() };
        let mut found = self.of_keys.get(key).cloned().unwrap_or_else(full);
        found.level = found.level.min(terms.capacity);
        let mut bucket = found.clone();
        bucket.pass_until(self.now_us, &terms);
        View { key: key.to_owned(), terms, found, bucket, buckets: self }
    }

    /// Runs it on every bucket, by itself.
    fn each(
        &mut self,
        groups: &[&str],
        may_be_pool: bool,
        run: impl Fn(&mut View<'_>, &str) -> RedisResult<Decided>,
    ) -> RedisResult<Vec<Decided>> {
        let (fours, _) = groups.as_chunks::<4>();
        let one = |[key, capacity, rate, amount]: &[&str; 4]| {
            run(&mut self.look(key, Terms::read(capacity, rate, may_be_pool)?), amount)
        };
        fours.iter().map(one).collect()
    }

    fn take_all(&mut self, groups: &[&str]) -> RedisResult<Value> {
        let mut decided = self.each(groups, false, |view, amount| {
            let cost = cost(amount)?;
            let wait_ms = view.wait_for(cost);
            Ok(if wait_ms == 0 { view.untouched(1, 0) } else { view.untouched(0, wait_ms) })
        })?;
        if decided.iter().all(|one| one.granted > 0) {
            decided = self.each(groups, false, |view, amount| Ok(view.take(cost(amount)?, 0, true)))?;
        }
        Ok(joint(decided))
    }

    fn hold_all(&mut self, ttl_ms: &str, id: &str, groups: &[&str]) -> RedisResult<Value> {
        let ttl_ms: i128 = ttl_ms.parse().map_err(|_| refusal("ttl_ms must be a whole number"))?;
        let expires_us = self.now_us + ttl_ms * 1000;
        let mut decided = self.each(groups, true, |view, amount| {
            let decided = view.hold(id, cost(amount)?, expires_us, false);
            Ok(if decided.granted > 0 { view.untouched(1, 0) } else { decided })
        })?;
        if decided.iter().all(|one| one.granted > 0) {
            let run = |view: &mut View<'_>, amount: &str| Ok(view.hold(id, cost(amount)?, expires_us, true));
            decided = self.each(groups, true, run)?;
        }
        Ok(joint(decided))
    }
}

fn view_one(view: &mut View<'_>, name: &str, rest: &[&str]) -> RedisResult<Decided> {
    match (name, rest) {
        ("TB.TAKE", [amount]) => Ok(view.take(cost(amount)?, 0, true)),
        ("TB.PEEK", [amount]) => Ok(view.take(cost(amount)?, 0, false)),
        ("TB.RESERVE", [amount, max_wait_ms]) => {
            let max_wait_ms =
                max_wait_ms.parse().map_err(|_| refusal("max_wait_ms must be a whole number"))?;
            Ok(view.take(cost(amount)?, max_wait_ms, true))
        }
        ("TB.TAKEUPTO", [most]) => match most.parse() {
            Ok(most @ 1..) => Ok(view.take_up_to(most)),
            _ => Err(refusal("max must be a whole number of tokens from 1 to 1e12")),
        },
        ("TB.CHARGE", [amount]) => Ok(view.charge(cost(amount)?)),
        ("TB.GIVE", [amount]) => Ok(view.give(micro(amount, false)?)),
        _ => Err(unknown(&[name])),
    }
}

/// The tightest of each field, then each bucket's own.
fn joint(each: Vec<Decided>) -> Value {
    let tightest = |number: fn(&Decided) -> i64| {
        let numbers = || each.iter().map(number);
        if numbers().any(|number| number == NEVER_MS) {
            NEVER_MS
        } else {
            numbers().max().unwrap_or(0)
        }
    };
    let binding = Decided {
        granted: each.iter().map(|one| one.granted).min().unwrap_or(0),
        remaining: each.iter().map(|one| one.remaining).min().unwrap_or(0),
        retry_after_ms: tightest(|one| one.retry_after_ms),
        reset_after_ms: tightest(|one| one.reset_after_ms),
    };
    let mut fields = binding.into_fields();
    fields.push(Value::Array(each.into_iter().map(|one| Value::Array(one.into_fields())).collect()));
    Value::Array(fields)
}

/// Rounded up, as whoever pays it.
fn cost(text: &str) -> RedisResult<i128> {
    micro(text, true)
}

fn micro(text: &str, rounds_up: bool) -> RedisResult<i128> {
    let number = Decimal::parse(text).and_then(|number| number.millionths(rounds_up));
    let most = 1_000_000_000_000_000_000;
    let micro = number.and_then(|micro| i128::try_from(micro).ok()).filter(|micro| *micro <= most);
    micro.ok_or_else(|| refusal("cost must be a decimal number of tokens from 0 to 1e12"))
}

fn refusal(text: &str) -> RedisError {
    redis::make_extension_error("ERR".to_owned(), Some(text.to_owned()))
}

fn unknown(words: &[&str]) -> RedisError {
    refusal(&format!("unknown command '{}'", words.first().unwrap_or(&"")))
}
