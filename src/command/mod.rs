//! The commands, one file each, and what they share.
//!
//! A command describes itself and executes one call ([`Command`](crate::redis::spec::Command)); [`ALL`] registers it.
//! Commands that decide on buckets use [`pipeline`], so that opening, storing, expiring, replicating and announcing are
//! written once.

#![forbid(unsafe_code)]

mod blocking_hold;
mod blocking_multi_hold;
mod blocking_multi_take;
mod blocking_take;
mod charge;
mod give;
mod hold;
mod holds;
mod multi_hold;
mod multi_settle;
mod multi_take;
mod peek;
mod pipeline;
mod reserve;
mod restore;
mod settle;
mod state;
mod take;
mod take_up_to;
mod throttle;
mod top;

use crate::redis::{entry, Commands};

/// Every command.
pub(crate) const ALL: Commands = Commands {
    own: &[
        entry::<take::Take>(),
        entry::<peek::Peek>(),
        entry::<take_up_to::TakeUpTo>(),
        entry::<reserve::Reserve>(),
        entry::<charge::Charge>(),
        entry::<give::Give>(),
        entry::<multi_take::MultiTake>(),
        entry::<hold::Hold>(),
        entry::<settle::Settle>(),
        entry::<multi_hold::MultiHold>(),
        entry::<multi_settle::MultiSettle>(),
        entry::<blocking_take::BlockingTake>(),
        entry::<blocking_multi_take::BlockingMultiTake>(),
        entry::<blocking_hold::BlockingHold>(),
        entry::<blocking_multi_hold::BlockingMultiHold>(),
        entry::<holds::Holds>(),
        entry::<state::State>(),
        entry::<top::Top>(),
        entry::<restore::Restore>(),
    ],
    drop_ins: &[entry::<throttle::Throttle>()],
};
