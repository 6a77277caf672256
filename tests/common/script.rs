//! The script of clients whose server has no module: commands as calls of it, and what it stores.

use super::model::Bucket;
use super::{text, Connection, Server, ServerBuilder};
use redis::Value;
use std::sync::OnceLock;

pub const SCRIPT: &str = include_str!("../../clients/fallback.lua");

static SHA: OnceLock<String> = OnceLock::new();

pub fn without_module() -> ServerBuilder {
    Server::builder().without_module().controlled_clock()
}

/// A server without the module, with a clock that only the test moves, that has the script; and a client of it.
pub fn with_clock_and_client() -> (Server, Connection) {
    let server = without_module().start();
    let client = connect(&server);
    (server, client)
}

/// A client of a server that has the script from now on.
pub fn connect(server: &Server) -> Connection {
    let mut client = server.connect();
    let sha = text(&client.run(&["SCRIPT", "LOAD", SCRIPT]));
    assert_eq!(*SHA.get_or_init(|| sha.clone()), sha);
    client
}

/// The words of a command as those of a call of the script: the same, but that the keys come first.
pub fn words(command: &str) -> String {
    let mut words = command.split_whitespace();
    let name = words.next().and_then(|name| name.strip_prefix("TB.")).expect(command);
    let arguments: Vec<_> = words.collect();
    let groups: Vec<&[&str]> =
        if name == "MTAKE" { arguments[1..].chunks(4).collect() } else { vec![&arguments] };
    let keys: Vec<_> = groups.iter().map(|group| group[0]).collect();
    let others = groups.iter().map(|group| group[1..].join(" ")).collect::<Vec<_>>().join(" ");
    let sha = SHA.get().expect("no server has the script");
    format!("EVALSHA {sha} {} {} {name} {others}", keys.len(), keys.join(" "))
}

pub fn stored(client: &mut Connection, key: &str) -> Option<Bucket> {
    let Value::BulkString(bytes) = client.run(&["GET", key]) else { return None };
    let text = String::from_utf8(bytes).unwrap();
    let fields: Vec<i64> = text.split(' ').skip(1).map(|field| field.parse().unwrap()).collect();
    let [level_micro, refilled_at_us, _expires_at_ms] = fields[..] else { panic!("no bucket: {text}") };
    Some(Bucket { level_micro, refilled_at_us })
}
