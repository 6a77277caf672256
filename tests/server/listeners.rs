//! Results are built for replicas and files only while somebody may be listening. Whoever starts to listen, at
//! whatever moment and under whatever load, misses nothing.
//!
//! Every server here has a clock of its own. A replica or a file that was sent a call instead of its result would
//! decide on it at another time, and have another bucket. Servers before 7.0 do not announce all that is needed
//! to know that nobody listens; there, results are always built, and the rest holds all the same.
//!
//! `ROUNDS=10` makes the tests under load ten times as long.

use super::persistence::wait_for_children;
use super::replication::by_the_clock_of;
use crate::common::calls::{Audience, Call, Outcome, CALLS};
use crate::common::stored::{
    assert_same_buckets, begin_to_follow, buckets, copy_of_files, follow, is_writing_files, on_the_wire,
    quiet, replicated_bytes, wait_until_replicated, wait_while_time_passes, Buckets,
};
use crate::common::{environment, is_before, wait_until, Connection, Random, Server, ServerBuilder};
use redis::Value;
use std::time::Duration;

/// A server that forgets as fast as it can that somebody was listening.
///
/// It looks for listeners all the time, drops its backlog a second after the last replica, and lets a new
/// replica wait for a second before it takes the snapshot: seconds of the clock that the test moves.
fn forgetful() -> ServerBuilder {
    // The oldest servers count these by the clock of the test, in which many fit into one second anyway.
    let looks_per_second = if is_before(7, 0) { 10 } else { 500 };
    quiet()
        .option("hz", looks_per_second)
        .options("dynamic-hz no,repl-backlog-ttl 1,repl-diskless-sync yes,repl-diskless-sync-delay 1")
        .options("appendfsync no,auto-aof-rewrite-percentage 0")
}

/// A replica that has asked for a snapshot, and waits for it as long as the master's clock stands.
///
/// Meanwhile the master has a backlog, and its replication offset shows what it would send.
fn waiting_replica(server: &Server) -> Connection {
    let (mut replica, mut client) = (server.connect(), server.connect());
    replica.say("REPLCONF capa eof capa psync2");
    replica.send("PSYNC ? -1");
    wait_until("the replica waits", || client.info("replication", "connected_slaves") == "1");
    replica
}

/// Returns whether the server builds results. To be asked while it has neither replicas nor other clients.
fn builds_results(server: &Server) -> bool {
    const CALL: &str = "TB.TAKE probe:for:listeners 1000000 1";
    let _replica = waiting_replica(server);
    let mut client = server.connect();
    client.say(CALL);
    let before = replicated_bytes(&mut client);
    client.say(CALL);
    let bytes = replicated_bytes(&mut client) - before;
    client.say("DEL probe:for:listeners");
    bytes != on_the_wire(CALL).len() as i64
}

fn wait_until_alone(server: &Server) {
    let mut client = server.connect();
    wait_while_time_passes(&[server.clock()], "the backlog is gone", || {
        client.info("replication", "repl_backlog_active") == "0"
            && client.info("replication", "connected_slaves") == "0"
    });
}

/// Waits until no results are built any more. (Where they always are: until that has been seen.)
fn wait_until_results_are_not_built(server: &Server) {
    // Asking makes a backlog, so it must not be asked too soon.
    const TIME_TO_NOTICE: Duration = Duration::from_millis(50);
    wait_until("no results are built", || {
        wait_until_alone(server);
        std::thread::sleep(TIME_TO_NOTICE);
        builds_results(server) == is_before(7, 0)
    });
    wait_until_alone(server);
}

/// Changes count all the same, for save points.
#[test]
fn no_results_are_built_while_nobody_listens() {
    let server = forgetful().start();
    wait_until_results_are_not_built(&server);
    let mut client = server.connect();
    let changes = client.changes();
    client.say("TB.TAKE user:1 100 1/h");
    client.say("TB.MTAKE 2 user:1 100 1/h 1 user:2 100 1/h 1");
    assert_eq!(client.changes(), changes + 2);

    let replica = forgetful().start();
    client.say("CONFIG SET repl-diskless-sync-delay 0");
    follow(&replica, &server);
    client.say("TB.TAKE user:1 10 1/h");
    replica.connect().say("REPLICAOF NO ONE");
    client.say("CONFIG SET repl-diskless-sync-delay 1");
    wait_until_results_are_not_built(&server);

    client.say("CONFIG SET appendonly yes");
    wait_for_children(&server, &mut client);
    assert!(builds_results(&server), "not built although there is an append-only file");
    client.say("CONFIG SET appendonly no");
    wait_until_results_are_not_built(&server);
    // Being a replica, and the backlog of that time.
    wait_until_results_are_not_built(&replica);
    client.say("DEBUG RELOAD");
    wait_until_results_are_not_built(&server);
}

/// A snapshot that is taken without a fork, while a replica waits for its own, names a place in the stream. Who
/// starts from that file is sent the stream from there on.
#[test]
fn a_replica_that_starts_from_a_saved_file_misses_nothing() {
    let master = forgetful().start();
    wait_until_results_are_not_built(&master);
    let mut client = master.connect();
    client.say("TB.TAKE user:1 100 1/h");
    let waiting = waiting_replica(&master);
    client.say("TB.TAKE user:1 100 1/h");
    client.say("SAVE");
    client.say("TB.TAKE user:1 100 1/h");
    client.say("TB.TAKE user:2 100 1/h");

    let files = copy_of_files(&master);
    let configuration = files.path().join("replica.conf");
    std::fs::write(&configuration, format!("replicaof 127.0.0.1 {}\n", master.port())).unwrap();
    master.clock().advance_ms(60_000);
    let replica = forgetful().files_in(files.path()).option("include", configuration.display()).start();
    wait_until_replicated(&replica, &master);
    assert_eq!(client.info("stats", "sync_partial_ok"), "1");
    client.say("TB.TAKE user:1 100 1/h");
    wait_until_replicated(&replica, &master);
    let expected = buckets(&mut client);
    assert_same_buckets(&buckets(&mut replica.connect()), &expected, "started from the file");
    drop(waiting);
}

/// Many times the default if the environment says so.
fn rounds(default: u64) -> u64 {
    // Where results are always built, there is less to be seen.
    environment("ROUNDS", 1) * if is_before(7, 0) { default.div_ceil(4) } else { default }
}

/// By how much the clock of a master is ahead of those of its replicas: more than they drift apart.
const HEAD_START_MS: i64 = 60_000;

/// A client that makes calls on the first of several servers, and lets time pass on all of them.
struct Load<'a> {
    servers: Vec<&'a Server>,
    client: Connection,
    random: Random,
}

impl<'a> Load<'a> {
    fn on(servers: Vec<&'a Server>, number: u64) -> Self {
        Self { client: servers[0].connect(), servers, random: Random::new(number) }
    }

    /// Makes a few calls in one go, and a command in the midst of them.
    fn call_around(&mut self, words: &str) {
        const CALLS_AT_ONCE: u64 = 20;
        const LONGEST_STEP_US: i64 = 20_000;
        // Time passes between calls only: the oldest servers look at it twice in one.
        let random = &mut self.random;
        self.servers.iter().for_each(|server| server.clock().advance_us(random.between(0, LONGEST_STEP_US)));
        let mut calls = redis::pipe();
        (0..CALLS_AT_ONCE / 2).for_each(|_| add_call(&mut calls, random));
        calls.add_command(redis::Cmd::new().arg(words.split(' ').collect::<Vec<_>>()).take());
        (0..CALLS_AT_ONCE / 2).for_each(|_| add_call(&mut calls, random));
        calls.query::<Vec<Value>>(self.client.inner()).unwrap();
    }

    fn call_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        const TIMES_BETWEEN_LOOKS: u64 = 10;
        wait_until(what, || {
            self.call_for_a_while(TIMES_BETWEEN_LOOKS);
            condition()
        });
    }

    fn call_for_a_while(&mut self, times: u64) {
        (0..times).for_each(|_| self.call_around("PING"));
    }

    /// Waits until the first server has neither replicas nor a backlog any more, and lets it notice.
    fn wait_until_forgotten(&mut self) {
        wait_until_alone(self.servers[0]);
        self.call_for_a_while(50);
    }

    /// Waits until a replica of the first server is linked, and compares every bucket.
    fn assert_misses_nothing(&mut self, replica: &Server) {
        let (master, mut client) = (self.servers[0], replica.connect());
        self.call_until("the replica is linked", || client.info("replication", "master_link_status") == "up");
        let times = self.random.below(5);
        self.call_for_a_while(times);
        wait_until_replicated(replica, master);
        let expected = lasting_buckets(master);
        by_the_clock_of(master, replica, || {
            assert_same_buckets(&lasting_buckets(replica), &expected, "on a replica");
        });
    }
}

/// Any call that may write, on keys of its own of so many: by itself, in a transaction, or by a script.
fn add_call(calls: &mut redis::Pipeline, random: &mut Random) {
    const KEYS: u64 = 100;
    let is_wanted =
        |call: &&Call| call.command().audience == Audience::Writers && call.outcome != Outcome::Refused;
    let (wanted, number): (Vec<_>, _) = (CALLS.iter().filter(is_wanted).collect(), random.below(KEYS));
    let words = random.pick(&wanted).with_keys(|key| format!("{key}:{number}"));
    let words: Vec<&str> = words.split(' ').collect();
    match random.below(4) {
        0 => drop(calls.cmd("MULTI").add_command(redis::Cmd::new().arg(words).take()).cmd("EXEC")),
        1 => drop(calls.cmd("EVAL").arg("return redis.call(unpack(ARGV))").arg(0).arg(words)),
        _ => drop(calls.add_command(redis::Cmd::new().arg(words).take())),
    }
}

/// The buckets of a server but for those that are just expiring: in that millisecond a key is there for whoever looks, and
/// the server may remove it all the same.
fn lasting_buckets(server: &Server) -> Buckets {
    let soon_ms = server.clock().now_us() / 1000 + 10;
    let mut found = buckets(&mut server.connect());
    found.retain(|_, bucket| bucket.expires_at_ms.is_none_or(|at_ms| at_ms > soon_ms));
    found
}

/// With a snapshot through a file, through a connection, and through a connection of its own.
#[test]
fn replicas_that_come_under_load_miss_nothing() {
    std::thread::scope(|scope| {
        for lane in 0..6 {
            let settings: &[_] = match lane % 3 {
                0 => &["repl-diskless-sync no"],
                1 => &["repl-diskless-sync yes"],
                _ => &["repl-rdb-channel yes", "dual-channel-replication-enabled yes"],
            };
            scope.spawn(move || replicas_come_and_go(lane, settings));
        }
    });
}

/// In each round another server is the master, and those that follow it were its master and its replica.
fn replicas_come_and_go(lane: u64, settings: &[&str]) {
    let mut servers = [(); 3].map(|()| forgetful().start());
    for (server, setting) in servers.iter().flat_map(|server| settings.iter().map(move |one| (server, one))) {
        // Two channels are for those who know them: see the tests of replication.
        let _ = server.connect().attempt(&format!("CONFIG SET {setting}"));
    }
    let mut random = Random::new(lane);
    for round in 0..rounds(6) {
        let [master, replicas @ ..] = &servers;
        // A replica whose clock is ahead of its master's hides what has expired by it.
        let latest_us = servers.iter().map(|server| server.clock().now_us()).max().unwrap();
        master.clock().set_us(latest_us + HEAD_START_MS * 1000);
        let mut load = Load::on(servers.iter().collect(), lane * 100 + round);
        if round % 4 != 3 {
            load.wait_until_forgotten();
        }
        match round % 3 {
            0 => {}
            // A backlog without a replica, begun while no results were built.
            1 => drop(waiting_replica(master)),
            _ => load.call_around("BGSAVE"),
        }
        for replica in replicas {
            begin_to_follow(replica, master);
            load.call_for_a_while(random.below(20));
        }
        replicas.iter().for_each(|replica| load.assert_misses_nothing(replica));
        replicas.iter().for_each(|replica| drop(replica.connect().say("REPLICAOF NO ONE")));
        servers.rotate_left(1);
    }
}

#[test]
fn append_only_files_that_are_switched_on_under_load_miss_nothing() {
    std::thread::scope(|scope| {
        for preamble in ["yes", "no"] {
            scope.spawn(move || append_only_files_come_and_go(preamble));
        }
    });
}

fn append_only_files_come_and_go(preamble: &str) {
    let server = forgetful().option("aof-use-rdb-preamble", preamble).start();
    let (mut client, mut random) = (server.connect(), Random::new(preamble.len() as u64));
    let mut load = Load::on(vec![&server], preamble.len() as u64);
    for round in 0..rounds(60) {
        if round % 4 == 3 {
            // The file has to wait for this child to end.
            load.call_around("BGSAVE");
        }
        load.call_around("CONFIG SET appendonly yes");
        load.call_until("the append-only file is complete", || !is_writing_files(&mut client));
        if round % 4 == 1 {
            load.call_around("BGREWRITEAOF");
            load.call_until("the append-only file is rewritten", || !is_writing_files(&mut client));
        }
        load.call_for_a_while(random.below(10));
        let expected = lasting_buckets(&server);
        let reader = forgetful().clock_of(&server).files_in(server.folder());
        let reader = reader.option("appendonly", "yes").start();
        assert_same_buckets(&lasting_buckets(&reader), &expected, "from the append-only file");
        load.call_around("CONFIG SET appendonly no");
        load.call_for_a_while(25);
    }
}
