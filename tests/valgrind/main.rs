//! No invalid memory access, and nothing lost: the tests of `tests/server`, on servers that run under valgrind.
//!
//! Needs valgrind, and in `SERVER` a server that was built with libc's allocator, which valgrind can watch: of any
//! other, it would not see a thing.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

use common::engine::executable;
use common::server::SHUTS_DOWN;
use common::Server;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Every command and error; everything that is done with a bucket's value; files, replication, settings, and hostile
/// commands and payloads. Of a hundred thousand buckets it would take too long. Of a second `loadmodule` line, the server
/// itself loses 300 bytes at its start: what it noted of a module whose name it has already.
const TESTS: &str = "command_table:: decisions:: errors:: expiry:: formats:: holds::stories hostile::any_bytes \
    hostile::random keyspace:: maxmemory::over_maxmemory multi_take:: payloads:: persistence:: replication:: replies:: \
    settings:: shares:: throttle:: top:: traces:: waiting:: waiting_attacks:: \
    --skip active_defragmentation --skip milliseconds --skip second_loadmodule_line";

/// Starts the server under valgrind, with a report of its own for each process, those that it forks included.
fn wrapper_script(reports: &Path) -> String {
    let (reports, server) = (reports.display(), executable());
    let server = server.display();
    // The server's compression reads a table before it has written to it, by design.
    format!(
        "#!/bin/sh\n[ \"$1\" != --version ] || exec '{server}' --version\n\
         exec valgrind --trace-children=yes --num-callers=40 --track-origins=yes --leak-check=full \
         --show-leak-kinds=definite --log-file='{reports}/%p' '{server}' \"$@\" --rdbcompression no\n"
    )
}

/// Makes a command that runs tests of `tests/server`, or lists them.
fn server_tests(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--test", "server", "--"]).args(arguments);
    command
}

#[test]
fn each_filter_selects_a_test() {
    let listed = server_tests(&["--list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let idle = TESTS.split_whitespace().filter(|word| *word != "--skip" && !listed.contains(word));
    assert_eq!(idle.collect::<Vec<_>>(), [""; 0], "these select none of\n{listed}");
}

#[test]
fn no_access_is_invalid_and_nothing_is_lost() {
    let allocator = Server::start().connect().info("memory", "mem_allocator");
    assert_eq!(allocator, "libc", "valgrind cannot watch this server's memory");
    let [folder, reports] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let wrapper = folder.path().join("server");
    fs::write(&wrapper, wrapper_script(reports.path())).unwrap();
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).unwrap();
    let mut tests = server_tests(&TESTS.split_whitespace().collect::<Vec<_>>());
    tests.env("SERVER", wrapper).env(SHUTS_DOWN, "yes").env("TIMEOUT_S", "600");
    let status = tests.env("HOSTILE_COMMANDS", "2000").env("HOSTILE_PAYLOADS", "2000").status().unwrap();

    let reports = fs::read_dir(reports.path()).unwrap().map(|entry| entry.unwrap().path());
    let reports: Vec<String> = reports.map(|report| fs::read_to_string(report).unwrap()).collect();
    // Each finding shows where it was.
    let findings: Vec<_> = reports.iter().filter(|report| report.contains("   at 0x")).cloned().collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    assert!(status.success(), "the tests failed under valgrind");
    // Others were killed, as the tests want it, or were forked.
    let finished = reports.iter().filter(|report| report.contains("ERROR SUMMARY")).count();
    println!("{} processes, {finished} of them until their end", reports.len());
    assert!(finished > reports.len() / 2, "valgrind has not seen what most of them lost");
}
