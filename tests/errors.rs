//! Every error as it comes over the wire, with what causes it; and that a refused call has changed nothing.

mod common;

use common::{text, Connection, Server};

const CAPACITY: &str = "ERR capacity must be a decimal number of tokens from 0 to 1e12";
const COST: &str = "ERR cost must be a decimal number of tokens from 0 to 1e12";
const AMOUNT: &str = "ERR amount must be a decimal number of tokens from 0 to 1e12";
const MAX: &str = "ERR max must be a whole number of tokens from 1 to 1e12";
const MAX_WAIT: &str = "ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000";
const RATE: &str = "ERR rate must be tokens per second above 0, like 5 or 0.25, or count/period, like 100/m \
                    or 10/15s (ms, s, m, h, d)";
const RATE_RANGE: &str = "ERR rate must be at least 1 token in 100 years and at most 1e12 tokens per second";
const TOO_SLOW: &str = "ERR refilling capacity from empty at this rate would take more than 100 years";
const TOO_DEEP: &str = "ERR amount would put the bucket more than 1e12 tokens into debt";
const NUMKEYS: &str = "ERR numkeys must be a whole number from 1 to 1024";
const MISMATCH: &str = "ERR numkeys must match the number of 'key capacity rate cost' groups";
const DUPLICATE: &str = "ERR key must not be given twice in one call";
const STATE: &str = "ERR state must be a bucket state as this module replicates it";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const OOM: &str = "OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'";

/// The commands on one bucket, each with arguments behind the key that are fine.
const ONE_BUCKET: [(&str, &str); 7] = [
    ("TB.TAKE", "10 1 1"),
    ("TB.PEEK", "10 1 1"),
    ("TB.TAKEUPTO", "10 1 1"),
    ("TB.RESERVE", "10 1 1 0"),
    ("TB.CHARGE", "10 1 1"),
    ("TB.GIVE", "10 1 1"),
    ("TB.STATE", ""),
];

/// What is no amount of tokens, with bars between them.
const NO_AMOUNTS: &str = concat!(
    "| |-1|-0|-0.0|+-1|++1|--1|inf|+inf|-inf|Infinity|nan|NaN|0x10|0b1|1e|1e+|1e-|e5|.|+|",
    ".e1|1.2.3|1..2|1,5|1_000|ten|1e1e1|1e1.5| 1|1 |1\n|1\0|\t1|1f|1/2|1%|1e 3|\u{ff11}|",
    "\u{661}|1000000000000.000001|1000000000001|1e13|1e400|1e99999999999999999999|",
    "9223372036854775808|18446744073709551616|340282366920938463463374607431768211456",
);

/// What is no rate, with bars between them.
const NO_RATES: &str = concat!(
    "| |-1|-0|inf|+inf|nan|0x10|1e|e5|.|+|1.2.3|1,5| 1|1 |1/2|0|0.0|0e5|0/s|0/10s|1/0s|",
    "1/0.0ms|1/0|1/10|1/|/s|/|1/x|1/w|1/y|1/S|1/H|1/MS|1/sec|1/min|1/ s|1 /s|1/s |1/-1s|",
    "-1/s|1/infs|1/1/s|1//s|1/s/s|1/ms1|1/us|s|m|100m|100 per minute|1/1e|1/es|1/.s|\0|",
    "1/s\0|5\r\n",
);

/// Rates slower than a token in 100 years or faster than a trillion a second, with bars between them.
const RATES_OUT_OF_RANGE: &str = concat!(
    "1e13|1e400|2e12/s|1e12/999ms|1e9/0.0009s|1e-10|1e-400|1/36525.01d|1/876601h|1/1e99d|",
    "1/1e400ms|0.5/36525d|1e99999999999999999999|1e-99999999999999999999",
);

/// All that a refused call must not change.
fn traces(client: &mut Connection) -> Vec<String> {
    let field =
        |client: &mut Connection, (section, field)| format!("{field} {}", client.info(section, field));
    let watched = [
        ("persistence", "rdb_changes_since_last_save"),
        ("tokenbucket", "tokenbucket_decisions_allowed"),
        ("tokenbucket", "tokenbucket_decisions_denied"),
        ("tokenbucket", "tokenbucket_tokens_granted"),
        ("tokenbucket", "tokenbucket_buckets"),
        ("tokenbucket", "tokenbucket_bucket_bytes"),
    ];
    let mut traces: Vec<_> = watched.map(|watched| field(client, watched)).into();
    traces.push(format!("{:?} {:?}", client.state("k"), client.expires_at_ms("k")));
    traces.push(text(&client.say("DBSIZE")));
    traces
}

/// A server with a controlled clock and a bucket `k` that holds 4 of 10 tokens.
fn prepared() -> (Server, Connection) {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("TB.TAKE k 10 1 6");
    server.clock().advance_ms(500);
    (server, client)
}

#[test]
fn every_error_says_which_argument_is_wrong_and_changes_nothing() {
    let (_server, mut client) = prepared();
    client.say("SET string x");
    client.say("TB.CHARGE deep 10 1e12 1e12");
    client.say("TB.CHARGE deep 10 1e12 10");
    let before = traces(&mut client);
    for (call, error) in [
        ("TB.TAKE k ten 1", CAPACITY),
        ("TB.PEEK k -1 1", CAPACITY),
        ("TB.TAKEUPTO k 1e13 1 1", CAPACITY),
        ("TB.RESERVE k nan 1 1 0", CAPACITY),
        ("TB.CHARGE k 0x10 1 1", CAPACITY),
        ("TB.GIVE k inf 1 1", CAPACITY),
        ("TB.MTAKE 1 k ten 1 1", CAPACITY),
        ("TB.TAKE k 10 fast", RATE),
        ("TB.PEEK k 10 0", RATE),
        ("TB.TAKEUPTO k 10 1/y 1", RATE),
        ("TB.RESERVE k 10 1/0s 1 0", RATE),
        ("TB.CHARGE k 10 -1 1", RATE),
        ("TB.GIVE k 10 1/ 1", RATE),
        ("TB.MTAKE 1 k 10 / 1", RATE),
        ("TB.TAKE k 10 1e13", RATE_RANGE),
        ("TB.TAKE k 10 1/36525.1d", RATE_RANGE),
        ("TB.MTAKE 1 k 10 1e-10 1", RATE_RANGE),
        ("TB.TAKE k 2 1/36525d", TOO_SLOW),
        ("TB.CHARGE k 1e12 316 1", TOO_SLOW),
        ("TB.MTAKE 1 k 1e12 1 1", TOO_SLOW),
        ("TB.TAKE k 10 1 one", COST),
        ("TB.PEEK k 10 1 -1", COST),
        ("TB.RESERVE k 10 1 1e13 0", COST),
        ("TB.MTAKE 1 k 10 1 one", COST),
        ("TB.TAKEUPTO k 10 1 0", MAX),
        ("TB.TAKEUPTO k 10 1 1.5", MAX),
        ("TB.RESERVE k 10 1 1 -1", MAX_WAIT),
        ("TB.RESERVE k 10 1 1 0.5", MAX_WAIT),
        ("TB.CHARGE k 10 1 -1", AMOUNT),
        ("TB.GIVE k 10 1 all", AMOUNT),
        ("TB.CHARGE deep 10 1e12 0.000001", TOO_DEEP),
        ("TB.MTAKE 0 k 10 1 1", NUMKEYS),
        ("TB.MTAKE 1025 k 10 1 1", NUMKEYS),
        ("TB.MTAKE 2 k 10 1 1", MISMATCH),
        ("TB.MTAKE 2 k 10 1 1 k 10 1 1", DUPLICATE),
        ("TB.RESTORE k state", STATE),
        ("TB.TAKE string 10 1", WRONG_TYPE),
    ] {
        assert_eq!(client.refusal(call), error, "{call}");
        assert_eq!(traces(&mut client), before, "{call}");
    }
    assert_eq!(text(&client.say("GET string")), "x");
}

#[test]
fn a_bad_call_on_a_bucket_that_does_not_exist_creates_none() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let before = traces(&mut client);
    for (command, _) in ONE_BUCKET.iter().filter(|(command, _)| *command != "TB.STATE") {
        let rest = if *command == "TB.RESERVE" { " 0" } else { "" };
        for bad in ["x 1 1", "10 x 1", "10 1 x", "10 1e13 1", "2 1/36525d 1"] {
            client.refusal(&format!("{command} k {bad}{rest}"));
        }
    }
    assert_eq!(traces(&mut client), before);
}

#[test]
fn a_wrong_number_of_arguments_is_refused_by_every_command() {
    let (_server, mut client) = prepared();
    let before = traces(&mut client);
    let enough = ["", "k", "k 10", "k 10 1", "k 10 1 1", "k 10 1 1 0", "k 10 1 1 0 0"];
    let fine: [(&str, &[usize]); 7] = [
        ("TB.TAKE", &[3, 4]),
        ("TB.PEEK", &[3, 4]),
        ("TB.TAKEUPTO", &[4]),
        ("TB.RESERVE", &[5]),
        ("TB.CHARGE", &[4]),
        ("TB.GIVE", &[4]),
        ("TB.STATE", &[1]),
    ];
    for (command, fine) in fine {
        for (count, arguments) in enough.iter().enumerate().filter(|(count, _)| !fine.contains(count)) {
            let error = format!("ERR wrong number of arguments for '{command}' command");
            assert_eq!(client.refusal(&format!("{command} {arguments}")), error, "with {count}");
        }
    }
    for arguments in ["", "k", "k x j"] {
        let error = "ERR wrong number of arguments for 'TB.RESTORE' command";
        assert_eq!(client.refusal(&format!("TB.RESTORE {arguments}")), error);
    }
    assert_eq!(client.refusal("TB.MTAKE"), "ERR wrong number of arguments for 'TB.MTAKE' command");
    assert_eq!(traces(&mut client), before);
}

#[test]
fn a_key_of_another_type_is_refused_by_every_command_and_stays_as_it_is() {
    let server = Server::start();
    let mut client = server.connect();
    for make in
        ["SET string 5", "RPUSH list x", "SADD set x", "ZADD zset 1 x", "HSET hash f x", "XADD stream * f x"]
    {
        client.say(make);
        let key = make.split_whitespace().nth(1).unwrap();
        let dump = client.say(&format!("DUMP {key}"));
        for (command, arguments) in ONE_BUCKET {
            assert_eq!(client.refusal(&format!("{command} {key} {arguments}")), WRONG_TYPE, "{command}");
        }
        // Nor does a cost of zero, or one that can never be, hide it.
        assert_eq!(client.refusal(&format!("TB.TAKE {key} 10 1 0")), WRONG_TYPE);
        assert_eq!(client.refusal(&format!("TB.TAKE {key} 10 1 11")), WRONG_TYPE);
        assert_eq!(client.refusal(&format!("TB.MTAKE 1 {key} 10 1 1")), WRONG_TYPE);
        assert_eq!(client.say(&format!("DUMP {key}")), dump);
        assert_eq!(text(&client.say(&format!("PTTL {key}"))), "-1");
    }
    assert_eq!(client.info("tokenbucket", "tokenbucket_buckets"), "0");
}

#[test]
fn the_commands_of_other_types_refuse_a_bucket() {
    let (_server, mut client) = prepared();
    let before = client.state("k");
    for call in ["GET k", "INCR k", "LPUSH k x", "HSET k f x", "APPEND k x", "SADD k x"] {
        assert_eq!(client.refusal(call), WRONG_TYPE, "{call}");
    }
    assert_eq!(client.state("k"), before);
}

/// A number with so many zeros that no machine word holds it.
fn zeros(before: &str, count: usize, behind: &str) -> String {
    format!("{before}{}{behind}", "0".repeat(count))
}

#[test]
fn amounts_are_accepted_as_clients_print_them() {
    let server = Server::with_clock();
    let mut client = server.connect();
    // A cost, and what is left of 10^12 tokens.
    let trillion_less = |micro: i64| {
        let micro = 1_000_000_000_000_000_000 - micro;
        let (whole, fraction) = (micro / 1_000_000, micro % 1_000_000);
        if fraction == 0 {
            whole.to_string()
        } else {
            format!("{whole}.{fraction:06}").trim_end_matches('0').to_owned()
        }
    };
    for (cost, micro) in [
        ("10".to_owned(), 10_000_000),
        ("+10".to_owned(), 10_000_000),
        ("0.5".to_owned(), 500_000),
        (".5".to_owned(), 500_000),
        ("5.".to_owned(), 5_000_000),
        ("1e3".to_owned(), 1_000_000_000),
        ("1E3".to_owned(), 1_000_000_000),
        ("1e+3".to_owned(), 1_000_000_000),
        ("1E-2".to_owned(), 10_000),
        ("12.345678".to_owned(), 12_345_678),
        ("0012.50".to_owned(), 12_500_000),
        ("123456789012.000001".to_owned(), 123_456_789_012_000_001),
        ("1e12".to_owned(), 1_000_000_000_000_000_000),
        ("1000000000000.000000".to_owned(), 1_000_000_000_000_000_000),
        ("0.00001e5".to_owned(), 1_000_000),
        // Costs are rounded up to the next millionth.
        ("0.0000001".to_owned(), 1),
        ("1.0000000000000000000000000001".to_owned(), 1_000_001),
        ("1e-400".to_owned(), 1),
        ("1e-99999999999999999999".to_owned(), 1),
        ("999999999999.9999999".to_owned(), 1_000_000_000_000_000_000),
        (zeros("", 5000, "7"), 7_000_000),
        (zeros("7.", 5000, ""), 7_000_000),
        (zeros("7.", 5000, "1"), 7_000_001),
        (zeros("7", 5000, "e-5000"), 7_000_000),
        (zeros("0.", 5000, "7e5001"), 7_000_000),
        (zeros("0e", 5000, "9"), 0),
    ] {
        client.say("DEL k");
        client.say(&format!("TB.TAKE k 1e12 1e12 {cost}"));
        let expected = (micro != 0).then(|| (trillion_less(micro), server.clock().now_us()));
        assert_eq!(client.state("k"), expected, "{cost:.60}");
    }
}

#[test]
fn what_is_no_amount_is_refused() {
    let (_server, mut client) = prepared();
    let before = traces(&mut client);
    for amount in NO_AMOUNTS.split('|') {
        let wire = [
            (vec!["TB.TAKE", "k", amount, "1", "1"], CAPACITY),
            (vec!["TB.TAKE", "k", "10", "1", amount], COST),
            (vec!["TB.PEEK", "k", "10", "1", amount], COST),
            (vec!["TB.RESERVE", "k", "10", "1", amount, "0"], COST),
            (vec!["TB.CHARGE", "k", "10", "1", amount], AMOUNT),
            (vec!["TB.GIVE", "k", "10", "1", amount], AMOUNT),
            (vec!["TB.TAKEUPTO", "k", "10", "1", amount], MAX),
            (vec!["TB.MTAKE", "1", "k", "10", "1", amount], COST),
        ];
        for (call, error) in wire {
            assert_eq!(client.try_run(&call), Err(error.to_owned()), "{call:?}");
        }
    }
    assert_eq!(traces(&mut client), before);
}

#[test]
fn rates_are_accepted_in_both_forms_and_every_unit() {
    let server = Server::with_clock();
    let mut client = server.connect();
    // A rate, and the milliseconds in which it brings 60 tokens.
    for (rate, fill_ms) in [
        ("5", 12_000),
        ("+5", 12_000),
        ("0.25", 240_000),
        ("1e-3", 60_000_000),
        ("1E3", 60),
        ("1e12", 1),
        ("1000000000000/s", 1),
        ("6e16/d", 1),
        ("60/s", 1000),
        ("60/1s", 1000),
        ("60/ms", 1),
        ("60/250ms", 250),
        ("60/m", 60_000),
        ("60/1.5m", 90_000),
        ("60/h", 3_600_000),
        ("60/2h", 7_200_000),
        ("60/d", 86_400_000),
        ("60/7d", 604_800_000),
        ("+60/+1e1s", 10_000),
        ("0.6/0.01s", 1000),
        ("60/36525d", 3_155_760_000_000),
        // Tokens that no clock of microseconds could tell apart.
        ("1e9/m", 1),
        ("7/9s", 77_143),
    ] {
        client.say("DEL k");
        let told = client.decide(&format!("TB.TAKE k 60 {rate} 60"));
        assert_eq!(told.reset_after_ms, fill_ms, "{rate}");
    }
}

#[test]
fn what_is_no_rate_is_refused() {
    let (_server, mut client) = prepared();
    let before = traces(&mut client);
    for rate in NO_RATES.split('|') {
        assert_eq!(client.try_run(&["TB.TAKE", "k", "1", rate]), Err(RATE.to_owned()), "{rate:?}");
    }
    for rate in RATES_OUT_OF_RANGE.split('|') {
        assert_eq!(client.try_run(&["TB.TAKE", "k", "1", rate]), Err(RATE_RANGE.to_owned()), "{rate:?}");
    }
    for (capacity, rate) in [("1.000001", "1/36525d"), ("1e12", "316"), ("1e9", "1/d"), ("36526", "1/d")] {
        assert_eq!(client.try_run(&["TB.TAKE", "k", capacity, rate]), Err(TOO_SLOW.to_owned()), "{capacity}");
    }
    assert_eq!(traces(&mut client), before);
}

#[test]
fn the_maximum_of_takeupto_is_whole_tokens_and_at_least_one() {
    let (_server, mut client) = prepared();
    for (max, granted) in [("1", 1), ("+1", 1), ("0.1e1", 1), ("1e12", 1), ("1000000000000", 0)] {
        assert_eq!(client.decide(&format!("TB.TAKEUPTO k 10 1 {max}")).allowed, granted, "{max}");
    }
    for max in
        ["0", "0.5", "1.5", "0.999999", "1.0000000000000000000001", "-1", "1e13", "1e-1", "1000000000001"]
    {
        assert_eq!(client.refusal(&format!("TB.TAKEUPTO k 10 1 {max}")), MAX, "{max}");
    }
}

#[test]
fn the_longest_wait_is_whole_milliseconds_of_at_most_a_century() {
    let (_server, mut client) = prepared();
    for wait in ["0", "1", "+1", "1e3", "3155760000000"] {
        assert_eq!(client.decide(&format!("TB.RESERVE k 10 1 0.1 {wait}")).allowed, 1, "{wait}");
    }
    for wait in ["-1", "0.5", "3155760000001", "1e13", "1e400", "inf", "x", "1s"] {
        assert_eq!(client.refusal(&format!("TB.RESERVE k 10 1 0.1 {wait}")), MAX_WAIT, "{wait}");
    }
}

#[test]
fn over_maxmemory_no_bucket_is_created_and_none_is_changed_by_the_error() {
    let (_server, mut client) = prepared();
    client.say("CONFIG SET maxmemory 1");
    let before = traces(&mut client);
    for call in [
        "TB.TAKE new 10 1",
        "TB.TAKEUPTO new 10 1 5",
        "TB.RESERVE new 10 1 1 0",
        "TB.CHARGE new 10 1 1",
        "TB.MTAKE 1 new 10 1 1",
    ] {
        assert_eq!(client.refusal(call), OOM, "{call}");
        assert_eq!(traces(&mut client), before, "{call}");
    }
}

#[test]
fn a_read_only_replica_refuses_all_but_peek_and_state() {
    let (server, mut client) = prepared();
    let port_of_nobody = common::server::free_port();
    client.say(&format!("REPLICAOF 127.0.0.1 {port_of_nobody}"));
    for (command, arguments) in ONE_BUCKET {
        let reply =
            client.try_run(&format!("{command} k {arguments}").split_whitespace().collect::<Vec<_>>());
        match command {
            "TB.PEEK" | "TB.STATE" => assert!(reply.is_ok(), "{command}: {reply:?}"),
            _ => assert!(reply.as_ref().unwrap_err().starts_with("READONLY"), "{command}: {reply:?}"),
        }
    }
    for call in ["TB.MTAKE 1 k 10 1 1", "TB.RESTORE k x", "TB.TAKE new 10 1 0"] {
        let refused = client.refusal(call);
        assert!(refused.starts_with("READONLY"), "{call}: {refused}");
    }
    assert_eq!(client.state("k").unwrap().0, "4");
    drop(server);
}

#[test]
fn keys_of_several_slots_are_refused_in_a_cluster() {
    let server = Server::builder().option("cluster-enabled", "yes").start();
    let mut client = server.connect();
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    client.run(&[vec!["CLUSTER", "ADDSLOTS"], slots.iter().map(String::as_str).collect()].concat());
    common::wait_until("the cluster is up", || client.try_run(&["TB.STATE", "k"]).is_ok());
    for call in [
        "TB.MTAKE 2 a 10 1 1 b 10 1 1",
        "TB.MTAKE 3 {a}1 10 1 1 {a}2 10 1 1 b 10 1 1",
        "TB.MTAKE 5 {a}1 10 1 1 {a}2 10 1 1 {a}3 10 1 1 b 10 1 1 {a}4 10 1 1",
    ] {
        let refused = client.refusal(call);
        assert!(refused.starts_with("CROSSSLOT"), "{call}: {refused}");
    }
    assert_eq!(text(&client.say("DBSIZE")), "0");
    client.say("TB.MTAKE 3 {a}1 10 1 1 {a}2 10 1 1 {a}3 10 1 1");
    assert_eq!(text(&client.say("DBSIZE")), "3");
}

#[test]
fn no_error_repeats_what_was_sent() {
    let server = Server::start();
    let mut client = server.connect();
    let poison = "\u{1b}[31m\u{7}poison";
    let mut calls = vec![vec!["TB.MTAKE", poison, "k", "1", "1", "1"], vec!["TB.RESTORE", "k", poison]];
    for (command, arguments) in ONE_BUCKET {
        let fine: Vec<_> = std::iter::once("k").chain(arguments.split_whitespace()).collect();
        for place in 1..fine.len() {
            let mut bad = fine.clone();
            bad[place] = poison;
            calls.push(std::iter::once(command).chain(bad).collect());
        }
    }
    for call in calls {
        let refused = client.try_run(&call).unwrap_err();
        assert!(refused.starts_with("ERR "), "{call:?}: {refused}");
        assert!(
            !refused.contains("poison") && refused.chars().all(|c| (' '..='~').contains(&c)),
            "{refused:?}"
        );
    }
}
