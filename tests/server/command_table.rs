//! How the commands show themselves: `COMMAND INFO`, `COMMAND DOCS`, `COMMAND GETKEYS`, key specifications.

use super::is_refused_before;
use crate::common::calls::{Audience, Call, CALLS, COMMANDS};
use crate::common::{array, integer, is_before, shown, text, texts, Connection, Server};
use redis::Value;
use std::collections::BTreeMap;

/// An array of names and values.
pub fn table(value: &Value) -> BTreeMap<String, Value> {
    array(value.clone()).chunks(2).map(|pair| (text(&pair[0]), pair[1].clone())).collect()
}

/// What `COMMAND INFO` says of a command.
fn command_info(client: &mut Connection, name: &str) -> Vec<Value> {
    array(array(client.say(&format!("COMMAND INFO {name}"))).remove(0))
}

/// Where a command's keys are: the first, the last and the step.
fn places(name: &str) -> [i64; 3] {
    match name {
        "TB.MTAKE" => [2, -1, 4],
        "TB.MSETTLE" | "TB.BMTAKE" | "TB.TAKEANY" => [3, -1, 4],
        "TB.MHOLD" => [4, -1, 4],
        "TB.MRENEW" => [4, -1, 3],
        "TB.BMHOLD" | "TB.HOLDANY" => [5, -1, 4],
        "TB.RESTORE" => [1, -1, 2],
        "TB.TOP" => [0, 0, 0],
        _ => [1, 1, 1],
    }
}

#[test]
fn command_info_shows_flags_and_where_the_keys_are() {
    let (_server, mut client) = Server::start_with_client();
    for command in COMMANDS {
        let (name, audience) = (command.name, command.audience);
        let info = command_info(&mut client, name);
        assert_eq!(text(&info[0]), name);
        assert_eq!(info[1], Value::Int(-1), "{name}: the module counts arguments");
        let flags = texts(info[2].clone());
        let has = |flag: &str| flags.contains(&flag.to_owned());
        let (expected, of_key): (_, &[&str]) = match audience {
            Audience::Readers => (["readonly", "fast"], &["RO", "access"]),
            Audience::Writers => (["write", "fast"], &["RW", "access", "update"]),
            // Servers before 7.0 do not know the flag.
            Audience::WaitingWriters if is_before(7, 0) => (["write", "write"], &[]),
            Audience::WaitingWriters => (["write", "blocking"], &["RW", "access", "update"]),
            Audience::Operators => (["readonly", "admin"], &[]),
            Audience::Servers => (["write", "admin"], &["RW", "access", "update"]),
        };
        assert!(expected.into_iter().all(has), "{name}: {expected:?} in {flags:?}");
        assert_eq!(has("write"), !audience.only_reads(), "{name}: {flags:?}");
        // Or else a server under memory pressure would refuse it before the module can decide.
        assert!(!has("denyoom"), "{name}: {flags:?}");
        let [first, last, step] = places(name);
        assert_eq!(info[3..6], [first, last, step].map(Value::Int), "{name}");
        // Where the keys are, the server knows without asking the module.
        assert!(!has("movablekeys"), "{name}: {flags:?}");
        if is_before(7, 0) {
            assert_eq!(info.len(), 7, "key specifications are new in 7.0");
            continue;
        }
        let specifications = array(info[8].clone());
        assert_eq!(specifications.len(), usize::from(first > 0), "{name}");
        for specification in &specifications {
            let flags = texts(table(specification)["flags"].clone());
            let lacks = of_key.iter().find(|flag| !flags.contains(&(**flag).to_owned()));
            assert_eq!(lacks, None, "{name}: {flags:?}");
            let shown = shown(specification);
            // A last key that does not count from the end is relative to the first.
            let last = if last < 0 { last } else { last - first };
            let begin = format!(r#""begin_search" ["type" "index" "spec" ["index" {first}]]"#);
            let find = format!(r#""range" "spec" ["lastkey" {last} "keystep" {step} "limit" 0]"#);
            for part in [begin, find] {
                assert!(shown.contains(&part), "{name}: {part} in {shown}");
            }
        }
    }
}

/// Or else a promise would be held of nine commands out of ten.
#[test]
fn the_list_of_the_tests_is_complete() {
    let count = |server: Server| integer(&server.connect().say("COMMAND COUNT"));
    let own = count(Server::start()) - count(Server::builder().without_module().start());
    assert_eq!(own, COMMANDS.len() as i64);
    assert!(COMMANDS.iter().all(|command| Call::of(command).next().is_some()));
}

#[test]
fn command_getkeys_finds_the_keys_of_every_call() {
    let (_server, mut client) = Server::start_with_client();
    for call in CALLS.iter().filter(|call| !call.keys().is_empty()) {
        let found = texts(client.say(&format!("COMMAND GETKEYS {}", call.words)));
        assert_eq!(found, call.keys(), "{}", call.words);
    }
    for call in [
        "TB.RESTORE user:1 state tenant:2 state",
        "TB.MRENEW 2 1 id user:1 1 1 tenant:2 1 1",
        "TB.MSETTLE 2 id user:1 1 1 1 tenant:2 1 1 1",
    ] {
        assert_eq!(texts(client.say(&format!("COMMAND GETKEYS {call}"))), ["user:1", "tenant:2"], "{call}");
    }
}

/// All else that they say stands on the pages: `docs.rs`.
#[test]
fn command_docs_describe_every_argument() {
    let (_server, mut client) = Server::start_with_client();
    if is_refused_before((7, 0), &mut client, "COMMAND DOCS TB.TAKE") {
        return;
    }
    let docs =
        |client: &mut Connection, name| table(&table(&client.say(&format!("COMMAND DOCS {name}")))[name]);
    for command in COMMANDS {
        let name = command.name;
        let docs = docs(&mut client, name);
        let shown = |argument: &Value| {
            let argument = table(argument);
            let mut words = vec![text(&argument["name"]), text(&argument["type"])];
            words.extend(argument.get("flags").cloned().map(texts).unwrap_or_default());
            words.join(" ")
        };
        let shown: Vec<_> = array(docs["arguments"].clone()).iter().map(shown).collect();
        assert_eq!(shown, command.arguments, "{name}");
    }
    let group = table(&array(docs(&mut client, "TB.MTAKE")["arguments"].clone())[1]);
    let members = array(group["arguments"].clone());
    let members: Vec<_> = members.iter().map(|member| text(&table(member)["name"])).collect();
    assert_eq!(members, ["key", "capacity", "rate", "cost"]);
}
