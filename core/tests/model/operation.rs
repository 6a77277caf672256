//! Every operation: how a client words it, how that is read, and what it moves. A new one is taught to the model here and
//! in `call`.

use super::{number, throttle};
use super::{whole, Bucket, Exact, Limit, MILLION};
use num_traits::Zero;
use std::collections::HashSet;
use tokenbucket_core::bucket::{self, Operation};
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::number::{Rounding, MAX_TOKENS};
use tokenbucket_core::request::{self, OneOf, Request, Share, Waiting, Wanted};

/// The commands that read the words of an operation, without their `TB.` or `CL.`
pub const COMMANDS: [&str; 9] =
    ["TAKE", "PEEK", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE", "MTAKE", "TAKEANY", "THROTTLE"];

/// The longest wait that a caller can accept: 100 years in milliseconds.
pub const LONGEST_WAIT_MS: i64 = 3_155_760_000_000;

/// The most buckets of one call.
const MOST_BUCKETS: usize = 1024;

/// The command, and what stands behind the limit.
fn parts(operation: Operation) -> (&'static str, String) {
    match operation {
        Operation::Take { cost_micro } => ("TB.TAKE", format!("{cost_micro}e-6")),
        Operation::TakeUpTo { max_tokens } => ("TB.TAKEUPTO", max_tokens.to_string()),
        Operation::Reserve { cost_micro, max_wait_ms } => {
            ("TB.RESERVE", format!("{cost_micro}e-6 {max_wait_ms}"))
        }
        Operation::Charge { amount_micro } => ("TB.CHARGE", format!("{amount_micro}e-6")),
        Operation::Give { amount_micro } => ("TB.GIVE", format!("{amount_micro}e-6")),
    }
}

/// What follows the command.
pub fn arguments(operation: Operation, key: &str, limit: &Limit) -> String {
    format!("{key} {} {}", limit.words, parts(operation).1)
}

/// The whole call.
pub fn words(operation: Operation, key: &str, limit: &Limit) -> String {
    format!("{} {}", parts(operation).0, arguments(operation, key, limit))
}

/// Micro-tokens that leave a bucket when so much was allowed; those that come back are negative.
pub fn moved(operation: Operation, allowed: i64) -> Exact {
    match operation {
        _ if allowed == 0 => Exact::zero(),
        Operation::TakeUpTo { .. } => whole(allowed) * whole(MILLION),
        _ => most_moved(operation),
    }
}

/// Returns the most that an operation moves: when all of it is allowed.
pub(super) fn most_moved(operation: Operation) -> Exact {
    match operation {
        Operation::Take { cost_micro } | Operation::Reserve { cost_micro, .. } => whole(cost_micro),
        Operation::TakeUpTo { max_tokens } => whole(max_tokens) * whole(MILLION),
        Operation::Charge { amount_micro } => whole(amount_micro),
        Operation::Give { amount_micro } => whole(-amount_micro),
    }
}

#[derive(Debug)]
pub struct Parsed<'a> {
    pub requests: Vec<Request<&'a [u8]>>,
    pub max_wait_ms: Option<i64>,
    pub share: Option<Share<&'a [u8]>>,
}

impl<'a> Parsed<'a> {
    fn at_once(requests: Vec<Request<&'a [u8]>>) -> Self {
        Self { requests, max_wait_ms: None, share: None }
    }

    fn one_of(one_of: &OneOf<&'a [u8]>) -> Self {
        Self::at_once(one_of.alternatives().flat_map(|(_, requests)| requests.to_vec()).collect())
    }

    fn waiting(Waiting { requests, max_wait_ms, share }: Waiting<&'a [u8]>) -> Self {
        Self { requests, max_wait_ms: Some(max_wait_ms), share }
    }
}

pub struct Meant<'a> {
    pub key: &'a [u8],
    pub limit: Limit,
    pub operation: Operation,
}

/// What the arguments of a command want, or the error of the first of them that is wrong, and of which bucket.
pub fn read<'a>(command: &str, arguments: &[&'a [u8]]) -> Result<Vec<Meant<'a>>, Refusal> {
    match command {
        "MTAKE" => {
            let (numkeys, groups) = arguments.split_first().ok_or(Error::WrongArity)?;
            read_several(numkeys, None, groups)
        }
        "TAKEANY" => {
            let [numkeys, each, groups @ ..] = arguments else { return Err(Error::WrongArity.into()) };
            read_several(numkeys, Some(each), groups)
        }
        "THROTTLE" => Ok(vec![throttle::read(arguments)?]),
        _ => Ok(vec![read_one(command, arguments)?]),
    }
}

fn read_one<'a>(command: &str, arguments: &[&'a [u8]]) -> Result<Meant<'a>, Error> {
    let &[key, capacity, rate, ref wanted @ ..] = arguments else { return Err(Error::WrongArity) };
    let amount = |bytes: &[u8], rounding, error| number::amount(bytes, rounding).ok_or(error);
    let whole_number = |bytes: &[u8], max, error| number::whole_number(bytes, max).ok_or(error);
    let operation =
        match (command, wanted) {
            ("TAKE" | "PEEK", []) => Ok(Operation::Take { cost_micro: MILLION }),
            ("TAKE" | "PEEK", [cost]) => {
                amount(cost, Rounding::Up, Error::Cost).map(|cost_micro| Operation::Take { cost_micro })
            }
            ("TAKEUPTO", [max]) => whole_number(max, MAX_TOKENS, Error::Max).and_then(|max_tokens| {
                (max_tokens > 0).then_some(Operation::TakeUpTo { max_tokens }).ok_or(Error::Max)
            }),
            ("RESERVE", [cost, max_wait]) => amount(cost, Rounding::Up, Error::Cost).and_then(|cost_micro| {
                let max_wait_ms = whole_number(max_wait, LONGEST_WAIT_MS, Error::MaxWait)?;
                Ok(Operation::Reserve { cost_micro, max_wait_ms })
            }),
            ("CHARGE", [used]) => amount(used, Rounding::Up, Error::Amount)
                .map(|amount_micro| Operation::Charge { amount_micro }),
            ("GIVE", [unused]) => amount(unused, Rounding::Down, Error::Amount)
                .map(|amount_micro| Operation::Give { amount_micro }),
            _ => return Err(Error::WrongArity),
        };
    let limit = match Limit::read(capacity, rate) {
        Err(Error::RateOfPool) if command == "PEEK" => Limit::pool(std::str::from_utf8(capacity).unwrap()),
        limit => limit?,
    };
    Ok(Meant { key, limit, operation: operation? })
}

/// Reads groups, in alternatives of `each`, or of all.
fn read_several<'a>(
    numkeys: &[u8],
    each: Option<&[u8]>,
    groups: &[&'a [u8]],
) -> Result<Vec<Meant<'a>>, Refusal> {
    let numkeys = read_numkeys(numkeys).ok_or(Error::NumKeys)?;
    let each = each.map_or(Some(numkeys), read_numkeys).ok_or(Error::Each)?;
    if each > numkeys || numkeys % each != 0 {
        return Err(Error::Each.into());
    }
    if groups.len() != numkeys * 4 {
        let is_share = groups.get(numkeys * 4).is_some_and(|word| word.eq_ignore_ascii_case(b"SHARE"));
        return Err(if is_share { Error::ShareOfSeveral } else { Error::NumKeysMismatch }.into());
    }
    let mut meant: Vec<Meant> = Vec::new();
    for (place, group) in groups.chunks(4).enumerate() {
        meant.push(read_one("TAKE", group).map_err(|error| error.at(place))?);
    }
    let mut seen = HashSet::new();
    match meant.iter().enumerate().position(|(place, meant)| !seen.insert((place / each, meant.key))) {
        Some(place) => Err(Error::DuplicateKey.at(place)),
        None => Ok(meant),
    }
}

/// Only the spelling that the server knows too, which looks for the keys behind it.
fn read_numkeys(bytes: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number: usize = text.parse().ok()?;
    (number.to_string() == text && (1..=MOST_BUCKETS).contains(&number)).then_some(number)
}

/// What the module reads: the requests, and how many milliseconds the call may wait if it may.
pub fn parse<'a>(command: &str, arguments: &[&'a [u8]]) -> Result<Parsed<'a>, Refusal> {
    let one = match command {
        "TAKE" => request::take(arguments),
        "PEEK" => request::peek(arguments),
        "TAKEUPTO" => request::take_up_to(arguments),
        "RESERVE" => request::reserve(arguments),
        "CHARGE" => request::charge(arguments),
        "GIVE" => request::give(arguments),
        "THROTTLE" => request::throttle(arguments),
        "HOLD" => request::hold(arguments),
        "RENEW" => request::renew(arguments),
        "OVERRIDE" => request::limit_override(arguments),
        "SETTLE" => request::settle(arguments),
        "MTAKE" => return Ok(Parsed::at_once(request::multi_take(arguments)?)),
        "MHOLD" => return Ok(Parsed::at_once(request::multi_hold(arguments)?)),
        "MRENEW" => return Ok(Parsed::at_once(request::multi_renew(arguments)?)),
        "MSETTLE" => return Ok(Parsed::at_once(request::multi_settle(arguments)?)),
        "TAKEANY" => return Ok(Parsed::one_of(&request::take_any(arguments)?)),
        "HOLDANY" => return Ok(Parsed::one_of(&request::hold_any(arguments)?)),
        "BTAKE" => return request::blocking_take(arguments).map(Parsed::waiting),
        "BMTAKE" => return request::blocking_multi_take(arguments).map(Parsed::waiting),
        "BHOLD" => return request::blocking_hold(arguments).map(Parsed::waiting),
        "BMHOLD" => return request::blocking_multi_hold(arguments).map(Parsed::waiting),
        other => panic!("{other} is no command"),
    };
    Ok(Parsed::at_once(vec![one?]))
}

/// The module reads these arguments as the contract does.
///
/// Of a rate with many digits some may be dropped, and with them it may fall out of bounds: then all that is asked is
/// that there is an answer.
pub fn assert_read_as_meant(command: &str, arguments: &[&[u8]]) {
    let read_by_module = parse(command, arguments);
    if arguments.iter().any(|argument| number::may_be_rounded(argument)) {
        return;
    }
    let shown: Vec<String> = arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect();
    // The same rate may be another fraction in the words of redis-cell: limits are compared by how long they refill,
    // from a debt, by which also those of no capacity differ.
    let debt = Some(Bucket { level_micro: -1000 * MILLION, refilled_at_us: 0 });
    let shape = |key: &[u8], limit: &bucket::Limit, operation: Operation| {
        let capacity_micro = limit.capacity_micro();
        (key.to_vec(), capacity_micro, limit.wait_us(debt, capacity_micro, 0), operation)
    };
    let read_by_module: Result<Vec<_>, _> = read_by_module.map(|Parsed { requests, .. }| {
        requests
            .iter()
            .map(|request| match request.wanted {
                Wanted::Tokens(operation) => shape(request.key, &request.limit, operation),
                _ => panic!("{command} is of a hold"),
            })
            .collect()
    });
    let meant = read(command, arguments).map(|meant| {
        meant.iter().map(|meant| shape(meant.key, &meant.limit.module(), meant.operation)).collect()
    });
    assert_eq!(read_by_module, meant, "{command} {shown:?}");
}
