//! Nothing that a client can send stops the server, blocks it or fills its memory.
//!
//! `HOSTILE_COMMANDS` and `HOSTILE_PAYLOADS` say how many random ones to send (10^6 and 10^5 for a long run), `SEED`
//! which.

use crate::common::calls::{Outcome, CALLS, COMMANDS};
use crate::common::stored::{buckets_alive, tells_of_a_crash};
use crate::common::{array, decision, integer, text, wait_until, Connection, Random, Server};
use redis::Value;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokenbucket::error::Error;

const MEGABYTE: usize = 1 << 20;

pub fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

/// What the server may not have become.
pub fn assert_well(server: &Server, client: &mut Connection) {
    assert_eq!(text(&client.say("PING")), "PONG");
    assert!(!tells_of_a_crash(&server.log()), "{}", server.log());
}

/// An example of each command with `bytes` in place of one argument, or else of the key.
fn examples_with(bytes: &[u8], in_place_of_key: bool) -> impl Iterator<Item = Vec<&[u8]>> {
    CALLS.iter().filter(|call| matches!(call.outcome, Outcome::Took(_) | Outcome::Gave)).flat_map(
        move |call| {
            let keys = call.keys();
            let words: Vec<&[u8]> = call.words.split(' ').map(str::as_bytes).collect();
            let is_key = move |word: &[u8]| keys.iter().any(|key| key.as_bytes() == word);
            let places: Vec<_> =
                (1..words.len()).filter(|place| is_key(words[*place]) == in_place_of_key).collect();
            places.into_iter().map(move |place| {
                let mut changed = words.clone();
                changed[place] = bytes;
                changed
            })
        },
    )
}

#[test]
fn any_bytes_are_a_key() {
    let server = Server::start();
    let mut client = server.connect();
    let keys: [Vec<u8>; 9] = [
        Vec::new(),
        b"\0".to_vec(),
        b"\0\0".to_vec(),
        b"\r\n".to_vec(),
        b"*3\r\n$3\r\nDEL\r\n".to_vec(),
        b"%s%n%99999999d".to_vec(),
        (0..=255).collect(),
        vec![0xff; 1000],
        "{\u{1f980}}".as_bytes().to_vec(),
    ];
    for (place, key) in keys.iter().enumerate() {
        for call in examples_with(key, true) {
            client.say("DEL k n");
            assert!(client.try_run(&call).is_ok(), "{call:?}");
            assert_eq!(
                client.run(&[b"DEL".as_slice(), key]),
                Value::Int(i64::from(call[0] != b"TB.GIVE")),
                "{call:?}"
            );
        }
        client.run(&[b"TB.TAKE".as_slice(), key, b"10", b"1/h"]);
        let state = array(client.run(&[b"TB.STATE".as_slice(), key]));
        assert_eq!(text(&state[0]), "9", "{key:?}");
        assert_eq!(text(&client.say("DBSIZE")), (place + 1).to_string());
    }
    assert_well(&server, &mut client);
}

#[test]
fn a_key_of_a_megabyte_is_a_key() {
    let server = Server::start();
    let mut client = server.connect();
    let long = vec![b'k'; MEGABYTE];
    let mut other = long.clone();
    other[MEGABYTE - 1] = b'K';
    let take = |client: &mut Connection, key: &[u8], cost: &[u8]| {
        decision(&client.run(&[b"TB.TAKE".as_slice(), key, b"10", b"1/h", cost]))
    };
    let taken = [(&long, b"10".as_slice()), (&long, b"1"), (&other, b"10")]
        .map(|(key, cost)| take(&mut client, key, cost).allowed);
    assert_eq!(taken, [1, 0, 1], "a key with the same beginning is another bucket");
    let twice = [b"TB.MTAKE".as_slice(), b"2", &long, b"10", b"1", b"0", &long, b"10", b"1", b"0"];
    assert_eq!(client.try_run(&twice).unwrap_err(), "ERR key must not be given twice in one call");
    assert_well(&server, &mut client);
}

#[test]
fn a_number_of_a_megabyte_is_refused_at_once() {
    let server = Server::start();
    let mut client = server.connect();
    let digits =
        |before: &str, digit: &str, behind: &str| format!("{before}{}{behind}", digit.repeat(MEGABYTE));
    let started = Instant::now();
    for number in [
        digits("", "0", "5"),
        digits("4.", "9", ""),
        digits("1e-", "9", ""),
        digits("", "9", ""),
        digits("1e", "9", ""),
        digits("", "1", "x"),
        digits("", "\0", ""),
        digits("1/", "9", "s"),
        digits("1/s", "s", ""),
        digits("1", "/", "s"),
    ] {
        for call in examples_with(number.as_bytes(), false) {
            let error = client.try_run(&call).unwrap_err();
            assert!(error.starts_with("ERR "), "{number:.40}: {error}");
        }
    }
    assert!(started.elapsed() < crate::common::PATIENCE, "it took {:?}", started.elapsed());
    assert_well(&server, &mut client);
}

#[test]
fn a_hundred_thousand_arguments_are_counted_and_refused() {
    const MANY: usize = 100_000;
    let server = Server::start();
    let mut client = server.connect();
    for command in COMMANDS {
        for count in [MANY, MANY + 1] {
            let mut call = vec![command.name];
            call.resize(count, "1");
            assert!(client.try_run(&call).unwrap_err().starts_with("ERR "), "{}", command.name);
        }
    }
    let keys: Vec<_> = (0..MANY / 4).map(|number| format!("key:{number}")).collect();
    for numkeys in ["25000", "1024", "18446744073709551615"] {
        let mut call = vec!["TB.MTAKE", numkeys];
        call.extend(keys.iter().flat_map(|key| [key.as_str(), "10", "1", "1"]));
        assert!(client.try_run(&call).unwrap_err().starts_with("ERR numkeys"), "{numkeys}");
    }
    assert_eq!(client.keys(), 0);
    assert_well(&server, &mut client);
}

/// A replicated state as the module sends it: version 1, level in micro-tokens, time in Unix microseconds, expiry
/// in Unix milliseconds.
fn effect(version: u8, level_micro: i64, refilled_at_us: i64, expire_at_ms: i64) -> Vec<u8> {
    let fields = [level_micro, refilled_at_us, expire_at_ms].map(i64::to_le_bytes).concat();
    [vec![version], fields].concat()
}

/// Which states there can be: `tests/requests.rs`.
#[test]
fn a_hundred_thousand_arguments_of_restore_are_fifty_thousand_buckets() {
    const MANY: usize = 50_000;
    let server = Server::start();
    let mut client = server.connect();
    let keys: Vec<_> = (0..MANY).map(|number| format!("key:{number}").into_bytes()).collect();
    let good = effect(1, 5_000_000, 1_767_225_600_000_000, -1);
    let mut call: Vec<&[u8]> = vec![b"TB.RESTORE"];
    call.extend(keys.iter().flat_map(|key| [key.as_slice(), &good]));
    for bad in [effect(1, i64::MAX, 0, -1), effect(2, 0, 0, -1), good[..24].to_vec(), Vec::new()] {
        let mut spoiled = call.clone();
        *spoiled.last_mut().unwrap() = &bad;
        assert_eq!(client.try_run(&spoiled).unwrap_err(), Error::State.to_string());
        assert_eq!(client.keys(), 0, "all of them, or none");
    }
    assert_eq!(text(&client.run(&call)), "OK");
    assert_eq!(client.keys(), MANY as i64);
    assert_well(&server, &mut client);
}

/// Command lines, from sensible ones to noise.
struct Noise {
    random: Random,
    has_jemalloc: bool,
}

type Line = Vec<Vec<u8>>;

impl Noise {
    fn line(&mut self) -> Line {
        let mut line = match self.random.below(20) {
            0 => self.of_the_server(),
            1 => self.garbage(),
            2 | 3 => self.multi_take(),
            4 | 5 => self.restore(),
            _ => self.example(),
        };
        if is_ours(&line) {
            // Not so the server's, whose errors may repeat what is no text, which this client cannot read.
            for _ in 0..self.random.below(4).saturating_sub(1) {
                self.spoil(&mut line);
            }
        }
        line
    }

    /// An example of any command, with other keys and now and then other numbers and rates.
    fn example(&mut self) -> Line {
        let call = self.random.pick(CALLS);
        let keys = call.keys();
        let words = call.words.split(' ').enumerate();
        let word = |(place, word): (usize, &str)| {
            if keys.contains(&word) {
                self.key()
            } else if place == 0 || !self.random.once_in(3) {
                word.as_bytes().to_vec()
            } else {
                self.rate()
            }
        };
        words.map(word).collect()
    }

    fn multi_take(&mut self) -> Line {
        let most = if self.random.once_in(50) { 1100 } else { 8 };
        let buckets = 1 + self.random.below(most);
        let mut line = vec![b"TB.MTAKE".to_vec(), buckets.to_string().into_bytes()];
        for bucket in 0..buckets {
            let key = if buckets > 8 { format!("many:{bucket}").into_bytes() } else { self.key() };
            line.extend([key, self.number(), self.rate(), self.number()]);
        }
        line
    }

    fn restore(&mut self) -> Line {
        let mut line = vec![b"TB.RESTORE".to_vec()];
        for _ in 0..=self.random.below(3) {
            let state = self.effect();
            line.extend([self.key(), state]);
        }
        line
    }

    fn effect(&mut self) -> Vec<u8> {
        if self.random.once_in(4) {
            let len = usize::try_from(self.random.below(60)).unwrap();
            return self.random.bytes(len);
        }
        let version = if self.random.once_in(10) { 2 } else { 1 };
        effect(version, self.integer(), self.integer(), self.integer())
    }

    /// An integer near what may be a bound, or any.
    fn integer(&mut self) -> i64 {
        let trillion_micro = 1_000_000_000_000_000_000;
        let now_us = 1_767_225_600_000_000;
        let near =
            [0, trillion_micro, -trillion_micro, 1 << 60, 1 << 53, now_us, now_us / 1000, i64::MAX, i64::MIN];
        match self.random.below(3) {
            0 => i64::from_le_bytes(self.random.next().to_le_bytes()),
            1 => self.random.pick(&near).saturating_add(self.random.between(-2, 2)),
            _ => self.random.between(0, 4_000_000_000_000_000),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        match self.random.below(40) {
            0 => b"string".to_vec(),
            1 => b"list".to_vec(),
            2 => Vec::new(),
            3 => self.random.bytes(3),
            _ => format!("key:{}", self.random.below(50)).into_bytes(),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        let odd = "|-1|inf|nan|1e400|0x1|1e-7|1e12|1e13|+5|0.5|9e99999999999999999|\u{663}";
        let odd: Vec<_> = odd.split('|').collect();
        match self.random.below(10) {
            0 => self.random.pick(&odd).as_bytes().to_vec(),
            1 => format!("{}e{}", self.random.next(), self.random.between(-30, 30)).into_bytes(),
            2 => self.integer().to_string().into_bytes(),
            3 => b"0".to_vec(),
            _ => self.random.between(1, 20).to_string().into_bytes(),
        }
    }

    fn rate(&mut self) -> Vec<u8> {
        let units = ["ms", "s", "m", "h", "d", "", "y"];
        let [count, period] = [self.number(), self.number()];
        match self.random.below(4) {
            0 => [count, b"/".to_vec(), period, self.random.pick(&units).as_bytes().to_vec()].concat(),
            1 => self.number(),
            _ => self.random.pick(&["1", "5", "100/m", "1/250ms", "3.7", "1/h", "1e12"]).as_bytes().to_vec(),
        }
    }

    /// What else happens to keys.
    fn of_the_server(&mut self) -> Line {
        // Redis 8.6 and 8.10 read the wrong address for any module's key that has an expiry. With jemalloc the
        // answer is right all the same; with another allocator they may end.
        let usage = if self.has_jemalloc { "MEMORY USAGE {one}" } else { "OBJECT ENCODING {one}" };
        let lines = [
            "DEL {one}",
            "UNLINK {one}",
            "RENAME {one} {other}",
            "COPY {one} {other} REPLACE",
            "PERSIST {one}",
            "PEXPIRE {one} 5",
            "TYPE {one}",
            "DUMP {one}",
            usage,
            "OBJECT FREQ {one}",
            "SET {one} 5",
            "COMMAND GETKEYS TB.MTAKE 2 {one} 1 1 1 {other} 1 1 1",
            "SCAN 0 TYPE tb-bucket",
            "DEBUG DIGEST-VALUE {one}",
        ];
        let line = *self.random.pick(&lines);
        let mut key = || format!("key:{}", self.random.below(50));
        let line = line.replace("{one}", &key()).replace("{other}", &key());
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    fn garbage(&mut self) -> Line {
        let mut line = vec![self.random.pick(COMMANDS).name.as_bytes().to_vec()];
        for _ in 0..self.random.below(12) {
            let len = usize::try_from(self.random.below(20)).unwrap();
            line.push(self.random.bytes(len));
        }
        line
    }

    /// Leaves out, repeats, swaps or replaces an argument.
    fn spoil(&mut self, line: &mut Line) {
        if line.len() < 2 {
            return;
        }
        let mut place = || 1 + usize::try_from(self.random.below(line.len() as u64 - 1)).unwrap();
        let (one, other) = (place(), place());
        match self.random.below(4) {
            0 => drop(line.remove(one)),
            1 => line.insert(one, line[other].clone()),
            2 => line.swap(one, other),
            _ => line[one] = if self.random.once_in(2) { self.number() } else { self.random.bytes(5) },
        }
    }
}

/// Sends lines in one go, and returns the reply of each.
fn exchange(server: &Server, client: &mut Connection, lines: &[Line]) -> Vec<Value> {
    let mut packed = Vec::new();
    for line in lines {
        let mut command = redis::Cmd::new();
        for word in line {
            command.arg(word.as_slice());
        }
        packed.extend(command.get_packed_command());
    }
    let connection = client.inner();
    connection.send_packed_command(&packed).unwrap();
    let receive = |line: &Line| {
        connection.recv_response().unwrap_or_else(|gone| panic!("{}: {gone}\n{}", shown(line), server.log()))
    };
    lines.iter().map(receive).collect()
}

fn shown(line: &Line) -> String {
    line.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// A reply of ours is an error of one printable line, or in bounds.
fn assert_sound(line: &Line, reply: &Value) {
    if !is_ours(line) {
        return;
    }
    let sound = match reply {
        Value::ServerError(error) => {
            let printable = error.details().unwrap_or_default().chars().all(|c| (' '..='~').contains(&c));
            printable && ["ERR", "WRONGTYPE", "OOM"].contains(&error.code())
        }
        Value::Array(fields) => fields_are_sound(fields),
        Value::Okay | Value::Nil => true,
        _ => false,
    };
    assert!(sound, "{}: {reply:?}", shown(line));
}

fn fields_are_sound(fields: &[Value]) -> bool {
    const TRILLION: i64 = 1_000_000_000_000;
    match fields {
        // A decision, of one bucket or of several.
        [Value::Int(allowed), Value::Int(remaining), Value::Int(retry_ms), Value::Int(reset_ms)]
        | [Value::Int(allowed), Value::Int(remaining), Value::Int(retry_ms), Value::Int(reset_ms), Value::Array(_)] =>
        {
            let amounts = *allowed >= 0 && (-TRILLION..=TRILLION).contains(remaining);
            amounts && *retry_ms >= -1 && *reset_ms >= 0
        }
        // In the words of redis-cell.
        [Value::Int(limited), Value::Int(limit), Value::Int(remaining), Value::Int(retry_s), Value::Int(reset_s)] =>
        {
            let amounts = (0..=TRILLION).contains(limit) && (0..=*limit).contains(remaining);
            (0..=1).contains(limited) && amounts && *retry_s >= -1 && *reset_s >= 0
        }
        // What is stored.
        [Value::BulkString(_), Value::Int(refilled_at_us)] => *refilled_at_us >= 0,
        // What is held: nothing, or an id, an amount and a time each.
        holds => holds.iter().all(|hold| {
            matches!(hold, Value::Array(hold) if matches!(hold[..], [Value::BulkString(_), Value::BulkString(_), Value::Int(1..)]))
        }),
    }
}

fn is_ours(line: &Line) -> bool {
    line[0].len() > 3
        && ["TB.", "CL."].iter().any(|prefix| line[0][..3].eq_ignore_ascii_case(prefix.as_bytes()))
}

/// How many keys hold a bucket, asked of the keys themselves.
fn count_buckets(client: &mut Connection) -> i64 {
    const COUNT: &str = "
        local count = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
            if redis.call('TYPE', key).ok == 'tb-bucket' then count = count + 1 end
        end
        return count";
    integer(&client.run(&["EVAL", COUNT, "0"]))
}

/// The counter of buckets is that of the keys, and all memory comes back with them.
pub fn assert_nothing_leaked(client: &mut Connection, memory_before: i64) {
    client.say("CONFIG SET maxmemory 0");
    wait_until("the buckets that are counted are those that are there", || {
        buckets_alive(client) == count_buckets(client)
    });
    client.say("FLUSHALL");
    wait_until("the buckets are freed", || buckets_alive(client) == 0);
    wait_until("the memory comes back", || {
        client.used_memory() - memory_before < i64::try_from(MEGABYTE).unwrap()
    });
}

#[test]
fn random_command_lines_leave_the_server_alive_and_its_memory_flat() {
    const AT_ONCE: u64 = 100;
    let server = Server::start();
    let mut client = server.connect();
    let has_jemalloc = client.info("memory", "mem_allocator").starts_with("jemalloc");
    let mut noise = Noise { random: Random::new(1), has_jemalloc };
    let count = environment("HOSTILE_COMMANDS", 20_000);
    let mut memory_before = 0;
    for round in 0..count / AT_ONCE {
        if round == count / AT_ONCE / 4 {
            // By now the server has the buffers that it wants.
            client.say("FLUSHALL");
            memory_before = client.used_memory();
        }
        if round % 20 == 0 {
            let limit = if noise.random.once_in(4) { "1" } else { "0" };
            client.run(&["CONFIG", "SET", "maxmemory", limit]);
            let _ = client.try_run(&["RPUSH", "list", "x"]);
        }
        let lines: Vec<Line> = (0..AT_ONCE).map(|_| noise.line()).collect();
        for (line, reply) in lines.iter().zip(exchange(&server, &mut client, &lines)) {
            assert_sound(line, &reply);
        }
    }
    let [allowed, errors] = ["tokenbucket_decisions_allowed", "tokenbucket_errors"]
        .map(|field| client.count("tokenbucket", field).unsigned_abs());
    assert!(allowed > count / 20 && errors > count / 20, "{allowed} allowed, {errors} errors: too one-sided");
    assert_nothing_leaked(&mut client, memory_before);
    assert_well(&server, &mut client);
}

#[test]
fn a_client_that_goes_away_in_the_middle_of_a_call_harms_nobody() {
    let server = Server::start();
    for half in
        ["*4\r\n$7\r\nTB.TAKE\r\n$1\r\nk\r\n$2\r\n1", "*1000000\r\n$8\r\nTB.MTAKE\r\n", "TB.TAKE k 10"]
    {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(half.as_bytes()).unwrap();
    }
    let mut client = server.connect();
    assert_eq!(client.state("k"), None);
    assert_well(&server, &mut client);
}
