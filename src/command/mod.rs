//! The commands, one file each, and the road that they share.
//!
//! A command says what it is ([`Spec`]) and what it does with one call ([`Command::run`]); [`ALL`] is where it is
//! registered. Whatever decides on buckets does it through [`road`], so that opening, refilling, storing,
//! expiring, replicating and telling are written once.

#![forbid(unsafe_code)]

pub(crate) mod charge;
pub(crate) mod give;
pub(crate) mod multi_take;
pub(crate) mod peek;
pub(crate) mod reserve;
pub(crate) mod restore;
mod road;
pub(crate) mod spec;
pub(crate) mod state;
pub(crate) mod take;
pub(crate) mod take_up_to;
pub(crate) mod throttle;

use crate::error::Error;
use crate::redis::{handler, Call, Handler};
use spec::Spec;

/// A command of the module.
pub(crate) trait Command {
    /// What clients, ACLs and cluster routing have to know of it.
    const SPEC: Spec;

    /// Executes one call, up to and including its reply.
    ///
    /// # Errors
    /// Those that become the reply. Nothing has been changed or replied then.
    fn run(call: Call) -> Result<(), Error>;
}

/// Every command: what it is, and the function that the server calls.
pub(crate) const ALL: &[(Spec, Handler)] = &[
    entry::<take::Take>(),
    entry::<peek::Peek>(),
    entry::<take_up_to::TakeUpTo>(),
    entry::<reserve::Reserve>(),
    entry::<charge::Charge>(),
    entry::<give::Give>(),
    entry::<multi_take::MultiTake>(),
    entry::<state::State>(),
    entry::<restore::Restore>(),
];

/// Commands that another module may own already, registered where they are wanted and free.
pub(crate) const DROP_INS: &[(Spec, Handler)] = &[entry::<throttle::Throttle>()];

const fn entry<C: Command>() -> (Spec, Handler) {
    (C::SPEC, handler::<C>)
}
