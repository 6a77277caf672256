//! The same reply however it is asked for.

use super::is_refused_before;
use crate::common::calls::{prepare, Call, CALLS};
use crate::common::stored::on_the_wire;
use crate::common::{shown, Connection, Server};
use redis::{ConnectionLike, Value};

/// A way to make a call.
type Way = fn(&mut Connection, &Call) -> Value;

/// By a script or function that calls what it is given, with the buckets as its keys. An error is its reply.
fn by(client: &mut Connection, caller: &[&str], call: &Call) -> Value {
    let (keys, words) = (call.keys(), call.words.split(' '));
    let command =
        redis::Cmd::new().arg(caller).arg(keys.len()).arg(keys).arg(words.collect::<Vec<_>>()).take();
    client.inner().req_command(&command).unwrap()
}

const SCRIPT: &[&str] = &["EVAL", "return redis.call(unpack(ARGV))"];
const CATCHING_SCRIPT: &[&str] = &["EVAL", "redis.setresp(3); return redis.pcall(unpack(ARGV))"];

fn by_function(client: &mut Connection, call: &Call) -> Value {
    const LIBRARY: &str = "#!lua name=tests\nredis.register_function('forward', function(keys, arguments) \
                           return redis.call(unpack(arguments)) end)";
    if is_refused_before((7, 0), client, "FUNCTION LIST") {
        return by(client, SCRIPT, call);
    }
    client.run(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]);
    by(client, &["FCALL", "forward"], call)
}

#[test]
fn in_resp2_and_resp3_pipelines_transactions_scripts_and_functions() {
    let ways: [(&str, Way); 5] = [
        ("in a pipeline", |client, call| {
            let packed = ["PING", call.words].map(on_the_wire).concat();
            client.inner().req_packed_commands(&packed, 1, 1).unwrap().remove(0)
        }),
        ("in a transaction", |client, call| client.transaction(&["PING", call.words]).remove(1)),
        ("by a script", |client, call| by(client, SCRIPT, call)),
        ("by a script that catches errors, in RESP3", |client, call| by(client, CATCHING_SCRIPT, call)),
        ("by a function", by_function),
    ];
    let server = Server::with_clock();
    for (protocol, mut client) in [("RESP2", server.connect()), ("RESP3", server.connect_resp3())] {
        for call in CALLS.iter() {
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
