//! A replica is sent results, not calls: whatever its clock says, it has every bucket of its master to the
//! micro-token, and expires it at the same millisecond.

use crate::common::engine::Brand;
use crate::common::stored::{
    assert_same_buckets, buckets, buckets_alive, fill, follow, is_writing_files, quiet,
    wait_until_replicated, wait_while_time_passes,
};
use crate::common::{texts, wait_until, Connection, Engine, Server, HOUR_MS};
use std::sync::atomic::{AtomicUsize, Ordering};

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
        wait_for_rewrite(&replica);
        replica.kill_and_restart();
        assert_eq!(replica.connect().info("replication", "role"), "master");
        let expected = buckets(&mut master.connect());
        assert_same_buckets(&buckets(&mut replica.connect()), &expected, "in the file of a replica");
    }
}

fn wait_for_rewrite(server: &Server) {
    let mut client = server.connect();
    wait_while_time_passes(&[server.clock()], "the append-only file is complete", || {
        !is_writing_files(&mut client)
    });
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
