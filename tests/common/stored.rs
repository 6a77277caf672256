//! What a server stores of its buckets, in memory and in its files, as tests compare it.

use super::judged_calls::{shown_holds, shown_override, ShownHolds, ShownOverride};
use super::server::copy_data_files;
use super::{text, wait_until, Clock, Connection, Server, ServerBuilder};
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// Every bucket of a database, by its key (unprintable bytes escaped).
pub type Buckets = BTreeMap<String, Stored>;

/// All that a server knows of one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// To the micro-token.
    pub level: String,
    pub refilled_at_us: i64,
    /// Unix milliseconds.
    pub expires_at_ms: Option<i64>,
    pub holds: ShownHolds,
    pub limit_override: ShownOverride,
}

/// Looks at everything at one moment, on masters and replicas alike.
const LOOK: &str = "
    local found = {}
    for _, key in ipairs(redis.call('KEYS', '*')) do
        if redis.call('TYPE', key).ok == 'tb-bucket' then
            local state = redis.call('TB.STATE', key)
            local holds = redis.call('TB.HOLDS', key)
            table.insert(found, {key, state[1], state[2], redis.call('PTTL', key), holds, state[3] or ''})
        end
    end
    return {redis.call('TIME'), found}";

/// Every bucket of the database that the connection has selected.
///
/// Exact where nothing moves the server's clock meanwhile: servers before 7.0 know no absolute expiry.
pub fn buckets(client: &mut Connection) -> Buckets {
    type Found = Vec<(Vec<u8>, String, i64, i64, Value, Value)>;
    let reply = client.run(&["EVAL", LOOK, "0"]);
    let ((s, us), found): ((i64, i64), Found) = redis::from_redis_value(reply).unwrap();
    let now_us = s * 1_000_000 + us;
    let one = |(key, level, refilled_at_us, left_ms, holds, third): (Vec<u8>, _, _, i64, _, _)| {
        let expires_at_ms = (left_ms >= 0).then(|| now_us / 1000 + left_ms);
        let holds = shown_holds(holds, now_us);
        let limit_override = shown_override(&third, now_us);
        let stored = Stored { level, refilled_at_us, expires_at_ms, holds, limit_override };
        (key.escape_ascii().to_string(), stored)
    };
    found.into_iter().map(one).collect()
}

/// Panics with those that differ if two servers, or one at two times, do not store the same.
#[track_caller]
pub fn assert_same_buckets(found: &Buckets, expected: &Buckets, when: &str) {
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let differing = keys.into_iter().filter(|key| found.get(*key) != expected.get(*key));
    let lines: Vec<_> = differing
        .map(|key| format!("{key}: found {:?}, expected {:?}", found.get(key), expected.get(key)))
        .collect();
    assert!(lines.is_empty(), "{when}: {} of {}:\n{}", lines.len(), expected.len(), lines.join("\n"));
}

/// Fills a server with buckets in every state that the commands can bring about, and a few that only users can:
/// odd microseconds and rates, debt, refunds, holds, several at once, transactions, scripts, names of any bytes.
pub fn fill(client: &mut Connection, clock: &Clock) {
    const ROUNDS: i64 = 3;
    for round in 0..ROUNDS {
        include_str!("fill.txt").lines().for_each(|call| drop(client.say(call)));
        client.run(&["EVAL", SCRIPT, "2", "script:a", "script:b"]);
        client.run(&[b"TB.TAKE".as_slice(), b"any\0byte\r\n\xff", b"7", b"1/h"]);
        client.run(&["TB.TAKE", "", "7", "1/h"]);
        client.run(&["TB.TAKE", "limit changes", &(10 + round).to_string(), "1/h"]);
        clock.advance_us(1_234_567);
    }
    client.say("TB.TAKE deleted 10 1/h");
    client.say("DEL deleted");
    client.say("TB.TAKE persisted 10 1/h");
    client.say("PERSIST persisted");
}

const SCRIPT: &str = "
    redis.call('TB.TAKE', KEYS[1], 20, '1/h', 2)
    redis.call('TB.RESERVE', KEYS[2], 5, '1/h', 3, 100000000)
    return redis.call('TB.PEEK', KEYS[1], 20, '1/h', 2)";

/// Waits until `condition` holds while the clocks run. The oldest servers do their periodic work by the clock
/// that the test moves, so that nothing ever happens there while it stands.
pub fn wait_while_time_passes(clocks: &[&Clock], what: &str, mut condition: impl FnMut() -> bool) {
    const STEP_MS: i64 = 50;
    wait_until(what, || {
        condition() || {
            clocks.iter().for_each(|clock| clock.advance_ms(STEP_MS));
            false
        }
    });
}

/// Returns whether the server is writing a snapshot or rewriting its append-only file, or is about to.
pub fn is_writing_files(client: &mut Connection) -> bool {
    // From one report: what is about to be done in one is being done in the next.
    let report = text(&client.run(&["INFO", "persistence"]));
    ["rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled"]
        .iter()
        .any(|field| !report.contains(&format!("{field}:0\r\n")))
}

/// The size of everything that was appended for good, in bytes.
pub fn append_only_bytes(client: &mut Connection) -> u64 {
    client.count("persistence", "aof_current_size").unsigned_abs()
}

/// A server whose append-only file survives even a power cut, and which nothing else makes write.
pub fn with_append_only_file(preamble: &str) -> ServerBuilder {
    Server::builder()
        .options("appendonly yes,appendfsync always,auto-aof-rewrite-percentage 0")
        .option("aof-use-rdb-preamble", preamble)
        .controlled_clock()
}

/// A server with a clock of its own that sends nothing but what it is told to.
pub fn quiet() -> ServerBuilder {
    let patient = "repl-ping-replica-period 36000,repl-timeout 360000,repl-diskless-sync-delay 0";
    Server::builder().options(patient).controlled_clock()
}

/// The file to which the server appends commands at the moment.
pub fn append_only_file(server: &Server) -> PathBuf {
    let folder = server.folder().join("appendonlydir");
    let Ok(entries) = fs::read_dir(&folder) else {
        return server.folder().join("appendonly.aof");
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let appended = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    // From 7.0 on they are numbered; the lengths of names grow with the numbers.
    let newest = paths.filter(appended).max_by_key(|path| (path.as_os_str().len(), path.clone()));
    newest.unwrap_or_else(|| panic!("nothing is appended in {}", folder.display()))
}

/// A copy of what a server has written to its folder, to start others from.
pub fn copy_of_files(server: &Server) -> TempDir {
    let files = tempfile::tempdir().unwrap();
    copy_data_files(server.folder(), files.path());
    files
}

/// A command given as words, as clients send it, masters pass it on, and files keep it.
pub fn on_the_wire(words: &str) -> Vec<u8> {
    redis::Cmd::new().arg(words.split(' ').collect::<Vec<_>>()).get_packed_command()
}

/// The commands in bytes of a replication stream or of an append-only file without preamble; an incomplete one at
/// the end is left out.
pub fn commands(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut parser = redis::Parser::new();
    let values = std::iter::from_fn(|| parser.parse_value(&mut bytes).ok());
    values.map(|value| redis::from_redis_value(value).expect("no command")).collect()
}

/// Returns whether a replica has its master's data and hears of every change.
pub fn is_linked(client: &mut Connection) -> bool {
    let report = text(&client.run(&["INFO", "replication"]));
    report.contains("role:slave") && report.contains("master_link_status:up")
}

pub fn begin_to_follow(replica: &Server, master: &Server) {
    replica.connect().run(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
}

/// Makes `replica` follow `master` and waits until it has everything, on clocks that the test moves.
pub fn follow(replica: &Server, master: &Server) {
    begin_to_follow(replica, master);
    wait_until_replicated(replica, master);
}

/// Waits until `replica` has all that was written to its master so far. `origin` is the master, or the master's
/// master.
pub fn wait_until_replicated(replica: &Server, origin: &Server) {
    let (mut to, mut from) = (replica.connect(), origin.connect());
    wait_while_time_passes(&[replica.clock(), origin.clock()], "the replica has everything", || {
        is_linked(&mut to)
            && to.info("replication", "slave_repl_offset") == from.info("replication", "master_repl_offset")
    });
}

/// Replication offset of a master, in bytes.
pub fn replicated_bytes(client: &mut Connection) -> i64 {
    client.count("replication", "master_repl_offset")
}

pub fn buckets_alive(client: &mut Connection) -> i64 {
    client.count("tokenbucket", "tokenbucket_buckets")
}

/// Returns whether a log tells of a crash rather than of a refusal.
pub fn tells_of_a_crash(log: &str) -> bool {
    ["crashed by signal", "BUG REPORT", "ASSERTION FAILED", "panicked"].iter().any(|sign| log.contains(sign))
}
