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

/// What becomes of them when buckets end: `memory.rs`, and when they are copied or moved: `keyspace.rs`.
#[test]
fn it_counts_the_buckets_of_all_databases_and_their_bytes() {
    let (server, mut client) = Server::with_clock_and_client();
    for number in 0..100 {
        client.say(&format!("TB.TAKE key:{number} 10 1 5"));
    }
    client.say("SELECT 1");
    client.say("TB.TAKE elsewhere 10 1 5");
    let [.., buckets, bytes] = counters(&mut client);
    // Two numbers of 8 bytes each, and what the allocator adds to them.
    assert!(buckets == 101 && (16 * 101..=32 * 101).contains(&bytes), "{bytes} bytes for {buckets}");
    client.say("FLUSHDB");
    wait_until("one is flushed", || counters(&mut client)[4] == 100);
    server.clock().advance_ms(60_000);
    wait_until("all have expired", || counters(&mut client)[4..] == [0, 0]);
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
