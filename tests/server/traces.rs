//! What changes nothing leaves no trace, and a change is seen by all who look: `WATCH`, client-side caches, counters,
//! files, replicas.

use crate::common::calls::{prepare, prepared, Call, CALLS};
use crate::common::clock::START_US;
use crate::common::stored::{
    append_only_bytes, assert_same_buckets, buckets, follow, quiet, replicated_bytes, wait_until_replicated,
    with_append_only_file,
};
use crate::common::{array, text, wait_until, Connection, Server};
use redis::{PushKind, Value};
use std::sync::mpsc::{channel, Receiver};

/// The keys that a call writes.
fn written(call: &Call) -> Vec<&'static str> {
    if call.outcome.writes() {
        call.keys()
    } else {
        Vec::new()
    }
}

/// Whether a transaction that watches `key` is given up because another client has made `call`.
pub fn is_seen_by_watch(watcher: &mut Connection, other: &mut Connection, key: &str, call: &str) -> bool {
    watcher.run(&["WATCH", key]);
    let _ = other.attempt(call);
    watcher.say("MULTI");
    watcher.say("PING");
    watcher.say("EXEC") == Value::Nil
}

#[test]
fn a_watched_bucket_is_touched_by_changes_alone() {
    let (server, mut other) = prepared();
    let mut watcher = server.connect();
    for call in CALLS {
        for key in ["k", "n", "d"] {
            prepare(&mut other);
            let is_seen = is_seen_by_watch(&mut watcher, &mut other, key, call.words);
            assert_eq!(is_seen, written(call).contains(&key), "{} for {key}", call.words);
        }
    }
}

/// A client in RESP3 that caches what it reads, and is told when that is no longer true.
struct Cache {
    client: Connection,
    pushes: Receiver<redis::PushInfo>,
}

impl Cache {
    fn new(server: &Server, options: &str) -> Self {
        let mut client = server.connect_resp3();
        let (sender, pushes) = channel();
        client.inner().set_push_sender(sender);
        client.say(&format!("CLIENT TRACKING ON {options}"));
        Self { client, pushes }
    }

    /// Reads the buckets, and forgets what was told before.
    fn read(&mut self) {
        for key in ["k", "n", "d"] {
            self.client.say(&format!("TB.PEEK {key} 10 1"));
            self.client.say(&format!("TB.STATE {key}"));
        }
        self.pushes.try_iter().count();
    }

    /// The keys that are no longer what they were.
    fn invalidated(&mut self) -> Vec<String> {
        // A server sends what it has to tell before the reply of a later call.
        self.client.say("PING");
        let keys = |push: redis::PushInfo| match (push.kind, push.data.first()) {
            (PushKind::Invalidate, Some(Value::Array(keys))) => keys.iter().map(text).collect(),
            other => vec![format!("{other:?}")],
        };
        self.pushes.try_iter().flat_map(keys).collect()
    }
}

#[test]
fn a_client_side_cache_is_told_of_changes_alone() {
    let (server, mut other) = prepared();
    let mut cache = Cache::new(&server, "");
    for call in CALLS {
        prepare(&mut other);
        cache.read();
        let _ = other.attempt(call.words);
        let (mut told, mut expected) = (cache.invalidated(), written(call));
        told.sort();
        expected.sort();
        assert_eq!(told, expected, "{}", call.words);
    }
}

#[test]
fn a_client_side_cache_of_all_keys_is_told_of_changes_and_not_of_denials() {
    let (server, mut other) = prepared();
    let mut cache = Cache::new(&server, "BCAST PREFIX k");
    other.say("TB.TAKE k 10 1 5");
    assert_eq!(cache.invalidated(), [""; 0]);
    other.say("TB.TAKE k 10 1 4");
    wait_until("the change is told", || cache.invalidated() == ["k"]);
}

/// A call that writes counts as a change, is appended and sent; nothing else is.
#[test]
fn changes_alone_are_counted_appended_and_replicated() {
    const TIMES: i64 = 20;
    let master = with_append_only_file("no").option("repl-ping-replica-period", 36_000).start();
    let replica = quiet().start();
    follow(&replica, &master);
    let mut client = master.connect();
    for call in CALLS {
        prepare(&mut client);
        let before = (append_only_bytes(&mut client), replicated_bytes(&mut client), client.changes());
        let stored = buckets(&mut client);
        let times = if call.outcome.writes() { 1 } else { TIMES };
        (0..times).for_each(|_| drop(client.attempt(call.words)));
        let after = (append_only_bytes(&mut client), replicated_bytes(&mut client), client.changes());
        if call.outcome.writes() {
            assert!(after.0 > before.0 && after.1 > before.1, "{}: {before:?}, {after:?}", call.words);
            assert_eq!(after.2 - before.2, 1, "{}", call.words);
            assert_ne!(buckets(&mut client), stored, "{}", call.words);
            wait_until_replicated(&replica, &master);
            let expected = buckets(&mut client);
            assert_same_buckets(&buckets(&mut replica.connect()), &expected, call.words);
        } else {
            assert_eq!(after, before, "{}", call.words);
            assert_eq!(buckets(&mut client), stored, "{}", call.words);
        }
    }
    // From 7.0 on a master's offset also counts what nobody is sent; so look at what the replica got, too.
    wait_until_replicated(&replica, &master);
    let received = replica.connect().count("replication", "slave_repl_offset");
    assert_eq!(received, replicated_bytes(&mut client));
}

#[test]
fn an_allowed_take_sends_at_most_110_bytes() {
    const TAKES: i64 = 1000;
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&replica, &master);
    let mut client = master.connect();
    client.say("TB.TAKE user:1234567 1e5 1/h");
    let before = replicated_bytes(&mut client);
    for _ in 0..TAKES {
        master.clock().advance_us(12_345);
        assert_eq!(client.decide("TB.TAKE user:1234567 1e5 1/h 1.5").allowed, 1);
    }
    let bytes = (replicated_bytes(&mut client) - before) / TAKES;
    assert!((1..=110).contains(&bytes), "{bytes} bytes a take");
}

/// A read-only replica answers what only reads, as its master does, and refuses the rest.
#[test]
fn a_read_only_replica_answers_questions_and_refuses_the_rest() {
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&replica, &master);
    master.clock().set_us(START_US);
    prepare(&mut master.connect());
    wait_until_replicated(&replica, &master);
    replica.clock().set_us(START_US);
    let mut reader = replica.connect();
    let before = buckets(&mut reader);
    for call in CALLS {
        if call.command().audience.only_reads() {
            call.make(&mut reader);
        } else {
            assert!(reader.refusal(call.words).starts_with("READONLY "), "{}", call.words);
        }
    }
    assert_eq!(buckets(&mut reader), before);
    assert_eq!(array(reader.say("KEYS *")).len(), 2);
}
