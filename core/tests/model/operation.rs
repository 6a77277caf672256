//! Every operation: how a client words it, and what it moves. A new one is taught to the model here and
//! in `call`.

use super::{whole, Exact, Limit, MILLION};
use num_traits::Zero;
use tokenbucket_core::bucket::Operation;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::{self, OneOf, Request, Share, Waiting};

/// All commands that read a key and a limit, without their `TB.` or `CL.`
pub const COMMANDS: [&str; 21] = [
    "TAKE", "PEEK", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE", "THROTTLE", "HOLD", "RENEW", "OVERRIDE",
    "SETTLE", "MTAKE", "MHOLD", "MRENEW", "MSETTLE", "TAKEANY", "HOLDANY", "BTAKE", "BMTAKE", "BHOLD",
    "BMHOLD",
];

/// The longest wait that a caller can accept: 100 years in milliseconds.
pub const LONGEST_WAIT_MS: i64 = 3_155_760_000_000;

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
