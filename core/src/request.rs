//! argv to one typed request per command.
//!
//! The arguments stay in the server's memory: a request borrows its key, and numbers are read from the raw bytes.
//! Arguments are read in order, and the first wrong one is the error.

#![expect(
    clippy::missing_errors_doc,
    reason = "the first argument that is wrong is the error of each function"
)]

use crate::bucket::{Limit, Operation};
use crate::cast::signed;
use crate::error::{Error, Refusal};
use crate::hold::MAX_ID_LEN;
use crate::limit;
use crate::number::{micro_tokens, whole, Rounding, MAX_TOKENS, MICRO_PER_TOKEN};
use crate::numkeys;
use crate::rate::{Rate, CENTURY_S};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// The longest wait that can be accepted: 100 years, in milliseconds.
pub const MAX_WAIT_MS: i64 = signed(CENTURY_S) * 1000;

/// The longest time that a hold or an override lasts: 30 days, in milliseconds.
pub const MAX_TTL_MS: i64 = 2_592_000_000;

/// The longest time that a call waits its turn: 30 days, in milliseconds.
pub const MAX_TURN_WAIT_MS: i64 = 2_592_000_000;

/// An argument of a call, in the memory of its owner.
pub trait Argument: AsRef<[u8]> + Copy {}
impl<A: AsRef<[u8]> + Copy> Argument for A {}

/// A call's request to one bucket. `A` is an argument of the call.
#[derive(Clone, Copy, Debug)]
pub struct Request<A> {
    /// The argument that names the bucket.
    pub key: A,
    /// The limit that came with the call.
    pub limit: Limit,
    /// The tokens or the hold that the call wants.
    pub wanted: Wanted<A>,
}

/// The tokens or the hold that a call wants of a bucket. Amounts are in micro-tokens, 0 to [`MAX_MICRO`](crate::number::MAX_MICRO), and ids have
/// 1 to [`MAX_ID_LEN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<A> {
    /// Tokens, or their return.
    Tokens(Operation),
    /// A hold of this amount.
    Hold {
        /// The argument that names the hold.
        id: A,
        /// The amount to hold; 0 ends the hold.
        amount_micro: i64,
        /// The time until it ends: 1 to [`MAX_TTL_MS`].
        ttl_ms: i64,
    },
    /// A hold that lasts longer.
    Renew {
        /// The argument that names the hold.
        id: A,
        /// The time until it ends: 1 to [`MAX_TTL_MS`].
        ttl_ms: i64,
    },
    /// The end of a hold.
    Settle {
        /// The argument that names the hold.
        id: A,
        /// The cost of the work.
        used_micro: i64,
    },
    /// The request's limit in place of that of other calls.
    Override {
        /// The argument with the capacity.
        capacity: A,
        /// The argument with the rate.
        rate: A,
        /// The time until the override ends: 0 (now) to [`MAX_TTL_MS`].
        ttl_ms: i64,
        /// Begins with a full bucket.
        fills: bool,
    },
}

impl<A> Wanted<A> {
    /// Returns the micro-tokens that the call needs to be allowed.
    #[must_use]
    pub fn micro(&self) -> i64 {
        match self {
            Self::Tokens(operation) => operation.needed_micro(),
            Self::Hold { amount_micro, .. } => *amount_micro,
            Self::Renew { .. } | Self::Settle { .. } | Self::Override { .. } => 0,
        }
    }
}

impl<A> Request<A> {
    #[inline(always)]
    fn tokens(key: A, limit: Limit, operation: Operation) -> Self {
        Self { key, limit, wanted: Wanted::Tokens(operation) }
    }

    /// Returns the argument that names the hold, if the call is about one.
    #[must_use]
    pub fn id(&self) -> Option<&A> {
        match &self.wanted {
            Wanted::Tokens(_) | Wanted::Override { .. } => None,
            Wanted::Hold { id, .. } | Wanted::Renew { id, .. } | Wanted::Settle { id, .. } => Some(id),
        }
    }

    /// Converts the arguments, whose bytes must stay.
    pub fn map<'a, B>(&'a self, argument: impl Fn(&'a A) -> B) -> Request<B> {
        let wanted = match &self.wanted {
            Wanted::Tokens(operation) => Wanted::Tokens(*operation),
            Wanted::Hold { id, amount_micro, ttl_ms } => {
                Wanted::Hold { id: argument(id), amount_micro: *amount_micro, ttl_ms: *ttl_ms }
            }
            Wanted::Renew { id, ttl_ms } => Wanted::Renew { id: argument(id), ttl_ms: *ttl_ms },
            Wanted::Settle { id, used_micro } => Wanted::Settle { id: argument(id), used_micro: *used_micro },
            Wanted::Override { capacity, rate, ttl_ms, fills } => {
                let (capacity, rate) = (argument(capacity), argument(rate));
                Wanted::Override { capacity, rate, ttl_ms: *ttl_ms, fills: *fills }
            }
        };
        Request { key: argument(&self.key), limit: self.limit, wanted }
    }
}

/// A request for the most denied keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopRequest {
    /// The most keys to return: 1 to [`MAX_TOP_KEYS`].
    pub count: usize,
    /// Counting restarts.
    pub reset: bool,
}

/// The most keys whose denials are counted.
pub const MAX_TOP_KEYS: i64 = 100_000;

/// The largest value of `tokenbucket.max-waiters`. More waiting clients would take more memory than a server can spare.
pub const MAX_WAITERS: i64 = 10_000;

/// Default `COUNT`.
const DEFAULT_TOP_COUNT: usize = 10;

/// Returns the arguments of a call, if there are `N`.
#[inline(always)]
fn exactly<A, const N: usize>(arguments: &[A]) -> Result<&[A; N], Error> {
    arguments.try_into().map_err(|_| Error::WrongArity)
}

/// Returns the first `N` arguments of a call, and the rest.
fn first<A, const N: usize>(arguments: &[A]) -> Result<(&[A; N], &[A]), Error> {
    arguments.split_first_chunk().ok_or(Error::WrongArity)
}

/// Reads `key capacity rate [cost]`, of `TB.TAKE`.
#[inline(always)] // Hot: the limit stays in registers.
pub fn take<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    take_or_peek::<A, false>(arguments)
}

/// Reads `key capacity rate [cost]`, of `TB.PEEK`, which may look at a pool.
#[inline(always)]
pub fn peek<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    take_or_peek::<A, true>(arguments)
}

#[inline(always)]
fn take_or_peek<A: Argument, const MAY_BE_POOL: bool>(arguments: &[A]) -> Result<Request<A>, Error> {
    let (key, capacity, rate, cost) = match arguments {
        [key, capacity, rate] => (key, capacity, rate, None),
        [key, capacity, rate, cost] => (key, capacity, rate, Some(cost)),
        _ => return Err(Error::WrongArity),
    };
    let limit = if MAY_BE_POOL { limit::or_pool(capacity, rate)? } else { limit::parse(capacity, rate)? };
    let cost_micro = match cost {
        Some(cost) => self::cost(cost)?,
        None => MICRO_PER_TOKEN,
    };
    Ok(Request::tokens(*key, limit, Operation::Take { cost_micro }))
}

/// Reads `key capacity rate max`, of `TB.TAKEUPTO`.
pub fn take_up_to<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let [key, capacity, rate, max] = exactly(arguments)?;
    let limit = limit::parse(capacity, rate)?;
    let max_tokens = at_least_one(max, MAX_TOKENS).ok_or(Error::Max)?;
    Ok(Request::tokens(*key, limit, Operation::TakeUpTo { max_tokens }))
}

/// Reads `key capacity rate cost max_wait_ms`, of `TB.RESERVE`.
pub fn reserve<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let [key, capacity, rate, cost, max_wait] = exactly(arguments)?;
    let limit = limit::parse(capacity, rate)?;
    let cost_micro = self::cost(cost)?;
    let max_wait_ms = whole(max_wait.as_ref(), MAX_WAIT_MS).ok_or(Error::MaxWait)?;
    Ok(Request::tokens(*key, limit, Operation::Reserve { cost_micro, max_wait_ms }))
}

/// Reads `key capacity rate amount`, of `TB.CHARGE`.
pub fn charge<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let (key, limit, amount_micro) = amount::<_, false>(arguments, Rounding::Up)?;
    Ok(Request::tokens(key, limit, Operation::Charge { amount_micro }))
}

/// Reads `key capacity rate amount`, of `TB.GIVE`.
pub fn give<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let (key, limit, amount_micro) = amount::<_, false>(arguments, Rounding::Down)?;
    Ok(Request::tokens(key, limit, Operation::Give { amount_micro }))
}

/// Reads `key capacity rate ttl_ms [FULL]`, of `TB.OVERRIDE`.
pub fn limit_override<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let ([key, capacity, rate, ttl_ms], option) = match arguments {
        [call @ .., option] if call.len() == 4 => (exactly(call)?, Some(option)),
        _ => (exactly(arguments)?, None),
    };
    let limit = limit::or_pool(capacity, rate)?;
    let ttl_ms = whole(ttl_ms.as_ref(), MAX_TTL_MS).ok_or(Error::OverrideTtl)?;
    if option.is_some_and(|option| !is_word(option, b"FULL")) {
        return Err(Error::OverrideOption);
    }
    let fills = option.is_some();
    if fills && (limit.capacity_micro() == 0 || ttl_ms == 0) {
        return Err(Error::FullOfNothing);
    }
    let wanted = Wanted::Override { capacity: *capacity, rate: *rate, ttl_ms, fills };
    Ok(Request { key: *key, limit, wanted })
}

/// Reads `key`, of `TB.STATE` and `TB.HOLDS`.
pub fn key<A>(arguments: &[A]) -> Result<&A, Error> {
    exactly(arguments).map(|[key]| key)
}

/// Reads `numkeys key capacity rate cost [key capacity rate cost …]`, of `TB.MTAKE`.
pub fn multi_take<A: Argument>(arguments: &[A]) -> Result<Vec<Request<A>>, Refusal> {
    let ([numkeys], groups) = first(arguments)?;
    several::<4, _>(numkeys, groups, take)
}

/// Reads `key capacity rate amount ttl_ms id`, of `TB.HOLD`.
pub fn hold<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let [group @ .., ttl_ms, id] = arguments else { return Err(Error::WrongArity) };
    let (key, limit, amount_micro) = amount::<_, true>(group, Rounding::Up)?;
    let (ttl_ms, id) = (self::ttl_ms(ttl_ms)?, self::id(id)?);
    Ok(Request { key, limit, wanted: Wanted::Hold { id, amount_micro, ttl_ms } })
}

/// Reads `key capacity rate ttl_ms id`, of `TB.RENEW`.
pub fn renew<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let [key, capacity, rate, ttl_ms, id] = exactly(arguments)?;
    let limit = limit::or_pool(capacity, rate)?;
    let wanted = Wanted::Renew { ttl_ms: self::ttl_ms(ttl_ms)?, id: self::id(id)? };
    Ok(Request { key: *key, limit, wanted })
}

/// Reads `key capacity rate id used`, of `TB.SETTLE`.
pub fn settle<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let [key, capacity, rate, id, used] = exactly(arguments)?;
    let limit = limit::or_pool(capacity, rate)?;
    let wanted = Wanted::Settle { id: self::id(id)?, used_micro: self::used(used, &limit)? };
    Ok(Request { key: *key, limit, wanted })
}

/// Reads `numkeys ttl_ms id key capacity rate amount [key capacity rate amount …]`, of `TB.MHOLD`.
pub fn multi_hold<A: Argument>(arguments: &[A]) -> Result<Vec<Request<A>>, Refusal> {
    let ([numkeys, ttl_ms, id], groups) = first(arguments)?;
    let (ttl_ms, id) = (self::ttl_ms(ttl_ms)?, self::id(id)?);
    several::<4, _>(numkeys, groups, |group| hold_of_group(group, ttl_ms, id))
}

/// Reads `numkeys ttl_ms id key capacity rate [key capacity rate …]`, of `TB.MRENEW`.
pub fn multi_renew<A: Argument>(arguments: &[A]) -> Result<Vec<Request<A>>, Refusal> {
    let ([numkeys, ttl_ms, id], groups) = first(arguments)?;
    let wanted = Wanted::Renew { ttl_ms: self::ttl_ms(ttl_ms)?, id: self::id(id)? };
    several::<3, _>(numkeys, groups, |group| {
        let [key, capacity, rate] = exactly(group)?;
        Ok(Request { key: *key, limit: limit::or_pool(capacity, rate)?, wanted })
    })
}

/// Reads `numkeys id key capacity rate used [key capacity rate used …]`, of `TB.MSETTLE`.
pub fn multi_settle<A: Argument>(arguments: &[A]) -> Result<Vec<Request<A>>, Refusal> {
    let ([numkeys, id], groups) = first(arguments)?;
    let id = self::id(id)?;
    several::<4, _>(numkeys, groups, |group| {
        let [key, capacity, rate, used] = exactly(group)?;
        let limit = limit::or_pool(capacity, rate)?;
        Ok(Request { key: *key, limit, wanted: Wanted::Settle { id, used_micro: self::used(used, &limit)? } })
    })
}

/// A call of one of several alternatives, the best first.
#[derive(Debug)]
pub struct OneOf<A> {
    requests: Vec<Request<A>>,
    /// The buckets of an alternative: a divisor of their number.
    each: usize,
}

impl<A> OneOf<A> {
    /// Returns the requests of each alternative, behind the place of the first among those of the call.
    pub fn alternatives(&self) -> impl Iterator<Item = (usize, &[Request<A>])> {
        (0..).step_by(self.each).zip(self.requests.chunks_exact(self.each))
    }

    /// Returns the number, from 1, of the alternative that has its hold: in every bucket of which the call wants any, or in
    /// one if it wants none. Of several, the first that wants what is held, or else the first. A call that is repeated finds it,
    /// whatever alternatives have become free. `held_micro` says how much of a bucket is held by the call's id.
    pub fn held(&self, held_micro: impl Fn(&Request<A>) -> i64) -> Option<i64> {
        let is_there = |request: &Request<A>| held_micro(request) > 0;
        let is_held = |requests: &[Request<A>]| {
            let mut wanting = requests.iter().filter(|request| request.wanted.micro() > 0).peekable();
            match wanting.peek() {
                Some(_) => wanting.all(is_there),
                None => requests.iter().any(is_there),
            }
        };
        let is_same = |request: &Request<A>| held_micro(request) == request.wanted.micro();
        let mut first = None;
        for (number, (_, requests)) in (1..).zip(self.alternatives()).filter(|(_, (_, all))| is_held(all)) {
            if requests.iter().all(is_same) {
                return Some(number);
            }
            first = first.or(Some(number));
        }
        first
    }
}

/// Reads `numkeys each key capacity rate cost [key capacity rate cost …]`, of `TB.TAKEANY`.
pub fn take_any<A: Argument>(arguments: &[A]) -> Result<OneOf<A>, Refusal> {
    let ([numkeys, each], groups) = first(arguments)?;
    one_of::<4, _>(numkeys, |numkeys| self::each(each, numkeys), groups, take)
}

/// Reads `numkeys each ttl_ms id key capacity rate amount [key capacity rate amount …]`, of `TB.HOLDANY`.
pub fn hold_any<A: Argument>(arguments: &[A]) -> Result<OneOf<A>, Refusal> {
    let ([numkeys, each, ttl_ms, id], groups) = first(arguments)?;
    let (ttl_ms, id) = (self::ttl_ms(ttl_ms)?, self::id(id)?);
    let each = |numkeys| self::each(each, numkeys);
    one_of::<4, _>(numkeys, each, groups, |group| hold_of_group(group, ttl_ms, id))
}

fn each<A: AsRef<[u8]>>(each: &A, numkeys: usize) -> Result<usize, Error> {
    let divides = |each: &usize| numkeys.checked_rem(*each) == Some(0);
    numkeys::parse(each.as_ref()).filter(divides).ok_or(Error::Each)
}

/// A call that may wait its turn.
#[derive(Debug)]
pub struct Waiting<A> {
    /// Its requests.
    pub requests: Vec<Request<A>>,
    /// Its longest wait in milliseconds: 0 to [`MAX_TURN_WAIT_MS`].
    pub max_wait_ms: i64,
    /// Its share; `None` is that of all calls without one, of weight 1.
    pub share: Option<Share<A>>,
}

/// The share of a call among those that wait for its bucket.
#[derive(Clone, Copy, Debug)]
pub struct Share<A> {
    /// The argument that names the tenant: 1 to [`MAX_ID_LEN`] bytes.
    pub tenant: A,
    /// The weight of the tenant in millionths: 1,000 to 1,000,000,000.
    pub weight_micro: i64,
}

impl<A> Share<A> {
    /// Converts the argument, whose bytes must stay.
    pub fn map<'a, B>(&'a self, argument: impl Fn(&'a A) -> B) -> Share<B> {
        Share { tenant: argument(&self.tenant), weight_micro: self.weight_micro }
    }
}

/// Reads `key capacity rate cost max_wait_ms [SHARE tenant [WEIGHT weight]]`, of `TB.BTAKE`.
pub fn blocking_take<A: Argument>(arguments: &[A]) -> Result<Waiting<A>, Refusal> {
    let (call @ [_, _, _, _], rest) = first(arguments)?;
    waiting(take(call)?, rest)
}

/// Reads `max_wait_ms [SHARE tenant [WEIGHT weight]]`, with which calls of one bucket end that may wait.
fn waiting<A: Argument>(request: Request<A>, arguments: &[A]) -> Result<Waiting<A>, Refusal> {
    let ([max_wait_ms], share) = first(arguments)?;
    let max_wait_ms = turn_wait_ms(max_wait_ms)?;
    Ok(Waiting { requests: vec![request], max_wait_ms, share: self::share(share)? })
}

fn share<A: Argument>(arguments: &[A]) -> Result<Option<Share<A>>, Error> {
    let (tenant, weight) = match arguments {
        [] => return Ok(None),
        [word, tenant] if is_word(word, b"SHARE") => (tenant, None),
        [word, tenant, behind, weight] if is_word(word, b"SHARE") && is_word(behind, b"WEIGHT") => {
            (tenant, Some(weight))
        }
        [_, _] | [_, _, _, _] => return Err(Error::ShareOption),
        _ => return Err(Error::WrongArity),
    };
    let tenant = id(tenant).map_err(|_| Error::Tenant)?;
    let weight_micro = match weight {
        Some(weight) => micro_tokens(weight.as_ref(), Rounding::Down),
        None => Some(MICRO_PER_TOKEN),
    };
    let weight_micro = weight_micro.filter(|weight| WEIGHTS_MICRO.contains(weight)).ok_or(Error::Weight)?;
    Ok(Some(Share { tenant, weight_micro }))
}

/// 0.001 to 1,000, in millionths.
const WEIGHTS_MICRO: RangeInclusive<i64> = MICRO_PER_TOKEN / 1000..=MICRO_PER_TOKEN * 1000;

fn is_word<A: AsRef<[u8]>>(argument: &A, word: &[u8]) -> bool {
    argument.as_ref().eq_ignore_ascii_case(word)
}

/// Reads `numkeys max_wait_ms key capacity rate cost [key capacity rate cost …]`, of `TB.BMTAKE`.
pub fn blocking_multi_take<A: Argument>(arguments: &[A]) -> Result<Waiting<A>, Refusal> {
    let ([numkeys, max_wait_ms], groups) = first(arguments)?;
    let max_wait_ms = turn_wait_ms(max_wait_ms)?;
    Ok(Waiting { requests: several::<4, _>(numkeys, groups, take)?, max_wait_ms, share: None })
}

/// Reads `key capacity rate amount ttl_ms id max_wait_ms [SHARE tenant [WEIGHT weight]]`, of `TB.BHOLD`.
pub fn blocking_hold<A: Argument>(arguments: &[A]) -> Result<Waiting<A>, Refusal> {
    let (call @ [_, _, _, _, _, _], rest) = first(arguments)?;
    waiting(hold(call)?, rest)
}

/// Reads `numkeys ttl_ms id max_wait_ms key capacity rate amount [key capacity rate amount …]`, of `TB.BMHOLD`.
pub fn blocking_multi_hold<A: Argument>(arguments: &[A]) -> Result<Waiting<A>, Refusal> {
    let ([numkeys, ttl_ms, id, max_wait_ms], groups) = first(arguments)?;
    let (ttl_ms, id, max_wait_ms) = (self::ttl_ms(ttl_ms)?, self::id(id)?, turn_wait_ms(max_wait_ms)?);
    let requests = several::<4, _>(numkeys, groups, |group| hold_of_group(group, ttl_ms, id))?;
    Ok(Waiting { requests, max_wait_ms, share: None })
}

fn turn_wait_ms<A: AsRef<[u8]>>(max_wait_ms: &A) -> Result<i64, Error> {
    whole(max_wait_ms.as_ref(), MAX_TURN_WAIT_MS).ok_or(Error::MaxTurnWait)
}

/// Reads `numkeys` groups of `N` arguments, each of which begins with a different key.
#[inline]
fn several<const N: usize, A: Argument>(
    numkeys: &A,
    groups: &[A],
    read: impl Fn(&[A]) -> Result<Request<A>, Error>,
) -> Result<Vec<Request<A>>, Refusal> {
    Ok(one_of::<N, _>(numkeys, Ok, groups, read)?.requests)
}

/// Reads `numkeys` groups of `N` arguments, each of which begins with a key; no alternative has one twice. `each` returns the
/// buckets of an alternative.
#[inline(always)]
fn one_of<const N: usize, A: Argument>(
    numkeys: &A,
    each: impl FnOnce(usize) -> Result<usize, Error>,
    groups: &[A],
    read: impl Fn(&[A]) -> Result<Request<A>, Error>,
) -> Result<OneOf<A>, Refusal> {
    let buckets = numkeys::parse(numkeys.as_ref()).ok_or(Error::NumKeys)?;
    let each = each(buckets)?;
    match groups.get(buckets.saturating_mul(N)..) {
        Some([]) => {}
        Some([word, ..]) if is_word(word, b"SHARE") => return Err(Error::ShareOfSeveral.into()),
        _ => return Err(Error::NumKeysMismatch.into()),
    }
    let mut requests = Vec::with_capacity(buckets);
    for (place, group) in groups.chunks_exact(N).enumerate() {
        requests.push(read(group).map_err(|error| error.at(place))?);
    }
    let one_of = OneOf { requests, each };
    for (first, requests) in one_of.alternatives().filter(|_| each > 1) {
        let keys = requests.iter().map(|request| request.key.as_ref()).collect::<Vec<_>>();
        reject_duplicates(&keys).map_err(|refusal| refusal.behind(first))?;
    }
    Ok(one_of)
}

fn hold_of_group<A: Argument>(group: &[A], ttl_ms: i64, id: A) -> Result<Request<A>, Error> {
    let (key, limit, amount_micro) = amount::<_, true>(group, Rounding::Up)?;
    Ok(Request { key, limit, wanted: Wanted::Hold { id, amount_micro, ttl_ms } })
}

fn ttl_ms<A: AsRef<[u8]>>(ttl_ms: &A) -> Result<i64, Error> {
    at_least_one(ttl_ms, MAX_TTL_MS).ok_or(Error::Ttl)
}

fn id<A: Argument>(id: &A) -> Result<A, Error> {
    let is_one = (1..=MAX_ID_LEN).contains(&id.as_ref().len());
    is_one.then_some(*id).ok_or(Error::Id)
}

/// Reads how much of a hold was used: 0 for a pool, which nothing would refill.
fn used<A: AsRef<[u8]>>(used: &A, limit: &Limit) -> Result<i64, Error> {
    let used_micro = micro_tokens(used.as_ref(), Rounding::Up).ok_or(Error::Used)?;
    if limit.is_pool() && used_micro != 0 {
        return Err(Error::UsedOfPool);
    }
    Ok(used_micro)
}

/// The longest period of `CL.THROTTLE`: 100 years, in seconds.
pub const MAX_PERIOD_S: i64 = signed(CENTURY_S);

/// Reads `key max_burst count period [quantity]`, of `CL.THROTTLE`: an [`Operation::Take`].
pub fn throttle<A: Argument>(arguments: &[A]) -> Result<Request<A>, Error> {
    let (key, max_burst, count, period, quantity) = match arguments {
        [key, max_burst, count, period] => (key, max_burst, count, period, None),
        [key, max_burst, count, period, quantity] => (key, max_burst, count, period, Some(quantity)),
        _ => return Err(Error::WrongArity),
    };
    let capacity_tokens = burst_capacity(max_burst.as_ref()).ok_or(Error::MaxBurst)?;
    let count = at_least_one(count, MAX_TOKENS).ok_or(Error::Count)?;
    let period_s = at_least_one(period, MAX_PERIOD_S).ok_or(Error::Period)?;
    let quantity = match quantity {
        Some(quantity) => whole(quantity.as_ref(), MAX_TOKENS).ok_or(Error::Quantity)?,
        None => 1,
    };
    let rate = Rate::per_seconds(count.unsigned_abs(), period_s.unsigned_abs()).ok_or(Error::Count)?;
    let limit = Limit::new(micro(capacity_tokens), rate).ok_or(Error::BurstTooSlow)?;
    Ok(Request::tokens(*key, limit, Operation::Take { cost_micro: micro(quantity) }))
}

/// Returns the capacity for a burst of `max_burst` on top of one token. Clients that send their limit less one send -1 for
/// a suspended user.
fn burst_capacity(max_burst: &[u8]) -> Option<i64> {
    match max_burst {
        b"-1" => Some(0),
        digits => whole(digits, MAX_TOKENS.saturating_sub(1)).map(|burst| burst.saturating_add(1)),
    }
}

fn at_least_one<A: AsRef<[u8]>>(argument: &A, max: i64) -> Option<i64> {
    whole(argument.as_ref(), max).filter(|value| *value >= 1)
}

/// Returns whole tokens, at most [`MAX_TOKENS`], in micro-tokens.
fn micro(tokens: i64) -> i64 {
    tokens.saturating_mul(MICRO_PER_TOKEN)
}

/// Compares few keys with each other, which is cheaper than a table.
pub(crate) fn reject_duplicates(keys: &[&[u8]]) -> Result<(), Refusal> {
    const FEW: usize = 32;
    let repeated = if keys.len() <= FEW {
        let mut places = keys.iter().enumerate();
        places.position(|(place, key)| keys.iter().take(place).any(|earlier| earlier == key))
    } else {
        let mut seen = HashSet::with_capacity(keys.len());
        keys.iter().position(|key| !seen.insert(*key))
    };
    repeated.map_or(Ok(()), |place| Err(Error::DuplicateKey.at(place)))
}

/// Reads `key capacity rate amount`.
#[inline(always)]
fn amount<A: Argument, const MAY_BE_POOL: bool>(
    arguments: &[A],
    rounding: Rounding,
) -> Result<(A, Limit, i64), Error> {
    let [key, capacity, rate, amount] = exactly(arguments)?;
    let limit = if MAY_BE_POOL { limit::or_pool(capacity, rate)? } else { limit::parse(capacity, rate)? };
    let amount_micro = micro_tokens(amount.as_ref(), rounding).ok_or(Error::Amount)?;
    Ok((*key, limit, amount_micro))
}

#[inline]
fn cost<A: AsRef<[u8]>>(cost: &A) -> Result<i64, Error> {
    micro_tokens(cost.as_ref(), Rounding::Up).ok_or(Error::Cost)
}

/// Reads `[COUNT n] [RESET]`, of `TB.TOP`, in any order and case.
pub fn top<A: AsRef<[u8]>>(arguments: &[A]) -> Result<TopRequest, Refusal> {
    let (mut count, mut reset) = (None, false);
    let mut arguments = arguments.iter().enumerate();
    while let Some((place, option)) = arguments.next() {
        if is_word(option, b"COUNT") && count.is_none() {
            let (place, number) = arguments.next().ok_or(Error::TopCount)?;
            let number = at_least_one(number, MAX_TOP_KEYS).ok_or_else(|| Error::TopCount.at(place))?;
            count = Some(usize::try_from(number).unwrap_or(usize::MAX));
        } else if is_word(option, b"RESET") && !reset {
            reset = true;
        } else {
            return Err(Error::TopOption.at(place));
        }
    }
    Ok(TopRequest { count: count.unwrap_or(DEFAULT_TOP_COUNT), reset })
}
