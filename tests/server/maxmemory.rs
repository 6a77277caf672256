//! What buckets cost, and what becomes of them when memory is short.

use super::holds::uuid;
use super::is_refused_before;
use crate::common::calls::{prepare, Outcome, CALLS};
use crate::common::stored::{buckets, buckets_alive};
use crate::common::{array, decision, is_before, tell, texts, wait_until, Connection, Engine, Server};
use redis::Value;
use std::ops::Range;
use tokenbucket_core::error::Error;

fn set_maxmemory(client: &mut Connection, bytes: i64) {
    client.say(&format!("CONFIG SET maxmemory {bytes}"));
}

/// Sends a call for each number in `numbers`, a thousand at once; returns the replies.
pub fn send_all(client: &mut Connection, numbers: Range<u32>, call: impl Fn(u32) -> String) -> Vec<Value> {
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

/// Buckets that exist go on being enforced, and so does whatever creates none. What would create one is refused, or told
/// to allow it, decided as on a full bucket of which nothing is stored.
#[test]
fn over_maxmemory_a_new_bucket_is_as_on_oom_says_and_nothing_else_is() {
    for on_oom in ["deny", "allow"] {
        let (_server, mut client) =
            Server::builder().controlled_clock().module_arguments(&["on-oom", on_oom]).start_with_client();
        for call in CALLS.iter().filter(|call| call.outcome != Outcome::Overrode) {
            prepare(&mut client);
            call.make(&mut client);
            // A hold on a bucket that exists needs memory too.
            let holds = matches!(call.outcome, Outcome::Held(_));
            let creates = client.keys() > 2 || holds;
            let is_first_there = call.keys().first() == Some(&"k");
            let refusal = if holds && is_first_there { Error::HoldOutOfMemory } else { Error::OutOfMemory };
            prepare(&mut client);
            let before = buckets(&mut client);
            set_maxmemory(&mut client, 1);
            let told = tell(client.attempt(call.words));
            if creates && on_oom == "deny" {
                assert!(told.starts_with(refusal.rule()), "{}: {told}", call.words);
                assert_eq!(buckets(&mut client), before, "{}", call.words);
            } else {
                assert_eq!(told, call.reply, "{}", call.words);
                assert!(!creates || client.keys() == 2, "{} has made a bucket", call.words);
                let is_held = buckets(&mut client).values().any(|bucket| !bucket.holds.is_empty());
                assert!(!is_held, "{} is held", call.words);
            }
            set_maxmemory(&mut client, 0);
        }
    }
}

/// It is how an operator stops a client that fills the memory.
#[test]
fn over_maxmemory_a_limit_can_be_overridden() {
    let (_server, mut client) = Server::builder().controlled_clock().start_with_client();
    prepare(&mut client);
    set_maxmemory(&mut client, 1);
    for call in CALLS.iter().filter(|call| call.outcome == Outcome::Overrode) {
        call.make(&mut client);
    }
}

/// A module cannot see the flag of the script.
#[test]
fn over_maxmemory_a_script_that_may_use_memory_creates_no_bucket() {
    let (_server, mut client) = Server::start_with_client();
    set_maxmemory(&mut client, 1);
    let script = |call: &str| format!("#!lua flags=allow-oom\nreturn redis.pcall({call})");
    if is_refused_before((7, 0), &mut client, "FUNCTION LIST") {
        return;
    }
    let mut run = |call: &str| tell(client.try_run(&["EVAL", &script(call), "2", "s", "k"]));
    assert_eq!(run("'SET', KEYS[1], 'x'"), "+OK");
    assert!(run("'TB.TAKE', KEYS[2], 10, 1").starts_with(Error::OutOfMemory.rule()));
}

/// The command by which the module asks the server whether there is memory.
#[test]
fn without_setrange_no_bucket_is_created_over_maxmemory_whatever_the_policy() {
    let renamed = "rename-command SETRANGE \"\"\n";
    let (_server, mut client) = Server::builder().configuration_file(renamed).start_with_client();
    for policy in ["noeviction", "allkeys-lru"] {
        client.say(&format!("CONFIG SET maxmemory-policy {policy}"));
        set_maxmemory(&mut client, 1);
        assert!(client.refusal("TB.TAKE new 10 1").starts_with(Error::OutOfMemory.rule()), "{policy}");
        set_maxmemory(&mut client, 0);
        client.say("TB.TAKE new 10 1");
        client.say("DEL new");
    }
}

/// Leaves room for so many bytes more, or none for as many as there are too many.
fn leave_room(client: &mut Connection, bytes: i64) {
    let used = client.used_memory();
    set_maxmemory(client, used + bytes);
}

/// The loss is smallest where the buckets nearest to full go first.
#[test]
fn with_an_eviction_policy_new_buckets_push_out_others() {
    const PRECIOUS: u32 = 1000;
    const CHEAP: u32 = 10_000;
    const POLICIES: &str =
        "volatile-ttl volatile-lru volatile-lfu volatile-random allkeys-lru allkeys-lfu allkeys-random";
    for policy in POLICIES.split(' ') {
        let (_server, mut client) = Server::start_with_client();
        client.say(&format!("CONFIG SET maxmemory-policy {policy}"));
        client.say("CONFIG SET maxmemory-samples 10");
        let exhausted = |number| format!("TB.TAKE precious:{number:07} 10 10/d 10");
        send_all(&mut client, 0..PRECIOUS, exhausted);
        leave_room(&mut client, 500_000);
        let take = |number| format!("TB.TAKE cheap:{number:07} 10 10/h 1");
        let replies = send_all(&mut client, 0..CHEAP, take);
        assert!(replies.iter().all(|reply| decision(reply).allowed == 1), "{policy}");
        // Or else looking would evict further ones.
        set_maxmemory(&mut client, 0);
        let (evicted, left) = (client.count("stats", "evicted_keys"), client.keys());
        assert!(evicted > 2000 && left > 1000, "{policy}: {evicted} evicted, {left} left");
        assert_eq!(evicted + left, i64::from(PRECIOUS + CHEAP), "{policy}");
        assert_eq!(buckets_alive(&mut client), left, "{policy}");
        let states = send_all(&mut client, 0..PRECIOUS, |number| format!("TB.STATE precious:{number:07}"));
        let lost = states.iter().filter(|state| **state == Value::Nil).count();
        let is_small = policy != "volatile-ttl" || lost < 10;
        assert!(is_small, "{lost} of {PRECIOUS} exhausted buckets were full again, of {evicted} evicted");
    }
}

/// What calls on many buckets that do not exist are told in a script.
const TAKE_FROM_NEW_BUCKETS: &str = "
    local told = {}
    for i = 1, 200 do
        local reply = redis.pcall('TB.TAKE', 'new:' .. i, 1, '1/h')
        table.insert(told, reply.err or '[1 0')
    end
    return told";

/// When nothing is left to evict, a bucket that would have to be created is treated like the server's own writes.
#[test]
fn a_policy_that_finds_nothing_to_evict_is_no_memory_for_a_new_bucket() {
    const POLICIES: [&str; 4] = ["noeviction", "volatile-ttl", "volatile-lru", "volatile-random"];
    for (policy, on_oom) in
        POLICIES.iter().flat_map(|policy| ["deny", "allow"].map(|on_oom| (policy, on_oom)))
    {
        let (server, mut client) =
            Server::builder().module_arguments(&["on-oom", on_oom]).start_with_client();
        client.say(&format!("CONFIG SET maxmemory-policy {policy}"));
        send_all(&mut client, 0..1000, |number| format!("SET stays:{number} {number:01000}"));
        // Queued as long as there is memory: later the server would queue nothing.
        let mut queuing = server.connect();
        queuing.say("MULTI");
        queuing.say("TB.TAKE new 1 1/h");
        leave_room(&mut client, -100_000);
        assert!(client.refusal("SET one more").starts_with("OOM "), "{policy}");
        let mut told = texts(client.run(&["EVAL", TAKE_FROM_NEW_BUCKETS, "0"]));
        told.push(tell(client.attempt("TB.TAKE new 1 1/h")));
        told.push(tell(queuing.attempt("EXEC").map(|replies| array(replies).remove(0))));
        let keys = client.keys();
        // Redis 6 does not tell modules that eviction failed.
        let is_unknown = is_before(7, 0) && *policy != "noeviction";
        let expected = match is_unknown || on_oom == "allow" {
            true => "[1 0".to_owned(),
            false => Error::OutOfMemory.to_string(),
        };
        assert!(told.iter().all(|told| told.contains(&expected)), "{policy}, {on_oom}: {told:?}");
        assert!(is_unknown || keys == 1000, "{policy}, {on_oom}: {keys} keys are stored");
    }
}

/// Ways in which a bucket ends. `{}` stands for its number.
const ENDS: [(&str, &[&str]); 9] = [
    ("deleted", &["DEL user:{}"]),
    ("unlinked", &["UNLINK user:{}"]),
    ("given back", &["TB.GIVE user:{} 10 1/h 10"]),
    ("expired", &["PEXPIRE user:{} 1", "EXISTS user:{}"]),
    ("overwritten", &["SET user:{} 1"]),
    ("overwritten by a copy", &["TB.TAKE other:{} 10 1/h", "RENAME other:{} user:{}", "DEL user:{}"]),
    ("denied and charged", &["TB.TAKE user:{} 10 1/h 11", "TB.CHARGE user:{} 10 1/h 11", "DEL user:{}"]),
    ("flushed", &[]),
    ("flushed in the background", &["FLUSHALL ASYNC"]),
];

/// At once, or in the background if the operator wants that.
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
            let times = if call.contains("{}") { BUCKETS } else { 1 };
            send_all(&mut client, 0..times, |number| call.replace("{}", &number.to_string()));
        }
        client.say("FLUSHALL");
    };
    let mut observer = server.connect();
    // The first time, the server makes room for what it keeps.
    ENDS.iter().for_each(|(_, end)| live_and_end(end));
    let baseline = settled_memory(&mut observer);
    for lazily in ["no", "yes"] {
        for option in ["lazyfree-lazy-expire", "lazyfree-lazy-server-del", "lazyfree-lazy-user-del"] {
            observer.run(&["CONFIG", "SET", option, lazily]);
        }
        for (name, end) in ENDS {
            live_and_end(end);
            wait_until("all are freed", || buckets_alive(&mut observer) == 0);
            let growth = settled_memory(&mut observer) - baseline;
            assert!(growth < NOISE, "{growth} bytes are gone with {BUCKETS} buckets that were {name}");
        }
    }
    assert_eq!(observer.count("tokenbucket", "tokenbucket_bucket_bytes"), 0);
}

/// What the server may want for buffers of its own: to read what a client asks takes 20 kB.
const BUFFERS: i64 = 40_000;

/// The memory in use once it stays the same. Tables grow by and by, and some servers free in the background.
pub fn settled_memory(client: &mut Connection) -> i64 {
    let mut last_reads = [0; 5];
    wait_until("the memory in use stays the same", || {
        std::thread::sleep(std::time::Duration::from_millis(60));
        last_reads.rotate_left(1);
        last_reads[4] = client.used_memory();
        last_reads.iter().all(|read| *read == last_reads[0])
    });
    last_reads[0]
}

/// Bytes that a key costs on a server of its own, with all that the server keeps of it.
fn bytes_per_key(keys: u32, call: impl Fn(u32) -> String) -> f64 {
    let (_server, mut client) = Server::start_with_client();
    let before = client.used_memory();
    send_all(&mut client, 0..keys, call);
    assert_eq!(client.keys(), i64::from(keys));
    (settled_memory(&mut client) - before) as f64 / f64::from(keys)
}

#[test]
fn a_bucket_costs_at_most_150_bytes_and_two_small_blocks_more_than_an_integer_that_expires() {
    const KEYS: u32 = 100_000;
    // Numbers that no server has ready to share.
    let integer = bytes_per_key(KEYS, |number| format!("SET user:{number:07} {} EX 86400", 100_000 + number));
    let bucket = bytes_per_key(KEYS, |number| format!("TB.TAKE user:{number:07} 10 1/h"));
    println!("{:?}: a bucket {bucket:.1} bytes, an integer {integer:.1}", Engine::under_test());
    let has_jemalloc = Server::start().has_jemalloc();
    // The smallest block of the C library's allocator is 24 bytes, of jemalloc 16. With musl's the server also puts the
    // size in front of each block, those of the key included.
    let (most, block) = if has_jemalloc { (150.0, 16.0) } else { (180.0, 24.0) };
    assert!(bucket <= most, "{bucket} bytes a bucket, jemalloc: {has_jemalloc}");
    let more = bucket - integer;
    assert!(more <= 2.0 * block + 2.0, "{more} bytes more than {integer}, jemalloc: {has_jemalloc}");
}

#[test]
fn a_hold_costs_at_most_180_bytes() {
    let (server, mut client) = Server::start_with_client();
    let fill = |count| {
        // A client of its own, whose buffers go with it.
        let hold = |n| format!("TB.HOLD k 1e6 0 1 {} {}", 3_600_000 + n * 7919 % 10_000, uuid(n));
        send_all(&mut server.connect(), 0..count, hold);
    };
    // The first time, the server makes room for what it keeps.
    fill(10_000);
    client.say("DEL k");
    let empty = settled_memory(&mut client);
    // The list and its table have just doubled before 9,000.
    for count in [1000, 9000] {
        fill(count);
        let said = client.count("tokenbucket", "tokenbucket_bucket_bytes") / i64::from(count);
        let each = (settled_memory(&mut client) - empty) / i64::from(count);
        println!("{:?}: {count} holds of {each} bytes each, {said} by INFO", Engine::under_test());
        assert!(each <= 180, "{each} bytes a hold");
        assert!((each * 7 / 10..=each * 11 / 10).contains(&said), "{said} by INFO, {each} in truth");
        client.say("DEL k");
        // On a busy machine the buffers of the client that is gone may outlive what looks settled.
        wait_until("the memory of the holds comes back", || settled_memory(&mut client) - empty < BUFFERS);
    }
}
