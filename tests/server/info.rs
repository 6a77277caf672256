//! `INFO tokenbucket`.

use crate::common::{text, wait_until, Connection, Server};

const FIELDS: [&str; 6] =
    ["decisions_allowed", "decisions_denied", "errors", "tokens_granted", "buckets", "bucket_bytes"];

pub fn counters(client: &mut Connection) -> [i64; 6] {
    FIELDS.map(|field| client.count("tokenbucket", &format!("tokenbucket_{field}")))
}

/// What all other calls add: `traces.rs`.
#[test]
fn it_counts_parts_of_tokens_together_and_keys_of_other_types_as_errors() {
    let (_server, mut client) = Server::with_clock_and_client();
    client.say("SET string x");
    for (key, expected) in [("k", [1, 0, 0, 0]), ("k", [2, 0, 0, 1]), ("string", [2, 0, 1, 1])] {
        let _ = client.attempt(&format!("TB.TAKE {key} 10 1 0.5"));
        assert_eq!(counters(&mut client)[..4], expected, "{key}");
    }
}

#[test]
fn it_counts_buckets_wherever_they_come_from_and_go_to() {
    let (server, mut client) = Server::with_clock_and_client();
    let expect = |client: &mut Connection, what: &str, buckets: i64| {
        wait_until(&format!("{buckets} buckets are counted after {what}"), || counters(client)[4] == buckets);
        let bytes = counters(client)[5];
        // Two numbers of 8 bytes each, and what the allocator adds to them.
        assert!((16 * buckets..=32 * buckets).contains(&bytes), "{bytes} bytes for {buckets} after {what}");
    };
    for number in 0..100 {
        client.say(&format!("TB.TAKE key:{number} 10 1 5"));
    }
    client.say("SELECT 1");
    client.say("TB.TAKE elsewhere 10 1 5");
    expect(&mut client, "takes in two databases", 101);
    client.say("SELECT 0");
    client.say("MOVE key:1 1");
    client.say("UNLINK key:2");
    client.say("RENAME key:3 key:4");
    client.say("SET key:5 overwritten");
    expect(&mut client, "MOVE, UNLINK, RENAME and SET", 98);
    let dump = client.dump("key:6");
    client.restore("copy", &dump).unwrap();
    expect(&mut client, "RESTORE", 99);
    client.say("FLUSHDB");
    expect(&mut client, "FLUSHDB", 2);
    server.clock().advance_ms(60_000);
    expect(&mut client, "their expiry", 0);
}

#[test]
fn it_counts_holds_and_those_that_expired() {
    let (server, mut client) = Server::with_clock_and_client();
    let count = |client: &mut Connection| {
        ["holds", "holds_expired", "settled_late", "decisions_denied"]
            .map(|field| client.count("tokenbucket", &format!("tokenbucket_{field}")))
    };
    for hold in ["k 10 0 1 5000 a", "k 10 0 1 5000 b", "k 10 0 1 60000 c", "other 10 0 1 60000 a"] {
        client.say(&format!("TB.HOLD {hold}"));
    }
    assert_eq!(count(&mut client), [4, 0, 0, 0]);
    assert!(counters(&mut client)[5] > 200, "the bytes of the holds are not counted");
    client.say("TB.SETTLE k 10 0 a 0");
    server.clock().advance_ms(5000);
    client.say("TB.SETTLE k 10 0 b 0");
    client.say("TB.HOLD k 10 0 1 5000 d");
    assert_eq!(count(&mut client), [3, 1, 1, 0]);
    client.say("DEL other");
    client.say("FLUSHALL");
    wait_until("all is freed", || count(&mut client) == [0, 1, 1, 0]);
    assert_eq!(counters(&mut client)[5], 0);
}

#[test]
fn it_is_a_section_of_its_own_and_among_all_others() {
    let server = Server::start();
    let mut client = server.connect();
    for section in ["tokenbucket", "modules", "everything"] {
        let report = text(&client.say(&format!("INFO {section}")));
        assert!(format!("\n{report}").contains("\n# tokenbucket\r\n"), "{section}");
        for field in FIELDS {
            assert!(report.contains(&format!("\r\ntokenbucket_{field}:0\r\n")), "{section} without {field}");
        }
    }
    assert!(!text(&client.say("INFO")).contains("tokenbucket_errors"), "not among the defaults");
}
