//! A replica is sent results, not calls: whatever its clock says, it has every bucket of its master to the
//! micro-token, and expires it at the same millisecond.

use super::persistence::wait_for_children;
use crate::common::engine::Brand;
use crate::common::stored::{
    append_only_file, assert_same_buckets, buckets, buckets_alive, fill, follow, on_the_wire, quiet,
    wait_until_replicated, wait_while_time_passes, with_append_only_file,
};
use crate::common::{is_before, text, texts, wait_until, Connection, Engine, Server, HOUR_MS};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenbucket::bucket::Bucket;
use tokenbucket::effect::Effect;

const DAY_MS: i64 = 24 * HOUR_MS;

/// A master, and a replica whose clock is a day behind.
fn pair() -> (Server, Server) {
    let (master, replica) = (quiet().start(), quiet().start());
    master.clock().advance_ms(DAY_MS);
    follow(&replica, &master);
    (master, replica)
}

#[track_caller]
fn assert_same(replica: &Server, origin: &Server) {
    wait_until_replicated(replica, origin);
    let stored = buckets(&mut origin.connect());
    assert!(!stored.is_empty());
    assert_same_buckets(&buckets(&mut replica.connect()), &stored, "on a replica");
}

#[test]
fn replicas_and_their_replicas_have_every_bucket() {
    let (master, replica) = pair();
    let sub_replica = quiet().start();
    sub_replica.clock().advance_ms(DAY_MS / 2);
    follow(&sub_replica, &replica);
    fill(&mut master.connect(), master.clock());
    assert_same(&replica, &master);
    assert_same(&sub_replica, &master);
}

#[test]
fn a_replica_that_comes_later_has_every_bucket() {
    for diskless in ["yes", "no"] {
        for load in ["disabled", "swapdb"] {
            let master = quiet().option("repl-diskless-sync", diskless).start();
            let replica = quiet().option("repl-diskless-load", load).start();
            master.clock().advance_ms(DAY_MS);
            fill(&mut master.connect(), master.clock());
            replica.connect().say("TB.TAKE forgotten 10 1/h");
            follow(&replica, &master);
            assert_same(&replica, &master);
            let keys = master.connect().keys();
            wait_while_time_passes(&[replica.clock()], "the replica's own buckets are freed", || {
                buckets_alive(&mut replica.connect()) == keys
            });
        }
    }
}

/// Redis 8 and Valkey 8 can send the snapshot and the stream at once, on two connections.
#[test]
fn a_replica_on_two_channels_has_every_bucket() {
    let (master, replica) = (quiet().start(), quiet().start());
    let is_known = ["repl-rdb-channel", "dual-channel-replication-enabled"].map(|option| {
        let set = |server: &Server| server.connect().try_run(&["CONFIG", "SET", option, "yes"]);
        set(&master).and(set(&replica)).is_ok()
    });
    let Engine { brand, version } = Engine::under_test();
    assert_eq!(is_known, [brand == Brand::Redis && version >= (8, 0), brand == Brand::Valkey]);

    master.clock().advance_ms(DAY_MS);
    fill(&mut master.connect(), master.clock());
    follow(&replica, &master);
    fill(&mut master.connect(), master.clock());
    assert_same(&replica, &master);
}

#[test]
fn a_replica_that_was_cut_off_catches_up() {
    let (master, replica) = pair();
    let mut client = master.connect();
    client.say("CLIENT KILL TYPE replica");
    fill(&mut client, master.clock());
    assert_same(&replica, &master);
    assert_eq!(client.info("stats", "sync_full"), "1");
    assert_eq!(client.info("stats", "sync_partial_ok"), "1");
}

#[test]
fn a_promoted_replica_goes_on_where_its_master_was() {
    let (old, new) = pair();
    fill(&mut old.connect(), old.clock());
    let sub_replica = quiet().start();
    follow(&sub_replica, &new);
    assert_same(&new, &old);
    let before = buckets(&mut old.connect());

    // A replica whose clock is ahead of its master's hides what has expired by it, as for any type.
    new.clock().set_us(old.clock().now_us() + 1_000_000);
    new.connect().say("REPLICAOF NO ONE");
    assert_same_buckets(&buckets(&mut new.connect()), &before, "after the promotion");
    fill(&mut new.connect(), new.clock());
    assert_ne!(buckets(&mut new.connect()), before);
    assert_same(&sub_replica, &new);
    follow(&old, &new);
    assert_same(&old, &new);
}

#[test]
fn the_append_only_file_of_a_replica_has_every_bucket() {
    let keeping = || quiet().option("appendonly", "yes").option("appendfsync", "always");
    for preamble in ["yes", "no"] {
        let master = quiet().start();
        let mut replica = keeping().option("aof-use-rdb-preamble", preamble).start();
        master.clock().advance_ms(DAY_MS);
        fill(&mut master.connect(), master.clock());
        follow(&replica, &master);
        fill(&mut master.connect(), master.clock());
        assert_same(&replica, &master);
        wait_for_children(&replica, &mut replica.connect());
        replica.kill_and_restart();
        assert_eq!(replica.connect().info("replication", "role"), "master");
        let expected = buckets(&mut master.connect());
        assert_same_buckets(&buckets(&mut replica.connect()), &expected, "in the file of a replica");
    }
}

/// What expires on the master goes from the replica at the same moment, although it has another clock.
#[test]
fn what_expires_on_the_master_goes_from_the_replica() {
    let (master, replica) = pair();
    let mut client = master.connect();
    for bucket in 0..100 {
        client.say(&format!("TB.TAKE user:{bucket} 10 1"));
    }
    client.say("TB.TAKE stays 10 1/h");
    assert_same(&replica, &master);
    master.clock().advance_ms(3000);
    wait_while_time_passes(&[master.clock()], "all have expired", || buckets_alive(&mut client) == 1);
    assert_same(&replica, &master);
    assert_eq!(replica.connect().keys(), 1);
}

/// A denial writes nothing, but for one that follows a step back of the clock.
#[test]
fn a_denial_after_a_step_back_reaches_the_replica() {
    let (master, replica) = pair();
    let mut client = master.connect();
    client.say("TB.TAKE user:1 10 1/h 10");
    master.clock().advance_ms(-HOUR_MS);
    assert_eq!(client.decide("TB.TAKE user:1 10 1/h").allowed, 0);
    assert_eq!(client.state("user:1").unwrap().1, master.clock().now_us());
    assert_same(&replica, &master);
}

/// Whoever reads two buckets at once from a replica finds both before a take of both, or both after it.
#[test]
fn a_take_from_several_buckets_arrives_as_one() {
    const STATES: usize = 200;
    let (master, replica) = pair();
    let seen = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = master.connect();
            wait_until("the reader has seen enough", || {
                (0..100).for_each(|_| drop(client.say("TB.MTAKE 2 a 1e5 1/h 1 b 1e5 1/h 1")));
                seen.load(Ordering::SeqCst) >= STATES
            });
        });
        let mut client = replica.connect();
        let mut last = None;
        while seen.load(Ordering::SeqCst) < STATES {
            let both = both_levels(&mut client);
            assert_eq!(both[0], both[1], "half of a TB.MTAKE");
            if last.replace(both.clone()) != Some(both) {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    assert_same(&replica, &master);
}

/// The levels of two buckets at one moment.
fn both_levels(client: &mut Connection) -> [String; 2] {
    const LOOK: &str = "
        local a, b = redis.call('TB.STATE', KEYS[1]), redis.call('TB.STATE', KEYS[2])
        return {a and a[1] or 'full', b and b[1] or 'full'}";
    texts(client.run(&["EVAL", LOOK, "2", "a", "b"])).try_into().unwrap()
}

// ---- Only effects are followed ------------------------------------------------------------------------------

/// A master of which nothing is real but its stream: an empty snapshot, then `stream`.
fn stream_to_replica(replica: &Server, stream: &[u8]) {
    let empty = Server::builder().without_module().start();
    empty.connect().say("SAVE");
    let snapshot = fs::read(empty.folder().join("dump.rdb")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    replica.connect().say(&format!("REPLICAOF 127.0.0.1 {port}"));
    let (mut master, _) = listener.accept().unwrap();
    let mut requests = BufReader::new(master.try_clone().unwrap()).lines();
    let mut request =
        || requests.find_map(|line| line.ok().filter(|line| line.starts_with(char::is_alphabetic)));
    loop {
        match request().expect("the replica hung up").to_uppercase().as_str() {
            "PING" => master.write_all(b"+PONG\r\n").unwrap(),
            "REPLCONF" => master.write_all(b"+OK\r\n").unwrap(),
            "PSYNC" => break,
            _ => {}
        }
    }
    let head = format!("+FULLRESYNC {} 0\r\n${}\r\n", "0123456789".repeat(4), snapshot.len());
    master.write_all(&[head.as_bytes(), &snapshot, stream].concat()).unwrap();
    wait_until("the stream was read", || text(&replica.connect().say("EXISTS end")) == "1");
    replica.connect().say("REPLICAOF NO ONE");
}

const DECIDED_ELSEWHERE: [&str; 8] = [
    "TB.TAKE k 10 1/h",
    "TB.TAKEUPTO k 10 1/h 3",
    "TB.RESERVE k 10 1/h 1 0",
    "TB.CHARGE k 10 1/h 5",
    "TB.GIVE k 10 1/h 1",
    "TB.MTAKE 1 k 10 1/h 1",
    "CL.THROTTLE cell 9 1 3600",
    "SET end 1",
];

/// What was decided elsewhere comes as an effect. Only redis-cell's calls come as they are.
fn assert_only_cl_throttle_was_decided(server: &Server) {
    let mut client = server.connect();
    assert_eq!(client.state("k"), None);
    assert_eq!(client.state("cell").unwrap().0, "9");
    let warnings = server.log().matches("ignored a TB.* call from a master or a file").count();
    assert_eq!(warnings, 1, "{}", server.log());
}

#[test]
fn a_call_from_a_master_decides_nothing() {
    let replica = Server::start();
    stream_to_replica(&replica, &DECIDED_ELSEWHERE.map(on_the_wire).concat());
    assert_only_cl_throttle_was_decided(&replica);
}

#[test]
fn a_call_from_a_file_decides_nothing() {
    let server = with_append_only_file("no").start();
    server.connect().say("SET first 1");
    let mut file = File::options().append(true).open(append_only_file(&server)).unwrap();
    file.write_all(&DECIDED_ELSEWHERE.map(on_the_wire).concat()).unwrap();
    let reader = with_append_only_file("no").files_in(server.folder()).start();
    assert_only_cl_throttle_was_decided(&reader);
}

/// The end of a bucket does not lean on a command that an operator may have taken away.
#[test]
fn a_bucket_that_is_full_again_is_gone_on_replicas_where_del_is_renamed() {
    let master = quiet().configuration_file("rename-command DEL \"\"\n").start();
    let replica = quiet().start();
    follow(&replica, &master);
    let mut client = master.connect();
    client.say("TB.TAKE k 10 1/h 4");
    client.say("TB.TAKE stays 10 1/h 4");
    client.say("TB.GIVE k 10 1/h 4");
    assert_eq!(client.keys(), 1);
    assert_same(&replica, &master);
    assert_eq!(replica.connect().keys(), 1);
}

/// An effect without an expiry, as a rewritten file has it, leaves none.
#[test]
fn an_effect_without_an_expiry_takes_away_the_one_there_was() {
    let (server, mut client) = Server::with_clock_and_client();
    client.say("TB.CHARGE debtor 10 1000 1000");
    let effect = |expire_at_ms| {
        let bucket = Bucket { level_micro: -1_000_000_000, refilled_at_us: server.clock().now_us() };
        Effect::Stored { bucket, expire_at_ms }.encode()
    };
    let soon_ms = server.clock().now_us() / 1000 + 5000;
    for (expire_at_ms, expected) in [(Some(soon_ms), Some(soon_ms)), (None, None)] {
        client.run(&[b"TB.RESTORE", b"debtor".as_slice(), effect(expire_at_ms).as_ref()]);
        assert_eq!(client.expires_at_ms("debtor"), expected);
    }
    client.run(&[b"TB.RESTORE", b"debtor".as_slice(), Effect::Cleared.encode().as_ref()]);
    assert_eq!(client.keys(), 0);
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
