//! Servers that read and write their connections in several threads. They run parts of a command's way outside the main
//! thread, while replicas and the append-only file wait for the effects of others.

use super::hostile::assert_well;
use super::persistence::{assert_stored, everything};
use crate::common::calls::{Call, CALLS};
use crate::common::stored::{buckets_alive, is_linked, on_the_wire};
use crate::common::{wait_until, Random, Server, ServerBuilder};
use redis::{ConnectionLike, Value};
use std::collections::BTreeSet;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

const CONNECTIONS: u64 = 40;
const BATCHES: usize = 40;
const BATCH: usize = 50;

#[test]
fn with_io_threads_replicas_and_files_get_what_every_command_did() {
    [2, 4].into_iter().for_each(assert_all_is_kept);
}

fn assert_all_is_kept(io_threads: u32) {
    let mut master = threaded(io_threads).controlled_clock().start();
    let mut replica = threaded(io_threads).clock_of(&master).start();
    replica.connect().run(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let (mut to, mut from) = (replica.connect(), master.connect());
    wait_until("the replica is linked", || {
        master.clock().advance_ms(50);
        is_linked(&mut to)
    });
    let allowed = send_from_many(&master);
    let several: BTreeSet<_> = several_buckets().map(|call| call.command().name).collect();
    assert!(several.is_subset(&allowed), "{several:?} are to be tried, allowed were {allowed:?}");
    assert!(from.count("stats", "io_threaded_reads_processed") > 0, "no thread took part");
    // Removes what has expired.
    from.run(&["SCAN", "0", "COUNT", "1000000"]);
    let sent = from.info("replication", "master_repl_offset");
    wait_until("the replica has everything", || to.info("replication", "slave_repl_offset") == sent);
    let stored = everything(&master);
    let is_counted = || buckets_alive(&mut master.connect()) == stored.0.len() as i64;
    wait_until("the buckets that are counted are those that are there", is_counted);
    assert!(!stored.0.is_empty());
    assert_stored(&replica, &stored, "on the replica");
    for (server, which) in [(&mut master, "master"), (&mut replica, "replica")] {
        assert_well(server, &mut server.connect());
        server.kill_and_restart();
        assert_stored(server, &stored, &format!("in the {which}'s append-only file"));
    }
}

/// A server that appends before it replies, and leaves the syncing to the system: a server that syncs each second puts off
/// appending by its clock, which the test stops.
fn threaded(io_threads: u32) -> ServerBuilder {
    Server::builder()
        .option("io-threads", io_threads)
        // Up to Redis 7 threads only write unless they are told to read.
        .option("io-threads-do-reads", "yes")
        .options("appendonly yes,appendfsync no,auto-aof-rewrite-percentage 0,repl-diskless-sync-delay 0")
}

/// Sends calls on many connections, while the server's clock follows the real one. Returns the names of commands of which
/// a call was allowed.
fn send_from_many(server: &Server) -> BTreeSet<&'static str> {
    thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS).map(|salt| scope.spawn(move || send(server, salt))).collect();
        while !senders.iter().all(ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(1));
            server.clock().advance_ms(1);
        }
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    })
}

/// Sends calls on one connection, many at a time, and overwrites and deletes a bucket now and then.
fn send(server: &Server, salt: u64) -> BTreeSet<&'static str> {
    let (mut client, mut random) = (server.connect(), Random::new(salt));
    let mut allowed = BTreeSet::new();
    for _ in 0..BATCHES {
        let calls: Vec<_> = (0..BATCH).map(|_| any_call(&mut random)).collect();
        let packed: Vec<u8> = calls.iter().flat_map(|call| line(call, &mut random)).collect();
        let replies = client.inner().req_packed_commands(&packed, 0, BATCH);
        let replies = replies.unwrap_or_else(|error| panic!("{error}\n{}", server.log()));
        let all = calls.iter().zip(&replies);
        allowed.extend(all.filter(|(_, reply)| is_allowed(reply)).map(|(call, _)| call.command().name));
        let key = format!("{}{}", random.pick(&["k", "n"]), random.below(5));
        // From Redis 8.2 on such a thread frees what is overwritten.
        client.run(&["SET", &key, "x"]);
        client.run(&["UNLINK", &key]);
    }
    allowed
}

/// A call on some of a few buckets, for which all connections compete.
fn line(call: &Call, random: &mut Random) -> Vec<u8> {
    on_the_wire(&call.with_keys(|key| format!("{key}{}", random.below(5))))
}

/// Half of them of several buckets.
fn any_call(random: &mut Random) -> &'static Call {
    let several: Vec<_> = several_buckets().collect();
    if random.once_in(2) {
        return several[random.below(several.len() as u64) as usize];
    }
    random.pick(&CALLS)
}

fn several_buckets() -> impl Iterator<Item = &'static Call> {
    CALLS.iter().filter(|call| {
        let command = call.command();
        command.audience.are_clients() && command.arguments.contains(&"bucket block multiple")
    })
}

fn is_allowed(reply: &Value) -> bool {
    matches!(reply, Value::Array(fields) if matches!(fields.as_slice(), [Value::Int(1..), ..]))
}
