//! The procedures of the pages, carried out: their commands are cut from the page and run by bash on machines with real
//! servers, and what they promise is compared with the tokens and holds of before.
//!
//! A block of commands has a name on the line above it: `<!-- procedure: fail over -->`.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

mod machine;
mod readme;
mod redis_cell;
mod removal;
mod script;
mod sentinel;
mod traffic;
mod upgrades;
mod users;
