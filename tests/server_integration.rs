//! How the module shows itself to the server: commands, ACLs, INFO, keyspace events, configuration.

mod common;

use common::server::{is_before_7, module};
use common::{text, wait_until, Connection, Engine, Server};
use redis::Value;
use std::collections::BTreeMap;
use std::fs;

/// A command, how many words it takes (at least, if negative), and whether it is for reading or for writing.
const COMMANDS: [(&str, i64, &str); 10] = [
    ("TB.TAKE", -4, "write"),
    ("TB.PEEK", -4, "read"),
    ("TB.TAKEUPTO", 5, "write"),
    ("TB.RESERVE", 6, "write"),
    ("TB.CHARGE", 5, "write"),
    ("TB.GIVE", 5, "write"),
    ("TB.MTAKE", -6, "write"),
    ("TB.STATE", 2, "read"),
    ("TB.RESTORE", -3, "servers"),
    ("cl.throttle", -5, "write"),
];

fn elements(value: &Value) -> &[Value] {
    match value {
        Value::Array(elements) | Value::Set(elements) => elements,
        other => panic!("no array: {other:?}"),
    }
}

fn texts(value: &Value) -> Vec<String> {
    elements(value).iter().map(text).collect()
}

/// An array of names and values.
fn table(value: &Value) -> BTreeMap<String, Value> {
    elements(value).chunks(2).map(|pair| (text(&pair[0]), pair[1].clone())).collect()
}

fn command_info(client: &mut Connection, name: &str) -> Vec<Value> {
    let reply = client.say(&format!("COMMAND INFO {name}"));
    elements(&elements(&reply)[0]).to_vec()
}

#[test]
fn command_info_shows_arity_flags_and_where_the_keys_are() {
    let server = Server::start();
    let mut client = server.connect();
    for (name, arity, kind) in COMMANDS {
        let info = command_info(&mut client, name);
        assert_eq!(text(&info[0]), name);
        // Servers before 7.0 cannot be told how many arguments a module's command takes.
        let arity = if is_before_7() { -1 } else { arity };
        assert_eq!(info[1], Value::Int(arity), "{name}");
        let flags = texts(&info[2]);
        let expected: &[&str] = match kind {
            "read" => &["readonly", "fast"],
            "write" => &["write", "fast"],
            _ => &["write", "admin"],
        };
        for flag in expected {
            assert!(flags.iter().any(|one| one == flag), "{name} has no {flag}: {flags:?}");
        }
        assert_eq!(flags.contains(&"write".to_owned()), kind != "read", "{name}: {flags:?}");
        // Whether a server under memory pressure refuses it before the module can decide.
        assert!(!flags.contains(&"denyoom".to_owned()), "{name}: {flags:?}");
        let (first, last, step) = match name {
            "TB.MTAKE" => (0, 0, 0),
            "TB.RESTORE" => (1, -1, 2),
            _ => (1, 1, 1),
        };
        assert_eq!(info[3..6], [first, last, step].map(Value::Int), "{name}");
        assert_eq!(flags.contains(&"movablekeys".to_owned()), name == "TB.MTAKE", "{name}: {flags:?}");
    }
}

#[test]
fn key_specifications_say_what_is_done_to_which_key() {
    let server = Server::start();
    let mut client = server.connect();
    for (name, _, kind) in COMMANDS {
        let info = command_info(&mut client, name);
        if is_before_7() {
            assert_eq!(info.len(), 7, "key specifications are new in 7.0");
            continue;
        }
        let [specification] = elements(&info[8]) else { panic!("{name}: {:?}", info[8]) };
        let specification = table(specification);
        let flags = texts(&specification["flags"]);
        let expected: &[&str] = match kind {
            "read" => &["RO", "access"],
            "write" => &["RW", "access", "update"],
            _ => &["OW", "update"],
        };
        for flag in expected {
            assert!(flags.iter().any(|one| one == flag), "{name} has no {flag}: {flags:?}");
        }
        let begin = table(&specification["begin_search"]);
        assert_eq!(
            (text(&begin["type"]), text(&table(&begin["spec"])["index"])),
            ("index".into(), "1".into())
        );
        let find = table(&specification["find_keys"]);
        let numbers: BTreeMap<String, String> =
            table(&find["spec"]).into_iter().map(|(name, number)| (name, text(&number))).collect();
        let expected = match name {
            "TB.MTAKE" => ("keynum", [("firstkey", "1"), ("keynumidx", "0"), ("keystep", "4")]),
            "TB.RESTORE" => ("range", [("keystep", "2"), ("lastkey", "-1"), ("limit", "0")]),
            _ => ("range", [("keystep", "1"), ("lastkey", "0"), ("limit", "0")]),
        };
        let shown = numbers.iter().map(|(name, number)| (name.as_str(), number.as_str()));
        assert_eq!(
            (text(&find["type"]).as_str(), shown.collect::<Vec<_>>()),
            (expected.0, expected.1.to_vec())
        );
    }
}

#[test]
fn command_getkeys_finds_the_keys_of_every_command() {
    let server = Server::start();
    let mut client = server.connect();
    for (call, keys) in [
        ("TB.TAKE user:1 10 1", vec!["user:1"]),
        ("TB.TAKE user:1 10 1 5", vec!["user:1"]),
        ("TB.PEEK user:1 10 1", vec!["user:1"]),
        ("TB.TAKEUPTO user:1 10 1 5", vec!["user:1"]),
        ("TB.RESERVE user:1 10 1 5 100", vec!["user:1"]),
        ("TB.CHARGE user:1 10 1 5", vec!["user:1"]),
        ("TB.GIVE user:1 10 1 5", vec!["user:1"]),
        ("TB.STATE user:1", vec!["user:1"]),
        ("TB.MTAKE 2 user:1 10 1 5 tenant:2 10 1 5", vec!["user:1", "tenant:2"]),
        ("TB.RESTORE user:1 state tenant:2 state", vec!["user:1", "tenant:2"]),
        ("CL.THROTTLE user:1 9 10 60", vec!["user:1"]),
    ] {
        assert_eq!(texts(&client.say(&format!("COMMAND GETKEYS {call}"))), keys, "{call}");
    }
}

#[test]
fn command_docs_describe_every_command_and_argument() {
    let server = Server::start();
    let mut client = server.connect();
    if is_before_7() {
        let refused = client.refusal("COMMAND DOCS TB.TAKE");
        assert!(refused.starts_with("ERR Unknown subcommand"), "COMMAND DOCS is new in 7.0: {refused}");
        return;
    }
    let arguments: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("TB.TAKE", ["key key", "capacity double", "rate string", "cost double optional"].as_slice()),
        ("TB.PEEK", &["key key", "capacity double", "rate string", "cost double optional"]),
        ("TB.TAKEUPTO", &["key key", "capacity double", "rate string", "max integer"]),
        ("TB.RESERVE", &["key key", "capacity double", "rate string", "cost double", "max_wait_ms integer"]),
        ("TB.CHARGE", &["key key", "capacity double", "rate string", "amount double"]),
        ("TB.GIVE", &["key key", "capacity double", "rate string", "amount double"]),
        ("TB.MTAKE", &["numkeys integer", "bucket block multiple"]),
        ("TB.STATE", &["key key"]),
        ("TB.RESTORE", &["bucket block multiple"]),
        (
            "cl.throttle",
            &["key key", "max_burst integer", "count integer", "period integer", "quantity integer optional"],
        ),
    ]);
    for (name, _, _) in COMMANDS {
        let reply = client.say(&format!("COMMAND DOCS {name}"));
        let docs = table(&table(&reply)[name]);
        let summary = text(&docs["summary"]);
        assert!(summary.len() > 20 && !summary.ends_with('.'), "{name}: {summary}");
        assert_eq!(text(&docs["since"]), "0.1.0");
        assert!(text(&docs["complexity"]).starts_with("O("), "{name}");
        let shown = |argument: &Value| {
            let argument = table(argument);
            let mut shown = format!("{} {}", text(&argument["name"]), text(&argument["type"]));
            for flag in argument.get("flags").map(texts).unwrap_or_default() {
                shown = format!("{shown} {flag}");
            }
            shown
        };
        let shown: Vec<_> = elements(&docs["arguments"]).iter().map(shown).collect();
        assert_eq!(shown, arguments[name], "{name}");
    }
    let docs = table(&table(&client.say("COMMAND DOCS TB.MTAKE"))["TB.MTAKE"]);
    let group = table(&elements(&docs["arguments"])[1]);
    let members: Vec<_> = elements(&group["arguments"]).iter().map(|one| text(&table(one)["name"])).collect();
    assert_eq!(members, ["key", "capacity", "rate", "cost"]);
}

/// Of a reader, a writer and the internal command: which may be called by a user with `rules`.
fn may_call(server: &Server, rules: &str) -> [bool; 3] {
    let mut admin = server.connect();
    admin.say(&format!("ACL SETUSER limited reset on nopass ~* {rules}"));
    let mut client = server.connect();
    client.say("AUTH limited any");
    ["TB.PEEK k 10 1", "TB.TAKE k 10 1", "TB.RESTORE k x"].map(|call| {
        let reply = client.try_run(&call.split_whitespace().collect::<Vec<_>>());
        !reply.is_err_and(|error| error.starts_with("NOPERM"))
    })
}

#[test]
fn acl_categories_let_an_operator_say_who_may_do_what() {
    let server = Server::start();
    assert_eq!(may_call(&server, "+@all"), [true, true, true]);
    assert_eq!(may_call(&server, "-@all"), [false, false, false]);
    assert_eq!(may_call(&server, "+tb.peek"), [true, false, false]);
    assert_eq!(may_call(&server, "+@all -tb.restore"), [true, true, false]);
    if Engine::under_test().has_what_redis_has_from(7, 2) {
        assert_eq!(may_call(&server, "+@read"), [true, false, false]);
        assert_eq!(may_call(&server, "+@write"), [false, true, true]);
        assert_eq!(may_call(&server, "+@fast"), [true, true, false]);
        assert_eq!(may_call(&server, "+@all -@dangerous"), [true, true, false]);
        assert_eq!(may_call(&server, "+@admin"), [false, false, true]);
    } else {
        // Before 7.2 a module's commands are in no category: only named, or as part of all.
        for category in ["+@read", "+@write", "+@fast", "+@admin", "+@dangerous"] {
            assert_eq!(may_call(&server, category), [false, false, false], "{category}");
        }
        assert_eq!(may_call(&server, "+@all -@dangerous"), [true, true, true]);
    }
}

#[test]
fn the_module_has_an_acl_category_of_its_own_where_it_can() {
    let server = Server::start();
    let mut client = server.connect();
    if Engine::under_test().has_module_categories() {
        assert_eq!(may_call(&server, "+@tokenbucket"), [true, true, false]);
        assert_eq!(may_call(&server, "+@all -@tokenbucket"), [false, false, true]);
        assert!(texts(&client.say("ACL CAT")).contains(&"tokenbucket".to_owned()));
        for (name, _, kind) in COMMANDS {
            let categories = texts(&command_info(&mut client, name)[6]);
            assert_eq!(categories.contains(&"@tokenbucket".to_owned()), kind != "servers", "{name}");
        }
    } else {
        let refused = client.refusal("ACL SETUSER limited +@tokenbucket");
        assert!(refused.contains("Unknown command or category name in ACL"), "{refused}");
    }
}

const FIELDS: [&str; 6] =
    ["decisions_allowed", "decisions_denied", "errors", "tokens_granted", "buckets", "bucket_bytes"];

fn counters(client: &mut Connection) -> [i64; 6] {
    FIELDS.map(|field| client.info("tokenbucket", &format!("tokenbucket_{field}")).parse().unwrap())
}

#[test]
fn info_counts_decisions_errors_tokens_and_buckets() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(counters(&mut client), [0; 6]);
    // What each call adds: allowed, denied, errors, tokens granted, buckets.
    for (call, adds) in [
        ("TB.TAKE a 10 1 4", [1, 0, 0, 4, 1]),
        ("TB.TAKE a 10 1 4", [1, 0, 0, 4, 0]),
        ("TB.TAKE a 10 1 4", [0, 1, 0, 0, 0]),
        ("TB.TAKE a 10 1 11", [0, 1, 0, 0, 0]),
        ("TB.PEEK a 10 1 1", [0, 0, 0, 0, 0]),
        ("TB.PEEK a 10 1 4", [0, 0, 0, 0, 0]),
        ("TB.STATE a", [0, 0, 0, 0, 0]),
        ("TB.TAKE a ten 1 4", [0, 0, 1, 0, 0]),
        ("TB.PEEK a 10 one", [0, 0, 1, 0, 0]),
        // Halves of tokens are counted when they are whole.
        ("TB.TAKE b 10 1 0.5", [1, 0, 0, 0, 1]),
        ("TB.TAKE b 10 1 0.5", [1, 0, 0, 1, 0]),
        ("TB.TAKEUPTO c 10 1 7", [1, 0, 0, 7, 1]),
        ("TB.TAKEUPTO c 10 1 7", [1, 0, 0, 3, 0]),
        ("TB.TAKEUPTO c 10 1 7", [0, 1, 0, 0, 0]),
        ("TB.RESERVE c 10 1 2 60000", [1, 0, 0, 2, 0]),
        ("TB.RESERVE c 10 1 2 1", [0, 1, 0, 0, 0]),
        ("TB.CHARGE c 10 1 5", [1, 0, 0, 5, 0]),
        ("TB.GIVE c 10 1 3", [1, 0, 0, 0, 0]),
        ("TB.MTAKE 2 d 10 1 2 e 10 1 3", [1, 0, 0, 5, 2]),
        ("TB.MTAKE 2 d 10 1 2 e 10 1 8", [0, 1, 0, 0, 0]),
        ("TB.MTAKE 2 d 10 1 2 d 10 1 2", [0, 0, 1, 0, 0]),
        ("CL.THROTTLE f 9 10 60 4", [1, 0, 0, 4, 1]),
        ("CL.THROTTLE f 9 10 60 7", [0, 1, 0, 0, 0]),
        ("CL.THROTTLE f 9 10 60 0", [0, 0, 0, 0, 0]),
        ("CL.THROTTLE f 9 10 0", [0, 0, 1, 0, 0]),
        ("TB.GIVE c 10 1 30", [1, 0, 0, 0, -1]),
        ("DEL a", [0, 0, 0, 0, -1]),
        ("SET string x", [0; 5]),
        ("TB.TAKE string 10 1", [0, 0, 1, 0, 0]),
        ("RENAME b a", [0; 5]),
        ("SET d x", [0, 0, 0, 0, -1]),
    ] {
        let before = counters(&mut client);
        let _ = client.try_run(&call.split_whitespace().collect::<Vec<_>>());
        let after = counters(&mut client);
        let added: Vec<_> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        assert_eq!(added[..5], adds, "{call}");
    }
}

#[test]
fn info_counts_buckets_wherever_they_come_from_and_go_to() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let expect = |client: &mut Connection, what: &str, buckets: i64| {
        wait_until(&format!("{buckets} buckets are counted after {what}"), || counters(client)[4] == buckets);
        let bytes = counters(client)[5];
        // Two numbers of 8 bytes each, and what the allocator adds to them.
        assert!((16 * buckets..=32 * buckets).contains(&bytes), "{bytes} bytes for {buckets} after {what}");
    };
    for number in 0..100 {
        client.say(&format!("TB.TAKE key:{number} 10 1 5"));
    }
    expect(&mut client, "a hundred takes", 100);
    client.say("SELECT 1");
    client.say("TB.TAKE elsewhere 10 1 5");
    expect(&mut client, "a take in another database", 101);
    client.say("SELECT 0");
    client.say("MOVE key:1 1");
    client.say("UNLINK key:2");
    expect(&mut client, "MOVE and UNLINK", 100);
    let Value::BulkString(dump) = client.say("DUMP key:3") else { panic!("no dump") };
    client.run(&[b"RESTORE".as_slice(), b"copy", b"0", &dump]);
    expect(&mut client, "RESTORE", 101);
    client.say("FLUSHDB");
    expect(&mut client, "FLUSHDB", 2);
    server.clock().advance_ms(60_000);
    expect(&mut client, "their expiry", 0);
    client.say("TB.TAKE k 10 1 5");
    client.say("FLUSHALL ASYNC");
    expect(&mut client, "FLUSHALL ASYNC", 0);
}

#[test]
fn info_has_the_section_alone_and_among_all_others() {
    let server = Server::start();
    let mut client = server.connect();
    for section in ["tokenbucket", "modules", "everything"] {
        let report = text(&client.say(&format!("INFO {section}")));
        assert!(
            report.contains("\r\n# tokenbucket\r\n") || report.starts_with("# tokenbucket\r\n"),
            "{section}"
        );
        for field in FIELDS {
            assert!(report.contains(&format!("\r\ntokenbucket_{field}:0\r\n")), "{section} without {field}");
        }
    }
    assert!(!text(&client.say("INFO")).contains("tokenbucket_errors"), "not among the defaults");
}

/// A client that has subscribed to all keyspace events.
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

    /// What a call made known, each as `event key`, and whether both channels said the same.
    fn events_of(&mut self, call: &str) -> Vec<String> {
        let _ = self.other.try_run(&call.split_whitespace().collect::<Vec<_>>());
        self.other.say("PUBLISH end now");
        let (mut by_key, mut by_event) = (Vec::new(), Vec::new());
        loop {
            let message = texts(&self.client.inner().recv_response().unwrap());
            let [.., channel, payload] = message.as_slice() else { panic!("no message: {message:?}") };
            match channel.split_once("@0__:") {
                Some(("__keyspace", key)) => by_key.push(format!("{payload} {key}")),
                Some(("__keyevent", event)) => by_event.push(format!("{event} {payload}")),
                _ if channel == "end" => break,
                _ => panic!("{message:?}"),
            }
        }
        assert_eq!(by_key, by_event, "{call}");
        by_event
    }
}

/// Redis 6.0 has no class of events for modules.
fn has_module_events() -> bool {
    !Engine::under_test().is_redis(6, 0)
}

#[test]
fn keyspace_events_tell_who_takes_gives_and_is_denied() {
    let server = Server::with_clock();
    if !has_module_events() {
        let refused = server.connect().try_run(&["CONFIG", "SET", "notify-keyspace-events", "KEd"]);
        assert_eq!(
            refused.unwrap_err(),
            "ERR Invalid argument 'KEd' for CONFIG SET 'notify-keyspace-events'"
        );
        let mut listener = Listener::new(&server, "KEA");
        for call in ["TB.TAKE k 10 1 4", "TB.TAKE k 10 1 11", "TB.GIVE k 10 1 1"] {
            assert_eq!(listener.events_of(call), [""; 0], "{call}");
        }
        return;
    }
    let mut listener = Listener::new(&server, "KEd");
    for (call, events) in [
        ("TB.TAKE k 10 1 4", vec!["tb.take k"]),
        ("TB.TAKE k 10 1 7", vec!["tb.deny k"]),
        ("TB.TAKE k 10 1 11", vec!["tb.deny k"]),
        ("TB.TAKE absent 0 1", vec!["tb.deny absent"]),
        ("TB.TAKEUPTO k 10 1 4", vec!["tb.take k"]),
        ("TB.TAKEUPTO k 0.5 1 4", vec!["tb.deny k"]),
        ("TB.RESERVE k 10 1 4 60000", vec!["tb.take k"]),
        ("TB.RESERVE k 10 1 4 1", vec!["tb.deny k"]),
        ("TB.TAKE k 10 1 0", vec!["tb.deny k"]),
        ("TB.CHARGE k 10 1 4", vec!["tb.take k"]),
        ("TB.GIVE k 10 1 9", vec!["tb.give k"]),
        ("TB.MTAKE 2 k 10 1 1 j 10 1 1", vec!["tb.take k", "tb.take j"]),
        ("TB.MTAKE 2 k 10 1 1 j 10 1 10", vec!["tb.deny j"]),
        ("TB.MTAKE 3 j 10 1 10 k 10 1 1 i 1 1 2", vec!["tb.deny j", "tb.deny i"]),
        ("TB.GIVE k 10 1 100", vec!["tb.give k"]),
    ] {
        assert_eq!(listener.events_of(call), events, "{call}");
    }
}

#[test]
fn a_bucket_that_is_given_back_in_full_is_deleted_for_all_to_see() {
    let server = Server::with_clock();
    // The class of generic events, which all servers have.
    let mut listener = Listener::new(&server, "KEg");
    assert_eq!(listener.events_of("TB.TAKE k 10 1 4"), [""; 0]);
    assert_eq!(listener.events_of("TB.GIVE k 10 1 3"), [""; 0]);
    assert_eq!(listener.events_of("TB.GIVE k 10 1 1"), ["del k"]);
    assert_eq!(listener.events_of("TB.GIVE k 10 1 1"), [""; 0]);
}

#[test]
fn what_changes_nothing_and_denies_nobody_is_not_announced() {
    let server = Server::with_clock();
    let mut listener = Listener::new(&server, if has_module_events() { "KEdg" } else { "KEg" });
    listener.other.say("TB.TAKE k 10 1 4");
    listener.other.say("SET string x");
    listener.events_of("PING");
    for call in [
        "TB.PEEK k 10 1 1",
        "TB.PEEK k 10 1 11",
        "TB.STATE k",
        "TB.TAKE k 10 1 0",
        "TB.CHARGE k 10 1 0",
        "TB.GIVE k 10 1 0",
        "TB.GIVE full 10 1 5",
        "TB.RESERVE k 10 1 0 0",
        "TB.MTAKE 1 k 10 1 0",
        "TB.TAKE k ten 1 1",
        "TB.TAKE string 10 1 1",
        "TB.MTAKE 2 k 10 1 1 string 10 1 1",
        "TB.MTAKE 2 k 10 1 1 k 10 1 1",
        "TB.RESTORE k x",
    ] {
        assert_eq!(listener.events_of(call), [""; 0], "{call}");
    }
}

#[test]
fn events_are_told_to_nobody_unless_the_operator_asks_for_them() {
    let server = Server::with_clock();
    let mut listener = Listener::new(&server, "");
    for call in ["TB.TAKE k 10 1 4", "TB.TAKE k 10 1 11", "TB.GIVE k 10 1 100"] {
        assert_eq!(listener.events_of(call), [""; 0], "{call}");
    }
}

/// Whether a bucket can be taken from that would have to be created over `maxmemory`.
fn allows_on_oom(client: &mut Connection) -> bool {
    client.say("CONFIG SET maxmemory 1");
    let reply = client.try_run(&["TB.TAKE", "new", "10", "1"]);
    client.say("CONFIG SET maxmemory 0");
    match reply {
        Ok(_) => true,
        Err(error) if error.starts_with("OOM") => false,
        Err(error) => panic!("neither allowed nor out of memory: {error}"),
    }
}

#[test]
fn the_setting_is_a_loadmodule_argument_with_and_without_prefix_in_any_case() {
    for (arguments, allows) in [
        (&[] as &[&str], false),
        (&["on-oom", "deny"], false),
        (&["on-oom", "allow"], true),
        (&["tokenbucket.on-oom", "allow"], true),
        (&["ON-OOM", "ALLOW"], true),
        (&["TokenBucket.On-OOM", "Allow"], true),
        (&["on-oom", "deny", "on-oom", "allow"], true),
    ] {
        let server = Server::builder().module_arguments(arguments).start();
        assert_eq!(allows_on_oom(&mut server.connect()), allows, "{arguments:?}");
    }
}

#[test]
fn the_setting_is_an_option_of_the_server() {
    let builder = || Server::builder().option("tokenbucket.on-oom", "allow");
    if is_before_7() {
        let log = builder().start_expecting_refusal();
        assert!(
            log.contains("'tokenbucket.on-oom \"allow\"'") || log.contains("'tokenbucket.on-oom allow'"),
            "{log}"
        );
        return;
    }
    assert!(allows_on_oom(&mut builder().start().connect()));
    // What the operator's configuration says counts more than what stands behind `loadmodule`.
    let server = builder().module_arguments(&["on-oom", "deny"]).start();
    assert!(allows_on_oom(&mut server.connect()));
}

#[test]
fn the_setting_is_a_line_of_the_configuration_file() {
    let module = module();
    let lines = |more: &str| format!("loadmodule {}{more}\n", module.display());
    let start = |more: &str| Server::builder().without_module().configuration_file(&lines(more)).start();
    assert!(!allows_on_oom(&mut start("").connect()));
    assert!(allows_on_oom(&mut start(" on-oom allow").connect()));
    if !is_before_7() {
        assert!(allows_on_oom(&mut start("\ntokenbucket.on-oom allow").connect()));
        assert!(!allows_on_oom(&mut start(" on-oom allow\ntokenbucket.on-oom deny").connect()));
    }
}

#[test]
fn the_setting_can_be_seen_and_changed_while_the_server_runs() {
    let server = Server::builder().module_arguments(&["on-oom", "allow"]).start();
    let mut client = server.connect();
    let setting = |client: &mut Connection| texts(&client.say("CONFIG GET tokenbucket.on-oom"));
    if is_before_7() {
        assert_eq!(setting(&mut client), [""; 0], "settings of modules are new in 7.0");
        let refused = client.refusal("CONFIG SET tokenbucket.on-oom deny");
        assert_eq!(refused, "ERR Unsupported CONFIG parameter: tokenbucket.on-oom");
        assert!(allows_on_oom(&mut client));
        return;
    }
    assert_eq!(setting(&mut client), ["tokenbucket.on-oom", "allow"]);
    client.say("CONFIG SET tokenbucket.on-oom deny");
    assert_eq!(setting(&mut client), ["tokenbucket.on-oom", "deny"]);
    assert!(!allows_on_oom(&mut client));
    client.say("CONFIG SET TOKENBUCKET.ON-OOM ALLOW");
    assert!(allows_on_oom(&mut client));
    for bad in ["maybe", "1", "yes"] {
        let refused = client.refusal(&format!("CONFIG SET tokenbucket.on-oom {bad}"));
        assert!(refused.contains("argument(s) must be one of the following: deny, allow"), "{refused}");
    }
    assert_eq!(setting(&mut client), ["tokenbucket.on-oom", "allow"]);
}

#[test]
fn config_rewrite_keeps_what_was_set() {
    let lines = format!("loadmodule {}\n", module().display());
    let mut server = Server::builder().without_module().configuration_file(&lines).start();
    let mut client = server.connect();
    if is_before_7() {
        client.say("CONFIG REWRITE");
    } else {
        client.say("CONFIG SET tokenbucket.on-oom allow");
        client.say("CONFIG REWRITE");
    }
    let rewritten = fs::read_to_string(server.folder().join("redis.conf")).unwrap();
    assert!(rewritten
        .lines()
        .any(|line| line.starts_with("loadmodule ") && line.contains(module().to_str().unwrap())));
    server.restart(false);
    assert_eq!(allows_on_oom(&mut server.connect()), !is_before_7(), "{rewritten}");
}

#[test]
fn a_bad_argument_refuses_to_load_and_the_log_names_it() {
    for (arguments, message) in [
        (&["speed", "fast"] as &[&str], "unknown argument 'speed': known are on-oom, cl-throttle"),
        (
            &["tokenbucket.speed", "fast"],
            "unknown argument 'tokenbucket.speed': known are on-oom, cl-throttle",
        ),
        (
            &["othermodule.on-oom", "allow"],
            "unknown argument 'othermodule.on-oom': known are on-oom, cl-throttle",
        ),
        (&["on-oom"], "argument 'on-oom' needs a value"),
        (&["on-oom", "allow", "on-oom"], "argument 'on-oom' needs a value"),
        (&["on-oom", "maybe"], "argument 'on-oom' must be deny or allow, not 'maybe'"),
        (&["ON-OOM", "no"], "argument 'ON-OOM' must be deny or allow, not 'no'"),
        (&["on-oom", "allow", "speed", "fast"], "unknown argument 'speed': known are on-oom, cl-throttle"),
        (&["\u{1b}[31m", "x"], "unknown argument '\\x1b[31m': known are on-oom, cl-throttle"),
    ] {
        let log = Server::builder().module_arguments(arguments).start_expecting_refusal();
        let line = format!("tokenbucket was not loaded: {message}");
        assert!(log.contains(&line), "{arguments:?}: no '{line}' in\n{log}");
    }
}

#[test]
fn a_bad_option_of_the_server_refuses_to_start() {
    if is_before_7() {
        // Any such option is unknown there: see the_setting_is_an_option_of_the_server.
        return;
    }
    let bad = Server::builder().option("tokenbucket.on-oom", "maybe").start_expecting_refusal();
    assert!(bad.contains("argument(s) must be one of the following: deny, allow"), "{bad}");
    // What nobody has registered is refused by the server, in its own words.
    let unknown = Server::builder().option("tokenbucket.speed", "fast").start_expecting_refusal();
    assert!(unknown.contains("Module Configuration detected without"), "{unknown}");
}

#[test]
fn the_module_can_be_loaded_while_the_server_runs_and_not_be_unloaded() {
    let server = Server::builder().without_module().start();
    let mut client = server.connect();
    let module = module();
    let path = module.to_str().unwrap();
    let refused = client.try_run(&["MODULE", "LOAD", path, "on-oom", "maybe"]);
    assert!(refused.is_err_and(|error| error.starts_with("ERR Error loading the extension")));
    assert!(!client.has_command("TB.TAKE"));
    client.run(&["MODULE", "LOAD", path, "on-oom", "allow"]);
    assert!(allows_on_oom(&mut client));
    assert_eq!(client.decide("TB.TAKE k 10 1").allowed, 1);
    let refused = client.refusal("MODULE UNLOAD tokenbucket");
    assert!(refused.contains("the module exports one or more module-side data types"), "{refused}");
    let Value::Array(modules) = client.say("MODULE LIST") else { panic!("no modules") };
    let names: Vec<_> = modules.iter().map(|module| text(&table(module)["name"])).collect();
    assert!(names.contains(&"tokenbucket".to_owned()), "{names:?}");
}
