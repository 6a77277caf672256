//! Nothing that a client can send stops the server, blocks it or fills its memory.
//!
//! `HOSTILE_COMMANDS` and `HOSTILE_PAYLOADS` say how many random ones to send (10^6 and 10^5 for a long run), `SEED`
//! which.

use super::info::counters;
use crate::common::calls::{Call, CALLS, COMMANDS};
use crate::common::stored::{buckets, buckets_alive, tells_of_a_crash};
use crate::common::strategies::{damaged, near_bounds};
use crate::common::{array, environment, text, timeout, wait_until, Connection, Random, Server};
use proptest::collection::vec;
use proptest::prelude::{any, prop_oneof, Just, Strategy};
use proptest::sample::{select, Index};
use redis::Value;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{iter, thread};
use tokenbucket_core::bucket::Bucket;
use tokenbucket_core::effect::Effect;
use tokenbucket_core::error::{Error, MAX_QUOTED};
use tokenbucket_core::number::MAX_TOKENS;

const MEGABYTE: usize = 1 << 20;

/// What the server may not have become.
pub fn assert_well(server: &Server, client: &mut Connection) {
    assert_eq!(text(&client.say("PING")), "PONG");
    assert!(!tells_of_a_crash(&server.log()), "{}", server.log());
}

/// An example of each command with `bytes` in place of one argument, or else of one key.
fn examples_with(bytes: &[u8], in_place_of_key: bool) -> Vec<Vec<&[u8]>> {
    let mut examples = Vec::new();
    for call in COMMANDS.iter().filter_map(|command| Call::of(command).next()) {
        let words: Vec<&str> = call.words.split(' ').collect();
        let is_key = |place: &usize| call.keys().contains(&words[*place]);
        for place in (1..words.len()).filter(|place| is_key(place) == in_place_of_key) {
            let mut changed: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
            changed[place] = bytes;
            examples.push(changed);
        }
    }
    examples
}

#[test]
fn any_bytes_are_a_key() {
    let (server, mut client) = Server::start_with_client();
    #[rustfmt::skip]
    let keys: [Vec<u8>; 11] = [
        Vec::new(), b"\0".to_vec(), b"\0\0".to_vec(), b"\r\n".to_vec(), b"*3\r\n$3\r\nDEL\r\n".to_vec(),
        b"%s%n%99999999d".to_vec(), (0..=255).collect(), vec![0xff; 1000], "{\u{1f980}}".as_bytes().to_vec(),
        // With the same beginning, they are two buckets.
        vec![b'k'; MEGABYTE],
        [vec![b'k'; MEGABYTE], b"K".to_vec()].concat(),
    ];
    for (place, key) in keys.iter().enumerate() {
        client.run(&[b"TB.TAKE".as_slice(), key, b"10", b"1/h"]);
        let state = array(client.run(&[b"TB.STATE".as_slice(), key]));
        assert_eq!(text(&state[0]), "9", "{place}");
        let twice = [b"TB.MTAKE".as_slice(), b"2", key, b"10", b"1", b"0", key, b"10", b"1", b"0"];
        let refused = client.try_run(&twice).unwrap_err();
        assert!(refused.starts_with(Error::DuplicateKey.rule()) && is_own(&refused), "{place}: {refused:?}");
        for call in examples_with(key, true) {
            let reply = client.try_run(&call);
            let is_effect = |line: &String| line.starts_with(Error::Effect.rule());
            let is_understood = reply.as_ref().is_ok() || reply.as_ref().is_err_and(is_effect);
            assert!(is_understood, "{} {place}: {reply:?}", call[0].escape_ascii());
        }
    }
    assert_well(&server, &mut client);
}

/// And no error repeats more than a little of what was sent.
#[test]
fn a_number_of_a_megabyte_is_refused_at_once() {
    let (server, mut client) = Server::start_with_client();
    let started = Instant::now();
    // `_` stands for as many of the digit as make a megabyte.
    #[rustfmt::skip]
    let numbers = [
        ("0", "_5"), ("9", "4._"), ("9", "1e-_"), ("9", "_"), ("9", "1e_"), ("1", "_x"), ("\0", "_"), ("9", "1/_s"),
        ("s", "1/s_"), ("/", "1_s"), ("1", "\u{1b}[31m\u{7}_"),
    ];
    for (digit, number) in numbers {
        let number = number.replace('_', &digit.repeat(MEGABYTE));
        for call in examples_with(number.as_bytes(), false) {
            let error = client.try_run(&call).unwrap_err();
            let is_short = error.starts_with("ERR ") && error.len() < 300;
            let repeats = error.contains(&number[..=MAX_QUOTED]);
            assert!(is_short && !repeats && is_own(&error), "{number:.40}: {error:.1000}");
        }
    }
    assert!(started.elapsed() < timeout(), "it took {:?}", started.elapsed());
    assert_well(&server, &mut client);
}

#[test]
fn a_hundred_thousand_arguments_are_counted_and_refused() {
    const MANY: usize = 100_000;
    let (server, mut client) = Server::start_with_client();
    for (command, count) in COMMANDS.iter().flat_map(|command| [(command, MANY), (command, MANY + 1)]) {
        let call = [vec![command.name], vec!["1"; count - 1]].concat();
        assert!(client.try_run(&call).unwrap_err().starts_with("ERR "), "{}", command.name);
    }
    let groups: String = (0..MANY / 4).map(|number| format!(" key:{number} 10 1 1")).collect();
    for numkeys in ["25000", "1024", "18446744073709551615"] {
        let refused = client.refusal(&format!("TB.MTAKE {numkeys}{groups}"));
        assert!(refused.starts_with("ERR numkeys"), "{numkeys}");
    }
    assert_eq!(client.keys(), 0);
    assert_well(&server, &mut client);
}

/// The state of a bucket as a master sends it, which may be none that a bucket can have.
fn effect(level_micro: i64, refilled_at_us: i64, expire_at_ms: Option<i64>) -> Vec<u8> {
    let bucket = Bucket { level_micro, refilled_at_us };
    Effect::Stored { bucket, expire_at_ms, extension: None }.encode().as_ref().to_vec()
}

/// What stands where a number, a rate or now and then a key is expected: sensible, at a bound, or nonsense.
const WORDS: &str = "0 1 2 5 20 0.5 3.7 1e12 1e-7 1/s 100/m 1/250ms 1/h -1 +5 1e13 1e400 9e99999999999999999 inf nan \
    0x1 \u{663} 1/0s 7/y 1//s 1025 1767225600000000 1000000000000000001 1152921504606846977 9223372036854775807 \
    -9223372036854775808 18446744073709551617 list";

/// What else happens to keys. As it is: the errors of the server may repeat what is no text, which this client cannot
/// read.
const OF_THE_SERVER: &str =
    "DEL k;UNLINK k;RENAME k n;COPY k n REPLACE;PERSIST k;PEXPIRE k 5;TYPE k;DUMP k;OBJECT FREQ k;\
    SET k 5;COMMAND GETKEYS TB.MTAKE 2 k 1 1 1 n 1 1 1;SCAN 0 TYPE tb-bucket;DEBUG DIGEST-VALUE k";

/// A command line, from sensible ones to noise.
fn noise(random: &mut Random) -> Vec<Vec<u8>> {
    if random.once_in(20) {
        let call = *random.pick(&OF_THE_SERVER.split(';').collect::<Vec<_>>());
        return call.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    }
    if random.once_in(10) {
        return vec![b"TB.RESTORE".to_vec(), b"k".to_vec(), random.draw(&any_effect())];
    }
    let call = random.pick(&CALLS).words;
    random.draw(&misworded(call, any_word()))
}

/// The words of a call, up to three of them others; now and then one is left out or put in. The command stays.
fn misworded(
    call: &'static str,
    words: impl Strategy<Value = Vec<u8>>,
) -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec((any::<Index>(), words, 0..20u8), 0..=3).prop_map(move |changes| {
        let mut line: Vec<_> = call.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        for (index, word, how) in changes {
            let place = 1 + index.index(line.len());
            match how {
                0 if place < line.len() => drop(line.remove(place)),
                2.. if place < line.len() => line[place] = word,
                _ => line.insert(place, word),
            }
        }
        line
    })
}

fn any_word() -> impl Strategy<Value = Vec<u8>> {
    let words = || select(WORDS.split_whitespace().collect::<Vec<_>>());
    let text = prop_oneof![
        5 => words().prop_map(str::to_owned),
        1 => (any::<u64>(), -30..=30).prop_map(|(number, power)| format!("{number}e{power}")),
        1 => (words(), words()).prop_map(|(count, number)| format!("{count}/{number}ms")),
        1 => Just(String::new()),
    ];
    prop_oneof![7 => text.prop_map(String::into_bytes), 1 => vec(any::<u8>(), 5)]
}

/// Of numbers near what may be a bound, or any; or no effect at all.
fn any_effect() -> impl Strategy<Value = Vec<u8>> {
    let fields = (near_bounds(), near_bounds(), near_bounds());
    let forged = fields.prop_map(|(level, time, expiry)| effect(level, time, Some(expiry)));
    prop_oneof![8 => forged.clone(), 1 => damaged(forged, any::<u8>()), 1 => vec(any::<u8>(), 25)]
}

/// Returns whether an error is one of ours: a printable line.
fn is_own(error: &str) -> bool {
    let is_known = ["ERR ", "WRONGTYPE ", "OOM "].iter().any(|kind| error.starts_with(kind));
    is_known && error.chars().all(|c| (' '..='~').contains(&c))
}

/// A reply of ours is text and numbers, none of which is less than a debt may be.
fn is_sound(reply: &Value) -> bool {
    match reply {
        Value::Array(fields) => fields.iter().all(is_sound),
        Value::Int(number) => *number >= -MAX_TOKENS,
        reply => matches!(reply, Value::BulkString(_) | Value::Okay | Value::Nil),
    }
}

fn is_ours(line: &[Vec<u8>]) -> bool {
    line[0].starts_with(b"TB.") || line[0].starts_with(b"CL.")
}

/// The counter of buckets is that of the keys, and all memory comes back with them.
pub fn assert_nothing_leaked(client: &mut Connection, memory_before: i64) {
    client.say("CONFIG SET maxmemory 0");
    wait_until("the buckets that are counted are those that are there", || {
        // Removes keys that have expired. They count until they are removed, and the server itself takes its time.
        client.run(&["SCAN", "0", "COUNT", "1000000"]);
        buckets_alive(client) == buckets(client).len() as i64
    });
    client.say("FLUSHALL");
    wait_until("the buckets are freed", || buckets_alive(client) == 0);
    wait_until("the memory comes back", || client.used_memory() - memory_before < MEGABYTE as i64);
}

/// Sends random lines on a connection of its own until all senders together have `sent` so many, and looks at each reply.
fn send_noise(server: &Server, sent: &AtomicU64, count: u64, salt: u64) {
    let mut client = server.connect();
    let mut random = Random::new(salt);
    let numbers = iter::repeat_with(|| sent.fetch_add(1, Ordering::Relaxed));
    for number in numbers.take_while(|number| *number < count) {
        if number % 2000 == 0 {
            let limit = if random.once_in(4) { "1" } else { "0" };
            client.run(&["CONFIG", "SET", "maxmemory", limit]);
            let _ = client.try_run(&["RPUSH", "list", "x"]);
        }
        let line = noise(&mut random);
        let reply = client.try_run(&line);
        let shown = || line.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
        let is_fine = reply.as_ref().map_or_else(|error| is_own(error), is_sound);
        assert!(is_fine || !is_ours(&line), "{}: {reply:?}\n{}", shown(), server.log());
    }
}

/// Some of the calls wait in the server, up to a second.
const SENDERS: u64 = 16;

fn send_noise_from_many(server: &Server, count: u64, salt: u64) {
    let sent = &AtomicU64::new(0);
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            scope.spawn(move || send_noise(server, sent, count, salt + sender));
        }
    });
}

#[test]
fn random_command_lines_leave_the_server_alive_and_its_memory_flat() {
    let (server, mut client) = Server::start_with_client();
    let count = environment("HOSTILE_COMMANDS", 20_000);
    // Afterwards the server has the buffers that it wants.
    send_noise_from_many(&server, count / 4, 1);
    client.say("FLUSHALL");
    let memory_before = client.used_memory();
    send_noise_from_many(&server, count - count / 4, 1 + SENDERS);
    let [allowed, _denied, errors, ..] = counters(&mut client).map(i64::unsigned_abs);
    assert!(allowed > count / 20 && errors > count / 20, "{allowed} allowed, {errors} errors: too one-sided");
    assert_nothing_leaked(&mut client, memory_before);
    assert_well(&server, &mut client);
}
