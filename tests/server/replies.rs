//! The same reply however it is asked for.

use crate::common::calls::{prepare, prepared, Call, CALLS};
use crate::common::{array, decision, is_before, shown, text, Connection, Server, PATIENCE};
use redis::{ConnectionLike, Value};
use std::io::{Read, Write};
use std::net::TcpStream;

/// A way to make a call.
type Way = fn(&mut Connection, &Call) -> Value;

fn in_a_pipeline(client: &mut Connection, call: &Call) -> Value {
    let mut command = redis::Cmd::new();
    command.arg(call.words.split(' ').collect::<Vec<_>>());
    let packed = [redis::cmd("PING").get_packed_command(), command.get_packed_command()].concat();
    client.inner().req_packed_commands(&packed, 1, 1).unwrap().remove(0)
}

fn in_a_transaction(client: &mut Connection, call: &Call) -> Value {
    client.transaction(&["PING", call.words]).remove(1)
}

/// By a script or function that calls what it is given, with the buckets as its keys. An error is its reply.
fn by(client: &mut Connection, caller: &[&str], call: &Call) -> Value {
    let (keys, words) = (call.keys(), call.words.split(' '));
    let count = keys.len().to_string();
    let command: Vec<_> =
        caller.iter().copied().chain([count.as_str()]).chain(keys.iter().copied()).chain(words).collect();
    let mut packed = redis::Cmd::new();
    packed.arg(command);
    client.inner().req_command(&packed).unwrap()
}

fn by_script(client: &mut Connection, call: &Call) -> Value {
    by(client, &["EVAL", "return redis.call(unpack(ARGV))"], call)
}

fn by_script_that_catches(client: &mut Connection, call: &Call) -> Value {
    by(client, &["EVAL", "redis.setresp(3); return redis.pcall(unpack(ARGV))"], call)
}

fn by_function(client: &mut Connection, call: &Call) -> Value {
    const LIBRARY: &str = "#!lua name=tests\nredis.register_function('forward', function(keys, arguments) \
                           return redis.call(unpack(arguments)) end)";
    if is_before(7, 0) {
        let refused = client.try_run(&["FUNCTION", "LOAD", LIBRARY]).unwrap_err();
        assert!(refused.starts_with("ERR unknown command"), "functions are new in 7.0: {refused}");
        return by_script(client, call);
    }
    client.run(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]);
    by(client, &["FCALL", "forward"], call)
}

#[test]
fn in_resp2_and_resp3_pipelines_transactions_scripts_and_functions() {
    let ways: [(&str, Way); 5] = [
        ("in a pipeline", in_a_pipeline),
        ("in a transaction", in_a_transaction),
        ("by a script", by_script),
        ("by a script that catches errors, in RESP3", by_script_that_catches),
        ("by a function", by_function),
    ];
    let server = Server::with_clock();
    for (protocol, mut client) in [("RESP2", server.connect()), ("RESP3", server.connect_resp3())] {
        for call in CALLS {
            prepare(&mut client);
            call.make(&mut client);
            for (name, way) in ways {
                prepare(&mut client);
                let reply = shown(&way(&mut client, call));
                // Scripts add to an error where it came from.
                assert!(reply.contains(call.reply), "{} {name} in {protocol}: {reply}", call.words);
                let is_error = call.reply.starts_with("ERR ");
                assert!(is_error || reply == call.reply, "{} {name} in {protocol}: {reply}", call.words);
            }
        }
    }
}

/// What the server sends, byte by byte.
fn bytes_of(server: &Server, requests: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
fn a_bad_call_in_a_transaction_or_a_script_leaves_the_others_as_they_are() {
    let (_server, mut client) = prepared();
    let replies = client.transaction(&["TB.TAKE k 10 1", "TB.TAKE k 10 1 -1", "TB.TAKE k 10 1"]);
    let error = "ERR cost must be a decimal number of tokens from 0 to 1e12";
    assert_eq!(shown(&replies[1]), error);
    assert_eq!([0, 2].map(|place| decision(&replies[place]).remaining), [3, 2]);
    const SCRIPT: &str = "
        local caught = redis.pcall('TB.TAKE', KEYS[1], 10, 1, 'x').err
        return {caught, redis.call('TB.TAKE', KEYS[1], 10, 1)}";
    let replies = array(client.run(&["EVAL", SCRIPT, "1", "k"]));
    assert!(text(&replies[0]).contains(error), "{replies:?}");
    assert_eq!(decision(&replies[1]).remaining, 1);
}

#[test]
fn a_script_that_may_only_read_may_only_call_what_reads() {
    let (_server, mut client) = prepared();
    for call in CALLS {
        let script = ["EVAL_RO", "return redis.pcall(unpack(ARGV))"];
        if is_before(7, 0) {
            let refused = client.try_run(&[script[0], script[1], "0"]).unwrap_err();
            assert!(refused.starts_with("ERR unknown command"), "such scripts are new in 7.0: {refused}");
            return;
        }
        let reply = shown(&by(&mut client, &script, call));
        let is_refused = reply.contains("Write commands are not allowed from read-only scripts");
        assert_eq!(is_refused, !call.command().audience.only_reads(), "{}: {reply}", call.words);
    }
}
