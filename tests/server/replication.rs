//! A replica is sent results, not calls: whatever its clock says, it has every bucket of its master to the
//! micro-token, and expires it at the same millisecond.

use super::holds::fill;
use super::persistence::{assert_stored, everything, wait_for_children};
use crate::common::calls::{Audience, Call, COMMANDS};
use crate::common::engine::Brand;
use crate::common::stored::{
    append_only_bytes, append_only_file, buckets_alive, commands, follow, on_the_wire, quiet,
    wait_until_replicated, wait_while_time_passes, with_append_only_file,
};
use crate::common::{is_before, text, texts, wait_until, Engine, Server, HOUR_MS};
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;

const DAY_MS: i64 = 24 * HOUR_MS;

/// Compares all that a replica and its origin have.
#[track_caller]
pub fn assert_same(replica: &Server, origin: &Server) {
    wait_until_replicated(replica, origin);
    by_the_clock_of(origin, replica, || assert_stored(replica, &everything(origin), "on a replica"));
}

/// Looks at a replica by its origin's clock: by its own, what has ended or expired there has not yet ended here.
pub fn by_the_clock_of(origin: &Server, replica: &Server, look: impl FnOnce()) {
    let now_us = replica.clock().now_us();
    replica.clock().set_us(origin.clock().now_us());
    look();
    replica.clock().set_us(now_us);
}

/// Through a connection, a file, and a connection beside that of the stream, as Redis 8 and Valkey 8 can.
#[test]
fn a_replica_that_comes_later_has_every_bucket_and_so_has_its_file() {
    let Engine { brand, version } = Engine::under_test();
    for (settings, are_known) in [
        ("repl-diskless-sync yes,repl-diskless-load disabled", true),
        ("repl-diskless-sync yes,repl-diskless-load swapdb", true),
        ("repl-diskless-sync no,repl-diskless-load disabled", true),
        ("repl-diskless-sync no,repl-diskless-load swapdb", true),
        ("repl-rdb-channel yes", brand == Brand::Redis && version >= (8, 0)),
        ("dual-channel-replication-enabled yes", brand == Brand::Valkey),
    ] {
        let preamble = if settings.contains("disabled") { "no" } else { "yes" };
        let (master, mut replica) = (quiet().start(), with_append_only_file(preamble).start());
        for (server, setting) in
            [&master, &replica].iter().flat_map(|server| settings.split(',').map(move |one| (server, one)))
        {
            let told = server.connect().attempt(&format!("CONFIG SET {setting}"));
            assert_eq!(told.is_ok(), are_known, "{setting}");
        }
        master.clock().advance_ms(DAY_MS);
        fill(&mut master.connect(), master.clock());
        replica.connect().say("TB.TAKE forgotten 10 1/h");
        follow(&replica, &master);
        fill(&mut master.connect(), master.clock());
        assert_same(&replica, &master);
        let keys = master.connect().keys();
        wait_while_time_passes(&[replica.clock()], "the replica's own buckets are freed", || {
            buckets_alive(&mut replica.connect()) == keys
        });
        wait_for_children(&replica, &mut replica.connect());
        replica.kill_and_restart();
        assert_eq!(replica.connect().info("replication", "role"), "master");
        by_the_clock_of(&master, &replica, || {
            assert_stored(&replica, &everything(&master), "in the file of a replica");
        });
    }
}

/// Also one that was cut off for a while, and a replica of a replica has every bucket before and after the promotion.
#[test]
fn a_promoted_replica_goes_on_where_its_master_was() {
    let [old, new, sub_replica] = [(); 3].map(|()| quiet().start());
    old.clock().advance_ms(DAY_MS);
    follow(&new, &old);
    sub_replica.clock().advance_ms(DAY_MS / 2);
    follow(&sub_replica, &new);
    let mut client = old.connect();
    client.say("CLIENT KILL TYPE replica");
    fill(&mut client, old.clock());
    assert_same(&new, &old);
    assert_same(&sub_replica, &old);
    assert_eq!(["sync_full", "sync_partial_ok"].map(|field| client.count("stats", field)), [1, 1]);

    // A replica whose clock is ahead of its master's hides what has expired by it, as for any type.
    new.clock().set_us(old.clock().now_us());
    new.connect().say("REPLICAOF NO ONE");
    const CALLS: &str = "TB.SETTLE renewed 10 1/h a 1;TB.HOLD many 1000 0 9 5000 x;TB.PEEK many 1000 0 1000;\
        TB.PEEK unseen 10 1/h 10;TB.HOLD many 1000 0 400 5000 y";
    for call in CALLS.split(';') {
        let [told, expected] = [&new, &old].map(|server| server.connect().decide(call));
        assert_eq!(told, expected, "{call}");
        for server in [&new, &old] {
            server.clock().advance_ms(5000);
        }
    }
    assert_stored(&new, &everything(&old), "after the promotion");
    fill(&mut new.connect(), new.clock());
    assert_same(&sub_replica, &new);
    follow(&old, &new);
    assert_same(&old, &new);
}

/// A replica that evicts keys by itself is sent changes of holds that it has no more. With some of them missing, their
/// tokens would be missing for ever after a promotion.
#[test]
fn a_replica_that_lost_a_bucket_with_holds_forgets_it_until_it_is_whole_again() {
    for is_evicted in [false, true] {
        let master = quiet().start();
        let evicts = "replica-read-only no,replica-ignore-maxmemory no,maxmemory-policy volatile-ttl";
        let replica = quiet().options(evicts).start();
        follow(&replica, &master);
        let (mut client, mut reader) = (master.connect(), replica.connect());
        let mut lose = || {
            wait_until_replicated(&replica, &master);
            assert_same(&replica, &master);
            if is_evicted {
                reader.say("CONFIG SET maxmemory 1");
                wait_until("it is evicted", || reader.keys() == 0);
                reader.say("CONFIG SET maxmemory 0");
            } else {
                reader.say("DEL jobs");
            }
        };
        for id in ["a", "b", "c"] {
            client.say(&format!("TB.HOLD jobs 5 0 1 60000 {id}"));
        }
        lose();
        for call in ["TB.HOLD jobs 5 0 2 90000 a", "TB.SETTLE jobs 5 0 b 0", "TB.RENEW jobs 5 0 60000 c"] {
            client.say(call);
            wait_until_replicated(&replica, &master);
            assert_eq!(replica.connect().keys(), 0, "{call} has brought back a part");
        }
        // Of the two holds one ends, and the other is set.
        master.clock().advance_ms(60_000);
        client.say("TB.HOLD jobs 5 0 2 90000 a");
        assert_same(&replica, &master);
        client.say("TB.HOLD jobs 5 0 1 90000 d");
        lose();
        client.say("TB.SETTLE jobs 5 0 a 0");
        wait_until_replicated(&replica, &master);
        let mut promoted = replica.connect();
        promoted.say("REPLICAOF NO ONE");
        for id in 0..5 {
            assert_eq!(promoted.decide(&format!("TB.HOLD jobs 5 0 1 60000 {id}")).allowed, 1, "hold {id}");
        }
    }
}

/// Whoever reads two buckets at once from a replica finds both before a take of both, or both after it. And the end of a
/// bucket does not lean on DEL, which an operator may have taken away.
#[test]
fn each_call_is_sent_as_one_effect() {
    let (server, mut client) = with_append_only_file("no").start_with_client();
    client.say("TB.MTAKE 2 a 10 1/h 1 b 10 1/h 1");
    client.say("TB.GIVE a 10 1/h 1");
    assert_eq!(client.keys(), 1);
    // What is appended is what replicas are sent.
    let appended = commands(&fs::read(append_only_file(&server)).unwrap());
    let own: Vec<_> = appended.iter().filter(|words| words[0] == b"TB.RESTORE").map(Vec::len).collect();
    assert_eq!(own, [5, 3], "words: {appended:?}");
}

// ---- Only effects are followed ------------------------------------------------------------------------------

/// A master of which nothing is real but its stream: an empty snapshot, then `stream`.
fn stream_to_replica(replica: &Server, stream: &[u8]) {
    // Without a checksum.
    let snapshot = b"REDIS0006\xff\0\0\0\0\0\0\0\0";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    replica.connect().say(&format!("REPLICAOF 127.0.0.1 {port}"));
    let (mut master, _) = listener.accept().unwrap();
    let (mut requests, mut parser) = (master.try_clone().unwrap(), redis::Parser::new());
    while texts(parser.parse_value(&mut requests).expect("the replica hung up"))[0] != "PSYNC" {
        master.write_all(b"+OK\r\n").unwrap();
    }
    let head = format!("+FULLRESYNC {} 0\r\n${}\r\n", "0123456789".repeat(4), snapshot.len());
    master.write_all(&[head.as_bytes(), snapshot, stream].concat()).unwrap();
    wait_until("the stream was read", || text(&replica.connect().say("EXISTS end")) == "1");
    replica.connect().say("REPLICAOF NO ONE");
}

/// What was decided elsewhere comes as an effect. Only redis-cell's calls come as they are, for what it left in a key. An
/// effect that no bucket can have had is passed over, and what follows it is read.
#[test]
fn a_call_or_a_bad_effect_from_a_master_or_a_file_changes_nothing() {
    let writers = COMMANDS.iter().filter(|command| command.audience == Audience::Writers);
    let ours = writers.filter(|command| command.name.starts_with("TB."));
    let calls = ours.flat_map(Call::of).map(|call| call.words);
    let bad_effects = [b"".as_slice(), b"\x01\0", &[0xff; 25], &[0; 1000]];
    let bad = bad_effects.map(|effect| redis::cmd("TB.RESTORE").arg("k").arg(effect).get_packed_command());
    let left = "SET cell 978307200000000000";
    let good = [left, "CL.THROTTLE cell 9 1 3600", "SET end 1"].map(on_the_wire);
    let stream = calls.map(on_the_wire).chain(bad).chain(good).collect::<Vec<_>>().concat();

    let replica = Server::start();
    stream_to_replica(&replica, &stream);
    let writer = with_append_only_file("no").start();
    writer.connect().say("SET end 0");
    let mut file = File::options().append(true).open(append_only_file(&writer)).unwrap();
    file.write_all(&stream).unwrap();
    let bytes = file.metadata().unwrap().len();
    let reader = with_append_only_file("no").files_in(writer.folder()).start();
    assert_eq!(append_only_bytes(&mut reader.connect()), bytes, "what was read was appended again");
    for server in [replica, reader] {
        let mut client = server.connect();
        assert_eq!(client.state("cell").unwrap().0, "9");
        assert_eq!((client.keys(), text(&client.say("GET end"))), (2, "1".to_owned()));
        let warnings = server.log().matches("ignored a TB.* call from a master or a file").count();
        assert_eq!(warnings, 1, "{}", server.log());
    }
}

/// Redis 6 can be told to replicate scripts as they were called, which decides nothing elsewhere.
#[test]
fn replaying_scripts_is_warned_of() {
    if !is_before(7, 0) {
        return; // There is no such setting.
    }
    let warns = |value: &str| {
        let server = Server::builder().option("lua-replicate-commands", value).start();
        server.log().contains("lua-replicate-commands is 'no'")
    };
    assert!(warns("no"));
    assert!(!warns("yes"));
}
