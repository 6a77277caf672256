//! Keyspace events: who takes, gives and is denied.

use super::is_refused_before;
use crate::common::calls::{prepare, Call, Outcome, CALLS};
use crate::common::{texts, Connection, Server};

/// A client that has subscribed to all keyspace events, and another that makes calls.
struct Listener {
    client: Connection,
    other: Connection,
}

impl Listener {
    fn new(server: &Server, classes: &str) -> Self {
        let mut other = server.connect();
        other.run(&["CONFIG", "SET", "notify-keyspace-events", classes]);
        let mut client = server.connect();
        client.say("PSUBSCRIBE __key*@0__:*");
        client.say("SUBSCRIBE end");
        Self { client, other }
    }

    /// What a call made known, each as `event key`; both channels must say the same.
    fn events_of(&mut self, call: &str) -> Vec<String> {
        self.heard();
        let _ = self.other.attempt(call);
        let (by_key, by_event) = self.heard();
        assert_eq!(by_key, by_event, "{call}");
        by_event
    }

    /// What was told until now: by key, and by event.
    fn heard(&mut self) -> (Vec<String>, Vec<String>) {
        self.other.say("PUBLISH end now");
        let (mut by_key, mut by_event) = (Vec::new(), Vec::new());
        loop {
            let message = texts(self.client.inner().recv_response().unwrap());
            let [.., channel, payload] = message.as_slice() else { panic!("no message: {message:?}") };
            match channel.split_once("@0__:") {
                Some(("__keyspace", key)) => by_key.push(format!("{payload} {key}")),
                Some(("__keyevent", event)) => by_event.push(format!("{event} {payload}")),
                _ if channel == "end" => return (by_key, by_event),
                _ => {}
            }
        }
    }
}

/// What a call is to make known: events of the module's class, and those of the generic class.
fn expected(call: &Call) -> Vec<String> {
    let of_each = |event: &str| call.keys().iter().map(|key| format!("{event} {key}")).collect::<Vec<_>>();
    match call.outcome {
        Outcome::Took(_) => of_each("tb.take"),
        Outcome::Held(_) => of_each("tb.hold"),
        Outcome::Gave => of_each("tb.give"),
        Outcome::Filled => [of_each("tb.give"), of_each("del")].concat(),
        Outcome::Denied => denied(call),
        Outcome::Idle | Outcome::Asked | Outcome::Refused => Vec::new(),
    }
}

/// Of several buckets, only those are announced that lack their cost.
fn denied(call: &Call) -> Vec<String> {
    let keys = call.keys();
    let own: Vec<&str> = call.reply.split('[').skip(3).collect();
    let lacks = |place: usize| own.get(place).is_none_or(|decision| decision.starts_with('0'));
    let denied = keys.iter().enumerate().filter(|(place, _)| lacks(*place));
    denied.map(|(_, key)| format!("tb.deny {key}")).collect()
}

/// Redis 6.0 has no class of events for modules.
fn has_module_events(server: &Server) -> bool {
    !is_refused_before((6, 2), &mut server.connect(), "CONFIG SET notify-keyspace-events KEd")
}

#[test]
fn they_tell_who_takes_gives_and_is_denied_and_nothing_else() {
    let server = Server::with_clock();
    // The module's class with the generic one, which all servers have; each alone; and none.
    for (classes, tells_own, tells_generic) in
        [("KEdg", true, true), ("KEd", true, false), ("KEg", false, true), ("", false, false)]
    {
        if classes.contains('d') && !has_module_events(&server) {
            continue;
        }
        let mut listener = Listener::new(&server, classes);
        for call in CALLS {
            let mut expected = expected(call);
            expected.retain(|event| if event.starts_with("tb.") { tells_own } else { tells_generic });
            prepare(&mut listener.other);
            assert_eq!(listener.events_of(call.words), expected, "{} with {classes}", call.words);
        }
    }
}

#[test]
fn they_tell_which_holds_are_set_and_settled() {
    let server = Server::with_clock();
    if !has_module_events(&server) {
        return;
    }
    let mut listener = Listener::new(&server, "KEd");
    for (call, expected) in [
        ("TB.HOLD k 10 0 4 5000 a", &["tb.hold k"] as &[&str]),
        ("TB.HOLD k 10 0 4 5000 a", &["tb.hold k"]),
        ("TB.HOLD k 10 0 7 5000 b", &["tb.deny k"]),
        ("TB.HOLD k 10 0 0 5000 none", &[]),
        ("TB.SETTLE k 10 0 a 0", &["tb.settle k"]),
        ("TB.SETTLE k 10 0 a 0", &[]),
        ("TB.MHOLD 2 5000 x k 10 0 1 l 10 0 11", &["tb.deny l"]),
        ("TB.MHOLD 2 5000 x k 10 0 1 l 10 0 10", &["tb.hold k", "tb.hold l"]),
        ("TB.HOLD l 10 0 0 5000 x", &["tb.hold l"]),
    ] {
        assert_eq!(listener.events_of(call), expected, "{call}");
    }
}
