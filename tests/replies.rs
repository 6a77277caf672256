//! The same reply however it is asked for, and a denial that nobody else notices.

mod common;

use common::server::is_before_7;
use common::{decision, text, Connection, Server};
use redis::{ConnectionLike, PushKind, Value};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{channel, Receiver};

/// Calls of every command, allowed and denied, one after the other, on the buckets `i`, `j` and `k`.
const CALLS: [&str; 18] = [
    "TB.STATE k",
    "TB.PEEK k 10 1 3",
    "TB.TAKE k 10 1 3",
    "TB.TAKE k 10 1 8",
    "TB.TAKE k 10 1 11",
    "TB.STATE k",
    "TB.TAKEUPTO k 10 1 5",
    "TB.TAKEUPTO k 10 1 50",
    "TB.TAKEUPTO k 10 1 1",
    "TB.RESERVE k 10 1 2.5 60000",
    "TB.RESERVE k 10 1 2.5 10",
    "TB.CHARGE k 10 1 1.25",
    "TB.STATE k",
    "TB.GIVE k 10 1 0.5",
    "TB.MTAKE 2 k 10 1 1 j 5 1/m 1",
    "TB.MTAKE 2 i 10 1 1 j 5 1/m 1",
    "TB.GIVE k 10 1 100",
    "TB.STATE k",
];

fn array(elements: &[i64]) -> Value {
    Value::Array(elements.iter().copied().map(Value::Int).collect())
}

/// What the calls are replied, at the time of the tests' clock.
fn replies() -> Vec<Value> {
    let state = |level: &str| {
        let level = Value::BulkString(level.as_bytes().to_vec());
        Value::Array(vec![level, Value::Int(common::clock::START_US)])
    };
    let several = |binding: &[i64], own: &[&[i64]]| {
        let mut elements: Vec<_> = binding.iter().copied().map(Value::Int).collect();
        elements.push(Value::Array(own.iter().map(|one| array(one)).collect()));
        Value::Array(elements)
    };
    vec![
        Value::Nil,
        array(&[1, 7, 0, 3000]),
        array(&[1, 7, 0, 3000]),
        array(&[0, 7, 1000, 3000]),
        array(&[0, 7, -1, 3000]),
        state("7"),
        array(&[5, 2, 0, 8000]),
        array(&[2, 0, 0, 10_000]),
        array(&[0, 0, 1000, 10_000]),
        array(&[1, -3, 2500, 12_500]),
        array(&[0, -3, 5000, 12_500]),
        array(&[1, -4, 3750, 13_750]),
        state("-3.75"),
        array(&[1, -4, 0, 13_250]),
        several(&[0, -4, 4250, 13_250], &[&[0, -4, 4250, 13_250], &[1, 5, 0, 0]]),
        several(&[1, 4, 0, 60_000], &[&[1, 9, 0, 1000], &[1, 4, 0, 60_000]]),
        array(&[1, 10, 0, 0]),
        Value::Nil,
    ]
}

fn one_by_one(client: &mut Connection) -> Vec<Value> {
    CALLS.iter().map(|call| client.say(call)).collect()
}

fn in_a_pipeline(client: &mut Connection) -> Vec<Value> {
    let mut pipeline = redis::pipe();
    for call in CALLS {
        let mut words = call.split_whitespace();
        pipeline.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
    }
    pipeline.query(client.inner()).unwrap()
}

fn in_a_transaction(client: &mut Connection) -> Vec<Value> {
    client.say("MULTI");
    for call in CALLS {
        assert_eq!(text(&client.say(call)), "QUEUED");
    }
    let Value::Array(replies) = client.say("EXEC") else { panic!("no transaction") };
    replies
}

/// Each call by a script that calls what it is given, with the buckets as its keys.
fn by(client: &mut Connection, caller: &[&str]) -> Vec<Value> {
    let call = |call: &&str| {
        let words = call.split_whitespace();
        client.run(&caller.iter().copied().chain(["3", "i", "j", "k"]).chain(words).collect::<Vec<_>>())
    };
    CALLS.iter().map(call).collect()
}

fn by_function(client: &mut Connection) -> Vec<Value> {
    let library = "#!lua name=tests\nredis.register_function('forward', function(keys, arguments) \
                   return redis.call(unpack(arguments)) end)";
    if is_before_7() {
        let refused = client.try_run(&["FUNCTION", "LOAD", library]).unwrap_err();
        assert!(refused.starts_with("ERR unknown command"), "functions are new in 7.0: {refused}");
        return replies();
    }
    client.run(&["FUNCTION", "LOAD", "REPLACE", library]);
    by(client, &["FCALL", "forward"])
}

#[test]
fn the_same_reply_in_resp2_and_resp3_pipelines_transactions_scripts_and_functions() {
    type Way = fn(&mut Connection) -> Vec<Value>;
    let ways: [(&str, Way); 7] = [
        ("one by one", one_by_one),
        ("in a pipeline", in_a_pipeline),
        ("in a transaction", in_a_transaction),
        ("by a script", |client| by(client, &["EVAL", "return redis.call(unpack(ARGV))"])),
        ("by a script, protected", |client| by(client, &["EVAL", "return redis.pcall(unpack(ARGV))"])),
        ("by a script in RESP3", |client| {
            by(client, &["EVAL", "redis.setresp(3); return redis.call(unpack(ARGV))"])
        }),
        ("by a function", by_function),
    ];
    let server = Server::with_clock();
    for (name, way) in ways {
        for (protocol, mut client) in [("RESP2", server.connect()), ("RESP3", server.connect_resp3())] {
            client.say("FLUSHALL");
            for ((call, reply), expected) in CALLS.iter().zip(way(&mut client)).zip(replies()) {
                assert_eq!(reply, expected, "{call} {name} in {protocol}");
            }
        }
    }
}

/// What the server sends, byte by byte, up to the reply of a PING.
fn bytes_of(server: &Server, requests: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    write!(stream, "{requests}QUIT\r\n").unwrap();
    let mut bytes = String::new();
    stream.read_to_string(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_decision_is_four_integers_on_the_wire() {
    let server = Server::with_clock();
    assert_eq!(bytes_of(&server, "TB.TAKE k 5 1\r\n"), "*4\r\n:1\r\n:4\r\n:0\r\n:1000\r\n+OK\r\n");
    let state = "*2\r\n$1\r\n4\r\n:1767225600000007\r\n+OK\r\n";
    assert_eq!(bytes_of(&server, "TB.STATE k\r\n"), state);
    assert_eq!(bytes_of(&server, "TB.STATE full\r\n"), "$-1\r\n+OK\r\n");
    let resp3 = bytes_of(&server, "HELLO 3\r\nTB.TAKE k 5 1 5\r\nTB.STATE full\r\n");
    assert!(resp3.ends_with("*4\r\n:0\r\n:4\r\n:1000\r\n:1000\r\n_\r\n+OK\r\n"), "{resp3}");
}

#[test]
fn a_bad_call_in_a_transaction_leaves_the_others_as_they_are() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("MULTI");
    client.say("TB.TAKE k 10 1");
    client.say("TB.TAKE k 10 1 -1");
    client.say("TB.TAKE k 10 1");
    let reply = client.inner().req_command(&redis::cmd("EXEC")).unwrap();
    let Value::Array(replies) = reply else { panic!("no transaction: {reply:?}") };
    let [first, Value::ServerError(error), last] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!(decision(first).remaining, 9);
    assert_eq!(
        (error.code(), error.details()),
        ("ERR", Some("cost must be a decimal number of tokens from 0 to 1e12"))
    );
    assert_eq!(decision(last).remaining, 8);
}

#[test]
fn a_script_that_calls_fails_with_the_error_and_one_that_calls_protected_gets_it() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let cost = "ERR cost must be a decimal number of tokens from 0 to 1e12";
    let call = "return redis.call('TB.TAKE', KEYS[1], 10, 1, 'x')";
    let failed = client.try_run(&["EVAL", call, "1", "k"]).unwrap_err();
    assert!(failed.contains(cost), "{failed}");
    let protected = "return redis.pcall('TB.TAKE', KEYS[1], 10, 1, 'x').err";
    let caught = text(&client.run(&["EVAL", protected, "1", "k"]));
    assert!(caught.contains(cost), "{caught}");
    let after = "redis.pcall('TB.TAKE', KEYS[1], 10, 1, 'x'); return redis.call('TB.TAKE', KEYS[1], 10, 1)";
    assert_eq!(decision(&client.run(&["EVAL", after, "1", "k"])).remaining, 9);
}

#[test]
fn a_script_that_may_only_read_may_peek_and_not_take() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let mut call = |command: &str| {
        let script = format!("return redis.call('{command}', KEYS[1], 10, 1)");
        client.try_run(&["EVAL_RO", &script, "1", "k"])
    };
    if is_before_7() {
        let refused = call("TB.PEEK").unwrap_err();
        assert!(refused.starts_with("ERR unknown command"), "such scripts are new in 7.0: {refused}");
        return;
    }
    assert_eq!(decision(&call("TB.PEEK").unwrap()).remaining, 9);
    let refused = call("TB.TAKE").unwrap_err();
    assert!(refused.contains("Write commands are not allowed from read-only scripts"), "{refused}");
}

/// Calls that leave the bucket `k`, of which 4 of 10 tokens are left, as it is.
const WITHOUT_A_TRACE: [&str; 16] = [
    "TB.PEEK k 10 1 1",
    "TB.PEEK k 10 1 5",
    "TB.STATE k",
    "TB.TAKE k 10 1 5",
    "TB.TAKE k 10 1 11",
    "TB.TAKE k 0 1",
    "TB.TAKE k 10 1 0",
    "TB.TAKEUPTO k 0.5 1 1",
    "TB.RESERVE k 10 1 6 1000",
    "TB.RESERVE k 10 1 0 1000",
    "TB.GIVE k 10 1 0",
    "TB.CHARGE k 10 1 0",
    "TB.MTAKE 2 k 10 1 1 other 1 1 2",
    "TB.MTAKE 2 other 1 1 1 k 10 1 5",
    "TB.MTAKE 1 k 10 1 0",
    "TB.GIVE absent 10 1 1",
];

/// Calls that change the bucket `k`, of which 4 of 10 tokens are left.
const WITH_A_TRACE: [&str; 9] = [
    "TB.TAKE k 10 1 1",
    "TB.TAKE k 10 1 0.000001",
    "TB.TAKEUPTO k 10 1 1",
    "TB.RESERVE k 10 1 5 10000",
    "TB.CHARGE k 10 1 5",
    "TB.GIVE k 10 1 1",
    "TB.GIVE k 10 1 6",
    "TB.MTAKE 2 k 10 1 1 other 1 1 1",
    "TB.MTAKE 2 other 1 1 1 k 10 1 1",
];

/// A fresh bucket `k` that holds 4 of 10 tokens, and nothing else.
fn prepare(client: &mut Connection) {
    client.say("FLUSHALL");
    client.say("TB.TAKE k 10 1 6");
}

/// Whether a transaction that watches `k` is executed although another client has made `call`.
fn watch_survives(watcher: &mut Connection, other: &mut Connection, call: &str) -> bool {
    watcher.say("WATCH k");
    // An error has to leave no trace either.
    let _ = other.try_run(&call.split_whitespace().collect::<Vec<_>>());
    watcher.say("MULTI");
    watcher.say("PING");
    watcher.say("EXEC") != Value::Nil
}

/// Calls that are refused. (6.x has no arity of its own for a module's command, so the second gets as far as us.)
const REFUSED: [&str; 4] =
    ["TB.TAKE k 10 1 x", "TB.TAKE k 10", "TB.MTAKE 2 k 10 1 1 k 10 1 1", "TB.RESTORE k x"];

#[test]
fn a_watched_bucket_is_not_touched_by_what_changes_nothing() {
    let server = Server::with_clock();
    let (mut watcher, mut other) = (server.connect(), server.connect());
    for call in WITHOUT_A_TRACE.into_iter().chain(REFUSED) {
        prepare(&mut other);
        assert!(watch_survives(&mut watcher, &mut other, call), "{call}");
    }
}

#[test]
fn a_watched_bucket_that_is_full_is_not_touched_by_what_leaves_it_full() {
    let server = Server::with_clock();
    let (mut watcher, mut other) = (server.connect(), server.connect());
    for call in [
        "TB.PEEK k 10 1 1",
        "TB.STATE k",
        "TB.TAKE k 10 1 11",
        "TB.TAKE k 0 1",
        "TB.TAKE k 10 1 0",
        "TB.GIVE k 10 1 5",
        "TB.CHARGE k 10 1 0",
        "TB.MTAKE 2 k 10 1 1 other 1 1 2",
    ] {
        assert!(watch_survives(&mut watcher, &mut other, call), "{call}");
    }
    assert!(!watch_survives(&mut watcher, &mut other, "TB.TAKE k 10 1 1"));
}

#[test]
fn a_watched_bucket_is_touched_by_every_change() {
    let server = Server::with_clock();
    let (mut watcher, mut other) = (server.connect(), server.connect());
    for call in WITH_A_TRACE {
        prepare(&mut other);
        assert!(!watch_survives(&mut watcher, &mut other, call), "{call}");
    }
}

/// A client in RESP3 that caches what it reads of `k`, and is told when that is no longer true.
struct Cache {
    client: Connection,
    pushes: Receiver<redis::PushInfo>,
}

impl Cache {
    fn new(server: &Server) -> Self {
        let mut client = server.connect_resp3();
        let (sender, pushes) = channel();
        client.inner().set_push_sender(sender);
        client.say("CLIENT TRACKING ON");
        Self { client, pushes }
    }

    /// Reads the bucket, and forgets what was told before.
    fn read(&mut self) {
        self.client.say("TB.PEEK k 10 1");
        self.client.say("TB.STATE k");
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
fn a_client_side_cache_stays_valid_whatever_changes_nothing() {
    let server = Server::with_clock();
    let mut other = server.connect();
    let mut cache = Cache::new(&server);
    for call in WITHOUT_A_TRACE.into_iter().chain(REFUSED) {
        prepare(&mut other);
        cache.read();
        let _ = other.try_run(&call.split_whitespace().collect::<Vec<_>>());
        assert_eq!(cache.invalidated(), [""; 0], "{call}");
    }
}

#[test]
fn a_client_side_cache_is_told_of_every_change() {
    let server = Server::with_clock();
    let mut other = server.connect();
    let mut cache = Cache::new(&server);
    for call in WITH_A_TRACE {
        prepare(&mut other);
        cache.read();
        other.say(call);
        assert_eq!(cache.invalidated(), ["k"], "{call}");
    }
}

#[test]
fn a_client_side_cache_of_all_keys_is_told_of_changes_and_not_of_denials() {
    let server = Server::with_clock();
    let mut other = server.connect();
    prepare(&mut other);
    let mut cache = Cache::new(&server);
    cache.client.say("CLIENT TRACKING OFF");
    cache.client.say("CLIENT TRACKING ON BCAST PREFIX k");
    other.say("TB.TAKE k 10 1 5");
    assert_eq!(cache.invalidated(), [""; 0]);
    other.say("TB.TAKE k 10 1 4");
    common::wait_until("the change is told", || cache.invalidated() == ["k"]);
}
