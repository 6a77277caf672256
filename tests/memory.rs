//! What buckets cost, and what becomes of them when memory is short.

mod common;

use common::{text, wait_until, Connection, Decision, Engine, Server};
use redis::Value;

const OOM: &str = "OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'";

fn decided(fields: [i64; 4]) -> Decision {
    fields.into()
}

fn used_memory(client: &mut Connection) -> i64 {
    client.info("memory", "used_memory").parse().unwrap()
}

fn set_maxmemory(client: &mut Connection, bytes: i64) {
    client.say(&format!("CONFIG SET maxmemory {bytes}"));
}

/// Sends a call for each number in `numbers`, a thousand at once; returns the replies.
fn send_all(
    client: &mut Connection,
    numbers: std::ops::Range<u32>,
    call: impl Fn(u32) -> String,
) -> Vec<Value> {
    let numbers: Vec<_> = numbers.collect();
    let mut replies = Vec::with_capacity(numbers.len());
    for chunk in numbers.chunks(1000) {
        let mut pipeline = redis::pipe();
        for number in chunk {
            let call = call(*number);
            let mut words = call.split(' ');
            pipeline.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
        }
        replies.extend(pipeline.query::<Vec<Value>>(client.inner()).unwrap());
    }
    replies
}

#[test]
fn buckets_that_exist_go_on_being_enforced() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 3 1 1");
    set_maxmemory(&mut client, 1);
    assert_eq!(client.decide("TB.TAKE k 3 1 2"), decided([1, 0, 0, 3000]));
    assert_eq!(client.decide("TB.TAKE k 3 1"), decided([0, 0, 1000, 3000]));
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.TAKE k 3 1"), decided([1, 0, 0, 3000]));
    assert_eq!(client.decide("TB.RESERVE k 3 1 1 1000"), decided([1, -1, 1000, 4000]));
    assert_eq!(client.decide("TB.CHARGE k 3 1 1"), decided([1, -2, 2000, 5000]));
    assert_eq!(client.decide("TB.GIVE k 3 1 4"), decided([1, 2, 0, 1000]));
    assert_eq!(client.decide("TB.TAKEUPTO k 3 1 5"), decided([2, 0, 0, 3000]));
    assert_eq!(client.decide("TB.GIVE k 3 1 3"), decided([1, 3, 0, 0]));
    assert_eq!(client.state("k"), None);
}

/// The calls that take from a bucket that does not exist, and what they are told if they may.
const CREATING: [(&str, [i64; 4]); 4] = [
    ("TB.TAKE new 10 1 4", [1, 6, 0, 4000]),
    ("TB.TAKEUPTO new 10 1 7", [7, 3, 0, 7000]),
    ("TB.RESERVE new 10 1 10 0", [1, 0, 0, 10_000]),
    ("TB.CHARGE new 10 1 15", [1, -5, 5000, 15_000]),
];

fn assert_each_creates(client: &mut Connection) {
    for (call, expected) in CREATING {
        assert_eq!(client.decide(call), decided(expected), "{call}");
        client.say("DEL new");
    }
}

#[test]
fn a_new_bucket_is_an_error_over_maxmemory_unless_told_otherwise() {
    let server = Server::with_clock();
    let mut client = server.connect();
    set_maxmemory(&mut client, 1);
    for (call, _) in CREATING {
        assert_eq!(client.refusal(call), OOM, "{call}");
        assert_eq!(client.state("new"), None);
    }
    // What creates none needs no memory.
    assert_eq!(client.decide("TB.PEEK new 10 1 4"), decided([1, 6, 0, 4000]));
    assert_eq!(client.decide("TB.TAKE new 10 1 0"), decided([1, 10, 0, 0]));
    assert_eq!(client.decide("TB.TAKE new 10 1 11"), decided([0, 10, -1, 0]));
    assert_eq!(client.decide("TB.GIVE new 10 1 5"), decided([1, 10, 0, 0]));
    set_maxmemory(&mut client, 0);
    assert_each_creates(&mut client);
}

#[test]
fn told_to_allow_it_decides_as_on_a_full_bucket_and_stores_nothing() {
    let server = Server::builder().controlled_clock().module_arguments(&["on-oom", "allow"]).start();
    let mut client = server.connect();
    client.decide("TB.TAKE old 10 1 9");
    set_maxmemory(&mut client, 1);
    for (call, expected) in CREATING {
        for _ in 0..3 {
            assert_eq!(client.decide(call), decided(expected), "{call}");
            assert_eq!(client.state("new"), None, "{call}");
        }
    }
    assert_eq!(client.decide("TB.TAKE new 10 1 11"), decided([0, 10, -1, 0]));
    assert_eq!(client.decide("TB.TAKE old 10 1 2"), decided([0, 1, 1000, 9000]));
    assert_eq!(client.info("tokenbucket", "tokenbucket_buckets"), "1");
    set_maxmemory(&mut client, 0);
    client.decide("TB.TAKE new 10 1 4");
    assert!(client.state("new").is_some(), "stored again as soon as there is memory");
}

#[test]
fn a_script_over_maxmemory_is_told_the_same() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE old 10 1 4");
    set_maxmemory(&mut client, 1);
    let take = |key: &str| format!("return redis.call('TB.TAKE', '{key}', 10, 1, 1)");
    let reply = client.run(&["EVAL", &take("old"), "0"]);
    assert_eq!(common::decision(&reply), decided([1, 5, 0, 5000]));
    let refused = client.try_run(&["EVAL", &take("new"), "0"]).unwrap_err();
    assert!(refused.contains(OOM), "{refused}");
    assert_eq!(client.state("new"), None);
}

#[test]
fn with_an_eviction_policy_new_buckets_push_out_others() {
    const BUCKETS: u32 = 8000;
    for policy in [
        "volatile-ttl",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
    ] {
        let server = Server::start();
        let mut client = server.connect();
        client.say(&format!("CONFIG SET maxmemory-policy {policy}"));
        send_all(&mut client, 0..1, |number| format!("TB.TAKE user:{number:07} 10 1/h"));
        let maxmemory = used_memory(&mut client) + 500_000;
        set_maxmemory(&mut client, maxmemory);
        let replies = send_all(&mut client, 1..BUCKETS, |number| format!("TB.TAKE user:{number:07} 10 1/h"));
        for reply in replies {
            assert_eq!(common::decision(&reply).allowed, 1, "{policy}");
        }
        // Or else looking would evict further ones.
        set_maxmemory(&mut client, 0);
        let evicted: i64 = client.info("stats", "evicted_keys").parse().unwrap();
        let left: i64 = text(&client.say("DBSIZE")).parse().unwrap();
        assert!(evicted > 1000 && left > 1000, "{policy}: {evicted} evicted, {left} left");
        assert_eq!(evicted + left, i64::from(BUCKETS), "{policy}");
        assert_eq!(client.info("tokenbucket", "tokenbucket_buckets"), left.to_string(), "{policy}");
    }
}

#[test]
fn with_an_eviction_policy_there_is_always_room_for_one_more() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("CONFIG SET maxmemory-policy allkeys-lru");
    set_maxmemory(&mut client, 1);
    assert_each_creates(&mut client);
}

/// The loss by eviction is smallest where the buckets nearest to full go first.
#[test]
fn volatile_ttl_evicts_the_buckets_that_are_nearest_to_full() {
    const PRECIOUS: u32 = 1000;
    const CHEAP: u32 = 10_000;
    let server = Server::start();
    let mut client = server.connect();
    for setting in ["maxmemory-policy volatile-ttl", "maxmemory-samples 10"] {
        client.say(&format!("CONFIG SET {setting}"));
    }
    let exhausted = |number| format!("TB.TAKE precious:{number:07} 10 10/d 10");
    send_all(&mut client, 0..PRECIOUS, exhausted);
    let maxmemory = used_memory(&mut client) + 500_000;
    set_maxmemory(&mut client, maxmemory);
    send_all(&mut client, 0..CHEAP, |number| format!("TB.TAKE cheap:{number:07} 10 10/h 1"));
    let evicted: i64 = client.info("stats", "evicted_keys").parse().unwrap();
    assert!(evicted > 2000, "{evicted} evicted: memory was not short");
    let states = send_all(&mut client, 0..PRECIOUS, |number| format!("TB.STATE precious:{number:07}"));
    let lost = states.iter().filter(|state| **state == Value::Nil).count();
    assert!(lost < 10, "{lost} of {PRECIOUS} exhausted buckets were full again, of {evicted} evicted");
}

/// Ways in which a bucket ends. `{}` stands for its number.
const ENDS: [(&str, &[&str]); 8] = [
    ("deleted", &["DEL user:{}"]),
    ("unlinked", &["UNLINK user:{}"]),
    ("given back", &["TB.GIVE user:{} 10 1/h 10"]),
    ("expired", &["PEXPIRE user:{} 1"]),
    ("overwritten", &["SET user:{} 1"]),
    ("overwritten by a copy", &["TB.TAKE other:{} 10 1/h", "RENAME other:{} user:{}", "DEL user:{}"]),
    ("denied and charged", &["TB.TAKE user:{} 10 1/h 11", "TB.CHARGE user:{} 10 1/h 11", "DEL user:{}"]),
    ("flushed", &[]),
];

#[test]
fn all_memory_comes_back_however_a_bucket_ends() {
    const BUCKETS: u32 = 20_000;
    // A value that was forgotten costs 16 bytes at least: 320,000 in all.
    const NOISE: i64 = 100_000;
    let server = Server::start();
    let live_and_end = |end: &[&str]| {
        // A client of its own, whose buffers go with it.
        let mut client = server.connect();
        send_all(&mut client, 0..BUCKETS, |number| format!("TB.TAKE user:{number} 10 1/h"));
        for call in end {
            send_all(&mut client, 0..BUCKETS, |number| call.replace("{}", &number.to_string()));
        }
        client.say("FLUSHALL");
    };
    let mut observer = server.connect();
    // The first time, the server makes room for what it keeps.
    for (_, end) in ENDS {
        live_and_end(end);
    }
    let baseline = settled_memory(&mut observer);
    for (name, end) in ENDS {
        live_and_end(end);
        let growth = settled_memory(&mut observer) - baseline;
        assert!(growth < NOISE, "{growth} bytes are gone with {BUCKETS} buckets that were {name}");
        assert_eq!(observer.info("tokenbucket", "tokenbucket_buckets"), "0", "{name}");
    }
}

/// The memory in use once it stays the same. Tables grow by and by, and some servers free in the background.
fn settled_memory(client: &mut Connection) -> i64 {
    let mut last_reads = [0; 5];
    wait_until("the memory in use stays the same", || {
        std::thread::sleep(std::time::Duration::from_millis(60));
        last_reads.rotate_left(1);
        last_reads[4] = used_memory(client);
        last_reads.iter().all(|read| *read == last_reads[0])
    });
    last_reads[0]
}

/// Bytes that a key costs on a server of its own, with all that the server keeps of it.
fn bytes_per_key(keys: u32, call: impl Fn(u32) -> String) -> f64 {
    let server = Server::start();
    let mut client = server.connect();
    let before = used_memory(&mut client);
    send_all(&mut client, 0..keys, call);
    assert_eq!(text(&client.say("DBSIZE")), keys.to_string());
    (settled_memory(&mut client) - before) as f64 / f64::from(keys)
}

#[test]
fn a_bucket_costs_at_most_150_bytes_and_two_small_blocks_more_than_an_integer_that_expires() {
    const KEYS: u32 = 100_000;
    // Numbers that no server has ready to share.
    let integer = bytes_per_key(KEYS, |number| format!("SET user:{number:07} {} EX 86400", 100_000 + number));
    let bucket = bytes_per_key(KEYS, |number| format!("TB.TAKE user:{number:07} 10 1/h"));
    println!("{:?}: a bucket {bucket:.1} bytes, an integer {integer:.1}", Engine::under_test());
    let allocator = Server::start().connect().info("memory", "mem_allocator");
    // The smallest block of the C library's allocator is 24 bytes, of jemalloc 16.
    let (most, block) = if allocator.starts_with("jemalloc") { (150.0, 16.0) } else { (170.0, 24.0) };
    assert!(bucket <= most, "{bucket} bytes a bucket with {allocator}");
    assert!(
        bucket - integer <= 2.0 * block + 2.0,
        "{bucket} a bucket, {integer} an integer with {allocator}"
    );
}
