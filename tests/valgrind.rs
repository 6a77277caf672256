//! No invalid memory access, and nothing lost: every command, everything that is done with a bucket's value, files,
//! replication and hostile payloads, on servers that run under valgrind.
//!
//! Needs valgrind, and in `SERVER` a server that was built with libc's allocator, which valgrind can watch: of any
//! other, it would not see a thing.

mod common;

#[path = "valgrind/reports.rs"]
mod reports;

use common::stored::{
    buckets, buckets_alive, fill, follow, is_writing_files, wait_until_replicated, wait_while_time_passes,
};
use common::walk::{self, Walk, RATES};
use common::{multi_decision, text, wait_until, Connection, Random, Server, ServerBuilder};
use redis::Value;
use reports::Reports;

#[test]
#[ignore = "needs valgrind, and a server that was built with libc's allocator: make valgrind"]
fn no_access_is_invalid_and_nothing_is_lost() {
    let reports = Reports::begin();
    for (what, exercise) in [
        ("decisions", decisions as fn(&Reports)),
        ("errors", errors),
        ("whatever a server does with a value", values),
        ("files", files),
        ("replication", replication),
        ("payloads", payloads),
        ("settings", settings),
    ] {
        println!("{what}");
        exercise(&reports);
    }
    reports.assert_clean();
}

fn start(builder: ServerBuilder) -> (Server, Connection) {
    let server = builder.controlled_clock().start();
    let mut client = server.connect();
    assert_eq!(client.info("memory", "mem_allocator"), "libc", "valgrind cannot watch this server's memory");
    (server, client)
}

/// Bucket after bucket through random calls, each judged by the exact model; several at once; as a transaction and
/// in a script; on what redis-cell left; with somebody listening; without memory.
fn decisions(reports: &Reports) {
    let (server, mut client) = start(Server::builder());
    client.say("CONFIG SET notify-keyspace-events KEA");
    fill(&mut client, server.clock());
    walk_at_random(&server);
    for buckets in [1, 2, 33, 1024] {
        take_from_many(&mut client, buckets);
    }
    for quantity in [1, 5, 0, 16, 17] {
        client.say(&format!("CL.THROTTLE throttled 15 30 60 {quantity}"));
    }
    let whole_again_ns = (server.clock().now_us() + 5_000_000) * 1000;
    client.run(&["SET", "left-by-redis-cell", &whole_again_ns.to_string()]);
    client.say("CL.THROTTLE left-by-redis-cell 15 30 60 0");
    client.say("CL.THROTTLE left-by-redis-cell 15 30 60 1");
    without_memory(&mut client);
    reports.end(server);
}

fn walk_at_random(server: &Server) {
    const WALKS: u64 = 20;
    const CALLS: u64 = 20;
    let mut random = Random::new(6);
    for number in 0..WALKS {
        let limit = walk::limit(&mut random, RATES);
        let mut walk = Walk::new(server, number);
        for _ in 0..CALLS {
            walk.call(&limit, walk::any_operation(&mut random, &limit));
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
        }
    }
}

fn take_from_many(client: &mut Connection, buckets: usize) {
    let mut command = vec!["TB.MTAKE".to_owned(), buckets.to_string()];
    for number in 0..buckets {
        command.extend([&format!("many:{number}"), "10", "1/h", "4"].map(ToString::to_string));
    }
    // What the first call leaves is enough for a second one, and not for a third.
    let allowed = [1, 2, 3].map(|_| multi_decision(&client.run(&command)).0.allowed);
    assert_eq!(allowed, [1, 1, 0], "{buckets} buckets");
    (0..buckets).for_each(|number| drop(client.run(&["DEL", &format!("many:{number}")])));
}

fn without_memory(client: &mut Connection) {
    client.say("TB.TAKE existing 10 1/h");
    client.say("CONFIG SET maxmemory 1");
    client.say("TB.TAKE existing 10 1/h");
    for words in [
        "TB.TAKE new 10 1/h",
        "TB.MTAKE 2 existing 10 1/h 1 new 10 1/h 1",
        "CL.THROTTLE new 15 30 60",
        "TB.CHARGE new 10 1/h 1",
    ] {
        assert!(client.refusal(words).starts_with("OOM"), "{words}");
    }
    client.say("CONFIG SET maxmemory 0");
}

/// Whatever is refused, and questions about the commands.
fn errors(reports: &Reports) {
    let (server, mut client) = start(Server::builder());
    client.say("SET string 1");
    client.say("TB.CHARGE debtor 10 1/h 1e12");
    for words in [
        "TB.TAKE k",
        "TB.TAKE k -1 1",
        "TB.TAKE k 1 1/fortnight",
        "TB.TAKE k 1 1e-30",
        "TB.TAKE k 1e12 1/d",
        "TB.TAKE k 1 1 1e13",
        "TB.TAKEUPTO k 10 1 0.5",
        "TB.RESERVE k 10 1 1 -1",
        "TB.CHARGE debtor 10 1/h 1e12",
        "TB.GIVE k 10 1 nan",
        "TB.MTAKE 0 k 1 1 1",
        "TB.MTAKE 2 k 1 1 1",
        "TB.MTAKE 2 k 1 1 1 k 1 1 1",
        "TB.MTAKE 2 k 1 1 1 string 1 1 1",
        "TB.RESTORE k state",
        "TB.RESTORE k",
        "TB.TAKE string 1 1",
        "TB.PEEK string 1 1",
        "TB.STATE string",
        "CL.THROTTLE string 1 1",
        "CL.THROTTLE debtor x 1 1",
    ] {
        client.refusal(words);
    }
    let long = "9".repeat(100_000);
    client.refusal(&format!("TB.TAKE k {long} 1"));
    for words in
        ["COMMAND", "INFO everything", "INFO tokenbucket", "COMMAND GETKEYS TB.MTAKE 2 a 1 1 1 b 1 1 1"]
    {
        client.say(words);
    }
    reports.end(server);
}

/// Whatever a server does with a value, except writing it to a file.
fn values(reports: &Reports) {
    let (server, mut client) = start(Server::builder());
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
    wait_while_time_passes(&[server.clock()], "what is full again is gone", || {
        text(&client.say("DBSIZE")) == "2"
    });
    client.say("FLUSHALL ASYNC");
    wait_until("all is freed", || buckets_alive(&mut client) == 0);
    reports.end(server);
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
        reports.has_ended(server.process_id());
        server.restart(true);
        assert_eq!(buckets(&mut server.connect()), before);
        reports.end(server);
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
    for server in [sub_replica, master, replica] {
        reports.end(server);
    }
}

/// Payloads with any damage behind the type's name, which no checksum stops.
fn payloads(reports: &Reports) {
    const PAYLOADS: u32 = 3000;
    const HEAD_LEN: usize = 10;
    let (server, mut client) = start(Server::builder());
    client.say("TB.TAKE template 10 1/h");
    let Value::BulkString(good) = client.say("DUMP template") else { panic!("no dump") };
    client.say("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    let mut random = Random::new(7);
    let mut refused = 0;
    for _ in 0..PAYLOADS {
        let mut bad = good.clone();
        for _ in 0..random.between(0, 4) {
            let place = HEAD_LEN + usize::try_from(random.below((bad.len() - HEAD_LEN) as u64)).unwrap();
            match random.below(4) {
                0 => bad.truncate(place + 1),
                1 => bad.insert(place, random.bytes(1)[0]),
                _ => bad[place] = random.bytes(1)[0],
            }
        }
        refused +=
            u32::from(client.try_run(&[b"RESTORE", b"copy" as &[u8], b"0", &bad, b"REPLACE"]).is_err());
        client.say("TB.TAKE copy 10 1/h");
    }
    assert!((PAYLOADS / 10..PAYLOADS).contains(&refused), "{refused} were refused");
    reports.end(server);
}

/// Arguments with which the module loads, and those with which it does not.
fn settings(reports: &Reports) {
    let (server, _) = start(Server::builder().module_arguments(&["on-oom", "allow"]));
    reports.end(server);
    for arguments in [["on-oom", "perhaps"].as_slice(), &["no-such", "setting"], &["on-oom"]] {
        let log = Server::builder().module_arguments(arguments).start_expecting_refusal();
        assert!(log.contains("tokenbucket was not loaded"), "{log}");
    }
}
