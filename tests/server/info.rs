//! `INFO tokenbucket`. What becomes of the count of buckets and of their bytes when buckets end: `maxmemory.rs`, and when they
//! are copied or moved: `keyspace.rs`.

use crate::common::{text, Connection, Server};

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
fn it_is_a_section_of_its_own_and_among_all_others() {
    let (_server, mut client) = Server::start_with_client();
    for section in ["tokenbucket", "modules", "everything"] {
        let report = text(&client.say(&format!("INFO {section}")));
        assert!(format!("\n{report}").contains("\n# tokenbucket\r\n"), "{section}");
        for field in FIELDS {
            assert!(report.contains(&format!("\r\ntokenbucket_{field}:0\r\n")), "{section} without {field}");
        }
    }
    assert!(!text(&client.say("INFO")).contains("tokenbucket_errors"), "not among the defaults");
}
