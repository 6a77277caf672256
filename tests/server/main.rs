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
mod expiry;
mod fallback;
mod formats;
mod holds;
mod hostile;
mod info;
mod io_threads;
mod keyspace;
mod listeners;
mod maxmemory;
mod multi_take;
mod one_of;
mod payloads;
mod persistence;
mod replication;
mod replies;
mod settings;
mod shares;
mod stories;
mod throttle;
mod top;
mod traces;
mod waiting;
mod waiting_attacks;
mod waiting_cost;

/// Returns whether the server is too old for `words`. Then it has refused them, rather than done something else.
fn is_refused_before(version: (u32, u32), client: &mut common::Connection, words: &str) -> bool {
    let is_old = common::is_before(version.0, version.1);
    if is_old {
        let refused = client.refusal(words).to_lowercase();
        let is_unknown =
            ["unknown", "unsupported", "invalid", "error in acl"].iter().any(|word| refused.contains(word));
        assert!(is_unknown, "new in {version:?}: {refused}");
    }
    is_old
}
