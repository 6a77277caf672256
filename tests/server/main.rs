//! The promises to users, each held against a real server: what a file is about, its name says.
//!
//! One program, so that it is linked once, and so that the compiler sees which helper nobody calls any more.
//! [`common::calls`] lists the commands with example calls, and what follows from each: most promises are kept by
//! walking that list, so a command that is added is a few lines there. What is one bucket's own history is told in
//! [`stories`].

#[path = "../common/mod.rs"]
mod common;

mod acl;
mod command_table;
mod concurrency;
mod decisions;
mod docs;
mod errors;
mod events;
mod expiry;
mod fallback;
mod holds;
mod hostile;
mod info;
mod keyspace;
mod listeners;
mod memory;
mod multi_take;
mod payloads;
mod persistence;
mod replication;
mod replies;
mod settings;
mod stories;
mod throttle;
mod throttle_clients;
mod top;
mod traces;
