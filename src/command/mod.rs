//! The commands, and what they share.
//!
//! A command describes itself and executes one call ([`Command`]); [`ALL`] registers it. Most decide on buckets by the steps
//! of [`pipeline`], so that opening, storing, expiring, replicating and announcing are written once. They differ in their
//! description and arguments alone, and are a table here; the others have a file each.

#![forbid(unsafe_code)]

mod holds;
mod pipeline;
mod restore;
mod state;
mod throttle;
mod top;

use crate::redis::spec::{
    ArgumentSpec, Audience, Command, Keys, Kind, Spec, AMOUNT, CAPACITY, COST, EACH, ID, KEY, MAX_WAIT_MS,
    NUMKEYS, OPTIONAL_COST, RATE, SHARE, TTL_MS, USED,
};
use crate::redis::{entry, Call, Commands};
use pipeline::{override_limit, peek, run_one, run_one_of, run_or_wait, run_together};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

/// Returns the entry of a command with this description, whose calls do that.
macro_rules! command {
    ($spec:expr, |$call:ident| $run:expr) => {{
        struct This;

        impl Command for This {
            const SPEC: Spec = $spec;

            #[inline]
            fn run($call: Call) -> Result<(), Refusal> {
                $run
            }
        }

        entry::<This>()
    }};
}

/// Every command.
pub(crate) const ALL: Commands = Commands {
    own: &[
        command!(
            Spec {
                name: c"TB.TAKE",
                summary: c"Takes tokens from a bucket if it holds them, else nothing",
                since: c"0.1.0",
                arguments: &[KEY, CAPACITY, RATE, OPTIONAL_COST],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::take(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.PEEK",
                summary: c"Returns what TB.TAKE would, and changes nothing",
                since: c"0.1.0",
                audience: Audience::Readers,
                arguments: &[KEY, CAPACITY, RATE, OPTIONAL_COST],
                ..Spec::DECIDING
            },
            |call| peek(call)
        ),
        command!(
            Spec {
                name: c"TB.TAKEUPTO",
                summary: c"Takes as many whole tokens as a bucket holds, up to a maximum",
                since: c"0.1.0",
                arguments: &[KEY, CAPACITY, RATE, ArgumentSpec::required(c"max", Kind::Whole)],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::take_up_to(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.RESERVE",
                summary: c"Takes tokens now, into debt if need be, and returns how long to wait before acting",
                since: c"0.1.0",
                arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::reserve(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.CHARGE",
                summary: c"Takes tokens unconditionally, into debt if need be",
                since: c"0.1.0",
                arguments: &[KEY, CAPACITY, RATE, AMOUNT],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::charge(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.GIVE",
                summary: c"Puts tokens back, never above the capacity",
                since: c"0.1.0",
                arguments: &[KEY, CAPACITY, RATE, AMOUNT],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::give(call.arguments())?)
        ),
        // A call may count against requests and tokens a minute, a user's limit and the tenant's. Taking them one by one would
        // need refunds, which are a race.
        command!(
            Spec {
                name: c"TB.MTAKE",
                summary: c"Takes from several buckets, each with its own limit and cost, all or nothing",
                since: c"0.1.0",
                complexity: c"O(N) where N is the number of buckets",
                keys: Keys::Groups { first: 2, len: 4 },
                arguments: &[NUMKEYS, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, COST])],
                ..Spec::DECIDING
            },
            |call| run_together(call, &request::multi_take(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.HOLD",
                summary: c"Reserves tokens under an id for a limited time, and refunds them unless settled before",
                since: c"0.1.0",
                complexity: c"O(log N) where N is the number of holds of the bucket",
                arguments: &[KEY, CAPACITY, RATE, AMOUNT, TTL_MS, ID],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::hold(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.RENEW",
                summary: c"Lets a hold last longer if it is still there, and takes nothing",
                since: c"0.1.0",
                complexity: c"O(log N) where N is the number of holds of the bucket",
                arguments: &[KEY, CAPACITY, RATE, TTL_MS, ID],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::renew(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.SETTLE",
                summary: c"Ends a hold: refunds what was not used, charges what was used beyond it",
                since: c"0.1.0",
                complexity: c"O(log N) where N is the number of holds of the bucket",
                arguments: &[KEY, CAPACITY, RATE, ID, USED],
                ..Spec::DECIDING
            },
            |call| run_one(call, request::settle(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.MHOLD",
                summary: c"Reserves tokens of several buckets under one id, all or nothing",
                since: c"0.1.0",
                complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one",
                keys: Keys::Groups { first: 4, len: 4 },
                arguments: &[NUMKEYS, TTL_MS, ID, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, AMOUNT])],
                ..Spec::DECIDING
            },
            |call| run_together(call, &request::multi_hold(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.MRENEW",
                summary: c"Lets the holds of one id in several buckets last longer, if all are still there",
                since: c"0.1.0",
                complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one",
                keys: Keys::Groups { first: 4, len: 3 },
                arguments: &[NUMKEYS, TTL_MS, ID, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE])],
                ..Spec::DECIDING
            },
            |call| run_together(call, &request::multi_renew(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.MSETTLE",
                summary: c"Ends the holds of one id in several buckets, wherever there is one",
                since: c"0.1.0",
                complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one",
                keys: Keys::Groups { first: 3, len: 4 },
                arguments: &[NUMKEYS, ID, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, USED])],
                ..Spec::DECIDING
            },
            |call| run_together(call, &request::multi_settle(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.TAKEANY",
                summary: c"Takes from the first of several alternatives that allows it, each of one or more buckets",
                since: c"0.1.0",
                complexity: c"O(N) where N is the number of buckets",
                keys: Keys::Groups { first: 3, len: 4 },
                arguments: &[NUMKEYS, EACH, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, COST])],
                ..Spec::DECIDING
            },
            |call| run_one_of(call, &request::take_any(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.HOLDANY",
                summary: c"Reserves tokens of the first of several alternatives that allows it, under one id",
                since: c"0.1.0",
                complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one",
                keys: Keys::Groups { first: 5, len: 4 },
                arguments: &[
                    NUMKEYS,
                    EACH,
                    TTL_MS,
                    ID,
                    ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, AMOUNT]),
                ],
                ..Spec::DECIDING
            },
            |call| run_one_of(call, &request::hold_any(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.BTAKE",
                summary: c"Takes tokens from a bucket, and waits its turn in the server if there are too few",
                since: c"0.1.0",
                complexity: c"O(log N) where N is the number of calls that wait for the bucket",
                audience: Audience::WaitingWriters,
                arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS, SHARE],
                ..Spec::DECIDING
            },
            |call| run_or_wait(call, &Self::SPEC, request::blocking_take(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.BMTAKE",
                summary: c"Takes from several buckets, all or nothing, and waits its turn in the server",
                since: c"0.1.0",
                complexity: c"O(M log N) where M is the number of buckets and N that of the calls that wait for one",
                audience: Audience::WaitingWriters,
                keys: Keys::Groups { first: 3, len: 4 },
                arguments: &[NUMKEYS, MAX_WAIT_MS, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, COST])],
                ..Spec::DECIDING
            },
            |call| run_or_wait(call, &Self::SPEC, request::blocking_multi_take(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.BHOLD",
                summary: c"Reserves tokens under an id for a limited time, and waits its turn in the server",
                since: c"0.1.0",
                complexity: c"O(log N) where N is the number of holds of the bucket and of calls that wait for it",
                audience: Audience::WaitingWriters,
                arguments: &[KEY, CAPACITY, RATE, AMOUNT, TTL_MS, ID, MAX_WAIT_MS, SHARE],
                ..Spec::DECIDING
            },
            |call| run_or_wait(call, &Self::SPEC, request::blocking_hold(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.BMHOLD",
                summary: c"Reserves tokens of several buckets under one id, and waits its turn in the server",
                since: c"0.1.0",
                complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one and of calls that wait for it",
                audience: Audience::WaitingWriters,
                keys: Keys::Groups { first: 5, len: 4 },
                arguments: &[
                    NUMKEYS,
                    TTL_MS,
                    ID,
                    MAX_WAIT_MS,
                    ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, AMOUNT]),
                ],
                ..Spec::DECIDING
            },
            |call| run_or_wait(call, &Self::SPEC, request::blocking_multi_hold(call.arguments())?)
        ),
        command!(
            Spec {
                name: c"TB.OVERRIDE",
                summary: c"Puts a limit in place of that of all calls on a bucket, for a time",
                since: c"0.1.0",
                audience: Audience::Servers,
                arguments: &[
                    KEY,
                    CAPACITY,
                    RATE,
                    TTL_MS,
                    ArgumentSpec::optional(c"full", Kind::Word(c"FULL")),
                ],
                ..Spec::DECIDING
            },
            |call| override_limit(call, request::limit_override(call.arguments())?)
        ),
        entry::<holds::Holds>(),
        entry::<state::State>(),
        entry::<top::Top>(),
        entry::<restore::Restore>(),
    ],
    drop_ins: &[entry::<throttle::Throttle>()],
};
