//! What a server has written to its files is what it has again after a restart: every bucket to the micro-token,
//! and its expiry to the millisecond. What changes nothing writes nothing.

use super::holds::{digest, fill};
use crate::common::stored::{
    append_only_bytes, append_only_file, assert_same_buckets, buckets, copy_of_files, is_writing_files,
    tells_of_a_crash, wait_while_time_passes, with_append_only_file, Buckets,
};
use crate::common::{array, wait_until, Connection, Server, HOUR_MS};
use std::fs::{self, File};
use std::path::Path;
use tempfile::TempDir;

/// The buckets, and a digest over what nothing shows, also of other databases.
pub type Everything = (Buckets, String);

pub fn everything(server: &Server) -> Everything {
    let mut client = server.connect();
    // Until it is removed, what has expired is among what the digest is over.
    wait_until("what has expired is gone", || client.keys() == array(client.say("KEYS *")).len() as i64);
    (buckets(&mut client), digest(&mut client))
}

/// Fills a server, and calls a bucket of another database by a name that there is already.
fn filled(server: &Server) -> Everything {
    let mut client = server.connect();
    fill(&mut client, server.clock());
    client.say("SELECT 5");
    client.say("TB.TAKE take 10 1/3h 0.5");
    everything(server)
}

#[track_caller]
pub fn assert_stored(server: &Server, expected: &Everything, when: &str) {
    let found = everything(server);
    assert_same_buckets(&found.0, &expected.0, when);
    assert_eq!(found.1, expected.1, "{when}");
}

#[test]
fn a_snapshot_brings_back_every_bucket() {
    let mut server = Server::with_clock();
    let before = filled(&server);
    server.connect().say("DEBUG RELOAD");
    assert_stored(&server, &before, "DEBUG RELOAD");
    server.connect().say("SAVE");
    server.kill_and_restart();
    assert_stored(&server, &before, "SAVE and a power cut");
    server.clock().advance_ms(60_000);
    server.restart(true);
    assert_stored(&server, &before, "SHUTDOWN SAVE and a minute");

    let more = filled(&server);
    let mut client = server.connect();
    client.say("BGSAVE");
    wait_for_children(&server, &mut client);
    server.kill_and_restart();
    assert_stored(&server, &more, "BGSAVE and a power cut");
}

#[test]
fn an_append_only_file_brings_back_every_bucket() {
    for preamble in ["yes", "no"] {
        let mut server = with_append_only_file(preamble).start();
        let before = filled(&server);
        let bytes = |server: &Server| fs::metadata(append_only_file(server)).unwrap().len();
        let bytes_before = bytes(&server);
        server.restart(false);
        assert_stored(&server, &before, "a shutdown");
        // It says the same whenever and however often it is read, even before it was written.
        server.clock().advance_ms(-HOUR_MS);
        server.kill_and_restart();
        server.connect().say("DEBUG LOADAOF");
        server.kill_and_restart();
        assert_eq!(bytes(&server), bytes_before, "appended by reading");
        server.clock().advance_ms(HOUR_MS + 60_000);
        server.kill_and_restart();
        assert_stored(&server, &before, "power cuts, an hour before and a minute after");

        let mut client = server.connect();
        // Microseconds per key: the child writes so slowly that the first takes below are made while it does.
        client.say("CONFIG SET rdb-key-save-delay 20000");
        client.say("BGREWRITEAOF");
        for _ in 0..5 {
            client.say("TB.TAKE meanwhile 1e5 1/h 1.5");
            server.clock().advance_us(77_777);
        }
        assert_eq!(client.info("persistence", "aof_rewrite_in_progress"), "1");
        wait_for_children(&server, &mut client);
        assert_eq!(client.info("persistence", "aof_last_bgrewrite_status"), "ok");
        let all = everything(&server);
        server.kill_and_restart();
        assert_stored(&server, &all, "a rewrite, takes meanwhile and a power cut");
        let all = filled(&server);
        server.kill_and_restart();
        assert_stored(&server, &all, "more calls after a rewrite");
    }
}

/// A snapshot is read without the keys that have expired, and nothing tells the append-only file that they are gone. They
/// are still there when it is read.
#[test]
fn a_hold_of_a_bucket_that_expired_unnoticed_is_in_the_append_only_file() {
    let (server, mut client) = with_append_only_file("no").start_with_client();
    for id in ["a", "b"] {
        client.say(&format!("TB.HOLD jobs 5 0 1 60000 {id}"));
    }
    client.say("DEBUG SET-ACTIVE-EXPIRE 0");
    server.clock().advance_ms(HOUR_MS);
    client.say("DEBUG RELOAD");
    client.say("TB.HOLD jobs 5 0 2 60000 c");
    let held = everything(&server);
    client.say("DEBUG LOADAOF");
    assert_stored(&server, &held, "reading the append-only file");
}

/// A server reads the key of such a bucket from the file, and must not show it for even a millisecond.
#[test]
fn a_bucket_that_fills_up_while_the_server_is_down_has_no_key_afterwards() {
    for late_ms in [1, 2, HOUR_MS] {
        let (mut server, mut client) = with_append_only_file("no").start_with_client();
        client.say("TB.TAKE user:1 10 1/h");
        let expires_at_ms = client.expires_at_ms("user:1").unwrap();
        server.kill();
        server.clock().set_us((expires_at_ms + late_ms) * 1000);
        server.start_again();
        assert_eq!(array(server.connect().say("KEYS *")), [], "{late_ms} ms after the expiry");
    }
}

/// Waits until no child writes a file.
pub fn wait_for_children(server: &Server, client: &mut Connection) {
    wait_while_time_passes(&[server.clock()], "the background work is done", || !is_writing_files(client));
}

/// The last command of the file is lost, whole: several buckets of one call never come apart.
#[test]
fn a_truncated_append_only_file_brings_back_what_is_whole() {
    let (server, mut client) = with_append_only_file("no").start_with_client();
    client.say("TB.TAKE user:1 10 1/h");
    client.say("TB.CHARGE user:2 10 1/h 50");
    let before = buckets(&mut client);
    let whole = append_only_bytes(&mut client);
    client.say("TB.MTAKE 3 user:1 10 1/h 1 user:3 10 1/h 1 user:4 10 1/h 1");
    let all = append_only_bytes(&mut client);
    for len in [whole, whole + 1, whole + 20, (whole + all) / 2, all - 26, all - 9, all - 1] {
        let files = cut(&server, &append_only_file(&server), len);
        let reader = with_append_only_file("no").files_in(files.path()).start();
        let found = buckets(&mut reader.connect());
        assert_same_buckets(&found, &before, &format!("{len} of {whole} to {all} bytes"));
    }
}

/// A server does not start on half a snapshot, and says so rather than crash in the middle of a bucket.
#[test]
fn a_truncated_snapshot_is_refused() {
    const CUTS: u64 = 20;
    let (server, mut client) = Server::with_clock_and_client();
    client.say("TB.TAKE user:1 10 1/h");
    client.say("SAVE");
    let snapshot = server.folder().join("dump.rdb");
    let len = fs::metadata(&snapshot).unwrap().len();
    // One bucket, the end and the checksum are the last that is written.
    for missing in (1..=CUTS).map(|step| step * 3) {
        let files = cut(&server, &snapshot, len - missing);
        let log = Server::builder().files_in(files.path()).start_expecting_refusal();
        assert!(!tells_of_a_crash(&log), "{missing} bytes missing:\n{log}");
    }
}

/// A copy of a server's files in which one ends after `len` bytes.
fn cut(server: &Server, file: &Path, len: u64) -> TempDir {
    let files = copy_of_files(server);
    let copy = files.path().join(file.strip_prefix(server.folder()).unwrap());
    File::options().write(true).open(copy).unwrap().set_len(len).unwrap();
    files
}
