//! What changes nothing leaves no trace, and a change is seen by all who look: `WATCH`, client-side caches, keyspace
//! events, counters, files, replicas.

use super::info::counters;
use super::is_refused_before;
use crate::common::calls::{prepare, Call, Outcome, CALLS};
use crate::common::stored::{
    append_only_bytes, assert_same_buckets, buckets, follow, quiet, replicated_bytes, wait_until_replicated,
    with_append_only_file, Buckets,
};
use crate::common::{is_before, text, wait_until, Connection, Server};
use redis::{PushInfo, PushKind, Value};
use std::sync::mpsc::{channel, Receiver};

/// The keys that [`CALLS`] write.
const KEYS: [&str; 3] = ["k", "n", "d"];

/// The keys that a call writes, sorted.
fn written(call: &Call) -> Vec<&'static str> {
    let mut keys = if call.outcome.writes() { call.keys() } else { Vec::new() };
    keys.sort_unstable();
    keys
}

/// The keyspace events of a call: those of the module's class, and those of the generic class.
fn events(call: &Call) -> Vec<String> {
    let of_each = |event: &str| call.keys().iter().map(|key| format!("{event} {key}")).collect::<Vec<_>>();
    match call.outcome {
        Outcome::Took(_) => of_each("tb.take"),
        Outcome::Held(_) => of_each("tb.hold"),
        Outcome::Gave => of_each("tb.give"),
        Outcome::Overrode => of_each("tb.override"),
        Outcome::Filled => [of_each("tb.give"), of_each("del")].concat(),
        Outcome::Denied => denials(call),
        Outcome::Idle | Outcome::Asked | Outcome::Refused => Vec::new(),
    }
}

/// Of several buckets, only those are announced that lack their cost.
fn denials(call: &Call) -> Vec<String> {
    let keys = call.keys();
    let own: Vec<&str> = call.reply.split('[').skip(3).collect();
    let lacks = |place: usize| own.get(place).is_none_or(|decision| decision.starts_with('0'));
    let denied = keys.iter().enumerate().filter(|(place, _)| lacks(*place));
    denied.map(|(_, key)| format!("tb.deny {key}")).collect()
}

/// What a call adds to the counters: allowed, denied, errors, tokens granted.
fn counts(call: &Call) -> [i64; 4] {
    match call.outcome {
        Outcome::Took(tokens) | Outcome::Held(tokens) => [1, 0, 0, tokens],
        Outcome::Gave | Outcome::Filled | Outcome::Idle => [1, 0, 0, 0],
        Outcome::Denied => [0, 1, 0, 0],
        Outcome::Asked | Outcome::Overrode => [0, 0, 0, 0],
        Outcome::Refused => [0, 0, 1, 0],
    }
}

/// A client that hears of keyspace events and, as it caches, of keys that are no longer what they were.
pub struct Listener {
    client: Connection,
    pushes: Receiver<PushInfo>,
}

impl Listener {
    pub fn new(server: &Server) -> Self {
        let (mut client, (sender, pushes)) = (server.connect_resp3(), channel());
        client.inner().set_push_sender(sender);
        client.inner().psubscribe_resp3("__keyevent@0__:*").unwrap();
        client.say("CLIENT TRACKING ON");
        Self { client, pushes }
    }

    fn cache_all(&mut self) {
        for key in KEYS {
            self.client.say(&format!("TB.PEEK {key} 10 1"));
            self.client.say(&format!("TB.STATE {key}"));
        }
    }

    /// What it was told since it was last asked: events, in order, and invalid keys, sorted.
    pub fn heard(&mut self) -> (Vec<String>, Vec<String>) {
        // A server sends what it has to tell before the reply of a later call.
        self.client.say("PING");
        let (mut events, mut invalid) = (Vec::new(), Vec::new());
        for push in self.pushes.try_iter() {
            match (push.kind, push.data.as_slice()) {
                (PushKind::PMessage, [_, channel, key]) => {
                    events.push(format!("{} {}", text(channel).replace("__keyevent@0__:", ""), text(key)));
                }
                (PushKind::Invalidate, [Value::Array(keys)]) => invalid.extend(keys.iter().map(text)),
                other => invalid.push(format!("{other:?}")),
            }
        }
        invalid.sort();
        (events, invalid)
    }
}

/// A replica is sent results, which are no decisions.
#[test]
fn replicas_raise_no_events_of_the_module() {
    let (master, replica) = (quiet().start(), quiet().start());
    follow(&replica, &master);
    for server in [&master, &replica] {
        server.connect().say("CONFIG SET notify-keyspace-events EA");
    }
    let (mut on_master, mut on_replica) = (Listener::new(&master), Listener::new(&replica));
    for call in ["TB.TAKE k 10 1", "TB.TAKE k 10 1 20", "TB.HOLD k 10 1 1 60000 a", "SET marker x"] {
        master.connect().say(call);
    }
    wait_until_replicated(&replica, &master);
    let raised = |listener: &mut Listener| listener.heard().0.join(",");
    let (on_master, on_replica) = (raised(&mut on_master), raised(&mut on_replica));
    assert!(on_replica.contains("set marker") && !on_replica.contains("tb."), "{on_replica}");
    assert_eq!(on_master.contains("tb.take k,tb.deny k,tb.hold k"), !is_before(6, 2), "{on_master}");
}

/// Returns whether the transaction that a watcher begins is given up.
pub fn has_seen_a_change(watcher: &mut Connection) -> bool {
    watcher.say("MULTI");
    watcher.say("PING");
    watcher.say("EXEC") == Value::Nil
}

/// What is stored, how much was appended and sent so far, how many changes are counted, and what `INFO` counts.
fn look(client: &mut Connection) -> (Buckets, [i64; 3], [i64; 6]) {
    let appended = append_only_bytes(client).try_into().unwrap();
    (buckets(client), [appended, replicated_bytes(client), client.changes()], counters(client))
}

/// Makes a call, and holds what it has left behind against what it was to leave.
fn assert_leaves(client: &mut Connection, call: &Call) {
    let (stored_before, written_before, counted_before) = look(client);
    let _ = client.attempt(call.words);
    let (stored, written, counted) = look(client);
    let added: [i64; 4] = std::array::from_fn(|field| counted[field] - counted_before[field]);
    assert_eq!(added, counts(call), "INFO of {}", call.words);
    if call.outcome.writes() {
        assert_ne!(stored, stored_before, "{}", call.words);
        let [appended, sent, changes]: [i64; 3] =
            std::array::from_fn(|place| written[place] - written_before[place]);
        assert!(appended > 0 && sent > 0, "{}: {appended} bytes appended, {sent} sent", call.words);
        assert_eq!(changes, 1, "{}", call.words);
    } else {
        assert_eq!((stored, written), (stored_before, written_before), "{}", call.words);
    }
}

#[test]
fn whoever_looks_sees_a_change_and_nothing_else() {
    let master = with_append_only_file("no").option("repl-ping-replica-period", 36_000).start();
    let replica = quiet().start();
    follow(&replica, &master);
    let (mut client, mut listener) = (master.connect(), Listener::new(&master));
    let mut watchers = KEYS.map(|key| (key, master.connect()));
    // The module's class with the generic one, which all servers have; each alone; and none.
    for classes in ["Edg", "Ed", "Eg", ""] {
        let set = ["CONFIG", "SET", "notify-keyspace-events", classes];
        if classes.contains('d') && is_refused_before((6, 2), &mut client, &set.join(" ")) {
            continue;
        }
        client.run(&set);
        for call in CALLS.iter() {
            prepare(&mut client);
            watchers.iter_mut().for_each(|(key, watcher)| drop(watcher.run(&["WATCH", key])));
            listener.cache_all();
            listener.heard();
            assert_leaves(&mut client, call);
            let mut expected = events(call);
            expected.retain(|event| classes.contains(if event.starts_with("tb.") { 'd' } else { 'g' }));
            let (events, invalid) = listener.heard();
            assert_eq!(events, expected, "{} with {classes}", call.words);
            assert_eq!(invalid, written(call), "a cache, of {}", call.words);
            for (key, watcher) in &mut watchers {
                let is_written = written(call).contains(key);
                assert_eq!(has_seen_a_change(watcher), is_written, "{}, watched {key}", call.words);
            }
            wait_until_replicated(&replica, &master);
            let expected = buckets(&mut client);
            assert_same_buckets(&buckets(&mut replica.connect()), &expected, call.words);
            // Some servers flush in the background.
            wait_until("the buckets are counted that there are", || {
                counters(&mut client)[4] == client.keys()
            });
        }
    }
}

#[test]
fn it_is_announced_which_holds_are_set_and_settled() {
    let (server, mut client) = Server::with_clock_and_client();
    if is_refused_before((6, 2), &mut client, "CONFIG SET notify-keyspace-events Ed") {
        return; // Redis 6.0 has no class of events for modules.
    }
    client.say("CONFIG SET notify-keyspace-events Ed");
    let mut listener = Listener::new(&server);
    listener.heard();
    for (call, expected) in [
        ("TB.HOLD k 10 0 4 5000 a", &["tb.hold k"] as &[&str]),
        ("TB.HOLD k 10 0 4 5000 a", &["tb.hold k"]),
        ("TB.HOLD k 10 0 7 5000 b", &["tb.deny k"]),
        ("TB.HOLD k 10 0 0 5000 none", &[]),
        ("TB.RENEW k 10 0 5000 a", &["tb.hold k"]),
        ("TB.SETTLE k 10 0 a 0", &["tb.settle k"]),
        ("TB.SETTLE k 10 0 a 0", &[]),
        ("TB.RENEW k 10 0 5000 a", &[]),
        ("TB.MHOLD 2 5000 x k 10 0 1 l 10 0 11", &["tb.deny l"]),
        ("TB.MHOLD 2 5000 x k 10 0 1 l 10 0 10", &["tb.hold k", "tb.hold l"]),
        ("TB.MRENEW 2 5000 x k 10 0 l 10 0", &["tb.hold k", "tb.hold l"]),
        ("TB.HOLD l 10 0 0 5000 x", &["tb.hold l"]),
        ("TB.MRENEW 2 5000 x k 10 0 l 10 0", &[]),
    ] {
        client.say(call);
        assert_eq!(listener.heard().0, expected, "{call}");
    }
}

/// The end of an override sends a `del` event for a key that it removes.
#[test]
fn an_override_that_ends_announces_a_key_that_goes() {
    let (server, mut client) = Server::with_clock_and_client();
    client.say("CONFIG SET notify-keyspace-events Eg");
    let mut listener = Listener::new(&server);
    listener.heard();
    for (call, expected) in [
        ("TB.OVERRIDE full 5 1 60000", &[] as &[&str]),
        ("TB.OVERRIDE full 5 1 0", &["del full"]),
        ("TB.OVERRIDE full 5 1 0", &[]),
        ("TB.TAKE used 10 1/h", &[]),
        ("TB.OVERRIDE used 0 1 60000", &[]),
        ("TB.OVERRIDE used 0 1 0", &[]),
        ("TB.GIVE used 10 1/h 1", &["del used"]),
        ("TB.OVERRIDE held 5 0 60000", &[]),
        ("TB.HOLD held 10 0 1 5000 a", &[]),
        ("TB.OVERRIDE held 5 0 0", &[]),
        ("TB.SETTLE held 10 0 a 0", &["del held"]),
    ] {
        client.say(call);
        assert_eq!(listener.heard().0, expected, "{call}");
    }
}
