//! What changes nothing leaves no trace, and a change is seen by all who look: `WATCH`, client-side caches, counters,
//! files, replicas.

use crate::common::calls::{prepare, prepared, Call, CALLS};
use crate::common::clock::START_US;
use crate::common::stored::{
    append_only_bytes, assert_same_buckets, buckets, follow, quiet, replicated_bytes, wait_until_replicated,
    with_append_only_file,
};
use crate::common::{array, text, Connection};
use redis::{PushInfo, PushKind, Value};
use std::sync::mpsc::{channel, Receiver};

/// The keys that a call writes.
fn written(call: &Call) -> Vec<&'static str> {
    if call.outcome.writes() {
        call.keys()
    } else {
        Vec::new()
    }
}

/// Whether a transaction that watches `key` is given up because of what `others` do.
pub fn is_seen_by_watch(watcher: &mut Connection, key: &str, others: impl FnOnce()) -> bool {
    watcher.run(&["WATCH", key]);
    others();
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
            let is_seen = is_seen_by_watch(&mut watcher, key, || drop(other.attempt(call.words)));
            assert_eq!(is_seen, written(call).contains(&key), "{} for {key}", call.words);
        }
    }
}

/// The keys of which a client that caches is told that they are no longer what they were.
fn invalidated(cache: &mut Connection, pushes: &Receiver<PushInfo>) -> Vec<String> {
    // A server sends what it has to tell before the reply of a later call.
    cache.say("PING");
    let keys = |push: PushInfo| match (push.kind, push.data.first()) {
        (PushKind::Invalidate, Some(Value::Array(keys))) => keys.iter().map(text).collect(),
        other => vec![format!("{other:?}")],
    };
    pushes.try_iter().flat_map(keys).collect()
}

#[test]
fn a_client_side_cache_is_told_of_changes_alone() {
    let (server, mut other) = prepared();
    let (mut cache, (sender, pushes)) = (server.connect_resp3(), channel());
    cache.inner().set_push_sender(sender);
    cache.say("CLIENT TRACKING ON");
    for call in CALLS {
        prepare(&mut other);
        for key in ["k", "n", "d"] {
            cache.say(&format!("TB.PEEK {key} 10 1"));
            cache.say(&format!("TB.STATE {key}"));
        }
        invalidated(&mut cache, &pushes);
        let _ = other.attempt(call.words);
        let (mut told, mut expected) = (invalidated(&mut cache, &pushes), written(call));
        told.sort();
        expected.sort();
        assert_eq!(told, expected, "{}", call.words);
    }
}

/// What was appended and sent so far, in bytes, and how many changes are counted.
fn written_bytes(client: &mut Connection) -> (u64, i64, i64) {
    (append_only_bytes(client), replicated_bytes(client), client.changes())
}

/// A call that writes counts as a change, is appended and sent; nothing else is.
#[test]
fn changes_alone_are_counted_appended_and_replicated() {
    const TIMES: i64 = 20;
    const TAKES: i64 = 100;
    let master = with_append_only_file("no").option("repl-ping-replica-period", 36_000).start();
    let replica = quiet().start();
    follow(&replica, &master);
    let mut client = master.connect();
    for call in CALLS {
        prepare(&mut client);
        let (before, stored) = (written_bytes(&mut client), buckets(&mut client));
        let times = if call.outcome.writes() { 1 } else { TIMES };
        (0..times).for_each(|_| drop(client.attempt(call.words)));
        let after = written_bytes(&mut client);
        if call.outcome.writes() {
            assert!(after.0 > before.0 && after.1 > before.1, "{}: {before:?}, {after:?}", call.words);
            assert_eq!(after.2 - before.2, 1, "{}", call.words);
            assert_ne!(buckets(&mut client), stored, "{}", call.words);
            wait_until_replicated(&replica, &master);
            let expected = buckets(&mut client);
            assert_same_buckets(&buckets(&mut replica.connect()), &expected, call.words);
        } else {
            assert_eq!((after, buckets(&mut client)), (before, stored), "{}", call.words);
        }
    }
    // From 7.0 on a master's offset also counts what nobody is sent; so look at what the replica got, too.
    wait_until_replicated(&replica, &master);
    let received = replica.connect().count("replication", "slave_repl_offset");
    assert_eq!(received, replicated_bytes(&mut client));

    let before = replicated_bytes(&mut client);
    for _ in 0..TAKES {
        master.clock().advance_us(12_345);
        assert_eq!(client.decide("TB.TAKE user:1234567 1e5 1/h 1.5").allowed, 1);
    }
    let bytes = (replicated_bytes(&mut client) - before) / TAKES;
    assert!((1..=110).contains(&bytes), "{bytes} bytes an allowed take");
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
