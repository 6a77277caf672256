//! No invalid memory access, and nothing lost: every command, everything that is done with a bucket's value, files,
//! replication and hostile payloads, on servers that run under valgrind.
//!
//! Needs valgrind, and in `SERVER` a server that was built with libc's allocator, which valgrind can watch: of any
//! other, it would not see a thing.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;
mod reports;

use common::calls::{prepare, CALLS};
use common::judged_calls::{self, JudgedCalls, RATES};
use common::payload::{Payload, ENCODING};
use common::stored::{
    buckets, buckets_alive, fill, follow, is_writing_files, wait_until_replicated, wait_while_time_passes,
};
use common::{multi_decision, wait_until, Connection, Random, Server, ServerBuilder};
use reports::Reports;

#[test]
fn no_access_is_invalid_and_nothing_is_lost() {
    let reports = Reports::begin();
    let alone = |what: &str, exercise: fn(&Server, &mut Connection)| {
        println!("{what}");
        let (mut server, mut client) = start(Server::builder());
        exercise(&server, &mut client);
        reports.end(&mut server, "NOSAVE");
    };
    alone("decisions", decisions);
    alone("errors", errors);
    alone("whatever a server does with a value", values);
    alone("payloads", payloads);
    println!("files, replication, settings");
    files(&reports);
    replication(&reports);
    settings(&reports);
    reports.assert_clean();
}

fn start(builder: ServerBuilder) -> (Server, Connection) {
    // The server's compression reads a table before it has written to it, by design.
    let server = builder.option("rdbcompression", "no").controlled_clock().start();
    let mut client = server.connect();
    assert_eq!(client.info("memory", "mem_allocator"), "libc", "valgrind cannot watch this server's memory");
    (server, client)
}

/// Every call that is listed, alone, as a transaction, in a script, and without memory; random ones, each judged by
/// the exact model; many buckets at once; with somebody listening.
fn decisions(server: &Server, client: &mut Connection) {
    client.say("CONFIG SET notify-keyspace-events KEA");
    for call in CALLS {
        prepare(client);
        call.make(client);
        client.transaction(&[call.words, call.words]);
        let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"];
        let _ = client.try_run(&script.into_iter().chain(call.words.split(' ')).collect::<Vec<_>>());
        client.say("CONFIG SET maxmemory 1");
        let _ = client.attempt(&call.with_keys(|key| format!("new:{key}")));
        client.say("CONFIG SET maxmemory 0");
    }
    walk_at_random(server);
    for buckets in [1, 2, 33, 1024] {
        take_from_many(client, buckets);
    }
    let whole_again_ns = (server.clock().now_us() + 5_000_000) * 1000;
    client.run(&["SET", "left-by-redis-cell", &whole_again_ns.to_string()]);
    client.say("CL.THROTTLE left-by-redis-cell 15 30 60 0");
    client.say("CL.THROTTLE left-by-redis-cell 15 30 60 1");
}

fn walk_at_random(server: &Server) {
    let mut random = Random::new(6);
    for number in 0..20 {
        let limit = judged_calls::limit(&mut random, RATES);
        let mut walk = JudgedCalls::new(server, number);
        for _ in 0..20 {
            walk.call(&limit, judged_calls::any_operation(&mut random, &limit));
            server.clock().advance_us(judged_calls::pause_us(&mut random, &limit));
        }
    }
}

fn take_from_many(client: &mut Connection, buckets: usize) {
    client.say("FLUSHALL");
    let groups: Vec<_> = (0..buckets).map(|number| format!("many:{number} 10 1/h 4")).collect();
    let call = format!("TB.MTAKE {buckets} {}", groups.join(" "));
    // What the first call leaves is enough for a second one, and not for a third.
    let allowed = [1, 2, 3].map(|_| multi_decision(&client.say(&call)).0.allowed);
    assert_eq!(allowed, [1, 1, 0], "{buckets} buckets");
}

/// Calls of every command with each argument missing, too long, or of the wrong type, and questions about them.
fn errors(_: &Server, client: &mut Connection) {
    client.say("SET string word");
    let long = "9".repeat(100_000);
    for call in CALLS {
        let words: Vec<&str> = call.words.split(' ').collect();
        for place in 1..words.len() {
            let _ = client.try_run(&words[..place]);
            for bad in ["", "-1", "1e-30", "string", &long] {
                let mut changed = words.clone();
                changed[place] = bad;
                let _ = client.try_run(&changed);
            }
        }
        let _ = client.attempt(&format!("COMMAND GETKEYS {}", call.words));
    }
    for words in ["COMMAND", "INFO everything", "INFO tokenbucket"] {
        client.say(words);
    }
}

/// Whatever a server does with a value, except writing it to a file.
fn values(server: &Server, client: &mut Connection) {
    for words in [
        "TB.TAKE one 10 1/h 3",
        "COPY one copy",
        "RENAME copy renamed",
        "COPY one renamed REPLACE",
        "MOVE renamed 3",
        "SWAPDB 0 3",
        "SWAPDB 0 3",
        "DEBUG DIGEST",
        "DEBUG DIGEST-VALUE one",
        "DEBUG OBJECT one",
        "MEMORY USAGE one",
        "OBJECT ENCODING one",
        "SCAN 0 TYPE tb-bucket",
        "TB.TAKE short 1 1000",
        "TB.TAKE overwritten 10 1/h",
        "SET overwritten string",
        "TB.TAKE unlinked 10 1/h",
        "UNLINK unlinked",
    ] {
        client.say(words);
    }
    wait_while_time_passes(&[server.clock()], "what is full again is gone", || client.keys() == 2);
    client.say("FLUSHALL ASYNC");
    wait_until("all is freed", || buckets_alive(client) == 0);
}

/// Every kind of file, written by the server and by its children, and read at a start and while running.
fn files(reports: &Reports) {
    for preamble in ["yes", "no"] {
        let append = Server::builder().option("appendonly", "yes").option("aof-use-rdb-preamble", preamble);
        let (mut server, mut client) = start(append);
        fill(&mut client, server.clock());
        for words in ["DEBUG RELOAD", "BGSAVE", "BGREWRITEAOF", "DEBUG LOADAOF"] {
            client.say(words);
            wait_while_time_passes(&[server.clock()], "the files are written", || {
                !is_writing_files(&mut client)
            });
        }
        fill(&mut client, server.clock());
        let before = buckets(&mut client);
        reports.end(&mut server, "SAVE");
        server.start_again();
        assert_eq!(buckets(&mut server.connect()), before);
        reports.end(&mut server, "NOSAVE");
    }
}

/// A replica that loads in place of its own data, another behind it, and what happens when they are cut off,
/// promoted, and come back.
fn replication(reports: &Reports) {
    let quiet = || Server::builder().option("repl-diskless-sync-delay", 0).option("repl-timeout", 360_000);
    let (master, mut client) = start(quiet());
    let (replica, mut reader) = start(quiet().option("repl-diskless-load", "swapdb"));
    let (sub_replica, _) = start(quiet());
    fill(&mut client, master.clock());
    fill(&mut reader, replica.clock());
    follow(&replica, &master);
    follow(&sub_replica, &replica);
    fill(&mut client, master.clock());
    assert!(reader.refusal("TB.TAKE k 10 1").starts_with("READONLY"));
    reader.say("TB.PEEK take 10 1/3h");
    client.say("CLIENT KILL TYPE replica");
    client.say("FLUSHALL");
    fill(&mut client, master.clock());
    wait_until_replicated(&replica, &master);
    reader.say("REPLICAOF NO ONE");
    reader.say("FLUSHALL");
    fill(&mut reader, replica.clock());
    follow(&master, &replica);
    for mut server in [sub_replica, master, replica] {
        reports.end(&mut server, "NOSAVE");
    }
}

/// Payloads with any damage, which no checksum stops.
fn payloads(_: &Server, client: &mut Connection) {
    const PAYLOADS: u32 = 3000;
    client.say("TB.TAKE template 10 1/h");
    let payload = Payload::of(client, "template");
    let mut random = Random::new(7);
    let mut refused = 0;
    for _ in 0..PAYLOADS {
        let bad = payload.with(ENCODING, &payload.spoiled_content(&mut random));
        refused += u32::from(client.restore("copy", &bad).is_err());
        client.say("TB.TAKE copy 10 1/h");
    }
    assert!((PAYLOADS / 10..PAYLOADS).contains(&refused), "{refused} were refused");
}

/// Arguments with which the module loads, and those with which it does not.
fn settings(reports: &Reports) {
    let (mut server, _) = start(Server::builder().module_arguments(&["on-oom", "allow"]));
    reports.end(&mut server, "NOSAVE");
    for arguments in [["on-oom", "perhaps"].as_slice(), &["no-such", "setting"], &["on-oom"]] {
        let log = Server::builder().module_arguments(arguments).start_expecting_refusal();
        assert!(log.contains("tokenbucket was not loaded"), "{log}");
    }
}
