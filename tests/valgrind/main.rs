//! No invalid memory access, and nothing lost: the tests of `tests/server`, on servers that run under valgrind.
//!
//! Needs valgrind, and in `SERVER` a server that was built with libc's allocator, which valgrind can watch: of any
//! other, it would not see a thing.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;
mod reports;

use common::Server;
use reports::Reports;
use std::process::Command;

/// Every command and error; everything that is done with a bucket's value; files, replication, settings, and hostile
/// commands and payloads. Of a hundred thousand buckets it would take too long.
const TESTS: &str = "command_table:: decisions:: errors:: expiry:: holds::decisions holds::stories hostile::any_bytes \
    hostile::random keyspace:: memory::over_maxmemory multi_take:: payloads:: persistence:: replication:: replies:: \
    settings:: throttle:: top:: traces:: --skip active_defragmentation";

#[test]
fn no_access_is_invalid_and_nothing_is_lost() {
    let allocator = Server::start().connect().info("memory", "mem_allocator");
    assert_eq!(allocator, "libc", "valgrind cannot watch this server's memory");
    let reports = Reports::begin();
    let mut tests = Command::new(env!("CARGO"));
    tests.args(["test", "--test", "server", "--"]).args(TESTS.split_whitespace());
    let of_few = ["HOSTILE_COMMANDS", "HOSTILE_PAYLOADS"].map(|name| (name, "2000"));
    let status = tests.envs(of_few).env("TIMEOUT_S", "600").status().unwrap();
    reports.assert_clean();
    assert!(status.success(), "the tests failed under valgrind");
}
