//! Nothing that a client can send stops the server, blocks it or fills its memory.
//!
//! `HOSTILE_COMMANDS` and `HOSTILE_PAYLOADS` say how many random ones to send (10^6 and 10^5 for a long run), `SEED`
//! which.

mod common;

use common::exact::{number::exact, whole};
use common::{decision, text, Connection, Engine, Random, Server};
use redis::Value;
use std::time::{Duration, Instant};

const MEGABYTE: usize = 1 << 20;

/// The commands that decide on one bucket, with good arguments behind its key.
const ONE_BUCKET: [(&str, &[&str]); 6] = [
    ("TB.TAKE", &["10", "1", "1"]),
    ("TB.PEEK", &["10", "1", "1"]),
    ("TB.TAKEUPTO", &["10", "1", "1"]),
    ("TB.RESERVE", &["10", "1", "1", "0"]),
    ("TB.CHARGE", &["10", "1", "1"]),
    ("TB.GIVE", &["10", "1", "1"]),
];

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

/// What the server may not have become.
fn assert_well(server: &Server, client: &mut Connection) {
    assert_eq!(text(&client.say("PING")), "PONG");
    let log = server.log();
    for word in ["REDIS BUG REPORT", "VALKEY BUG REPORT", "crashed", "panic", "Guru Meditation"] {
        assert!(!log.contains(word), "the log speaks of '{word}':\n{log}");
    }
}

fn used_memory(client: &mut Connection) -> i64 {
    client.info("memory", "used_memory").parse().unwrap()
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
        for (command, arguments) in ONE_BUCKET {
            let words = arguments.iter().map(|word| word.as_bytes());
            let call: Vec<_> = [command.as_bytes(), key].into_iter().chain(words).collect();
            assert_eq!(decision(&client.run(&call)).allowed, 1, "{command} {key:?}");
        }
        // Of ten: take, takeupto, reserve and charge took four, give brought one.
        let Value::Array(state) = client.run(&[b"TB.STATE".as_slice(), key]) else {
            panic!("no state: {key:?}")
        };
        assert!(text(&state[0]).starts_with('7'), "{key:?}: {state:?}");
        assert_eq!(text(&client.say("DBSIZE")), (place + 1).to_string());
    }
    let count = keys.len().to_string();
    let mut call: Vec<&[u8]> = vec![b"TB.MTAKE", count.as_bytes()];
    for key in &keys {
        call.extend([key.as_slice(), b"10", b"1", b"2"]);
    }
    let reply = client.run(&call);
    assert_eq!(common::multi_decision(&reply).0.allowed, 1);
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
    assert_eq!(take(&mut client, &long, b"10").allowed, 1);
    assert_eq!(take(&mut client, &long, b"1").allowed, 0);
    assert_eq!(
        take(&mut client, &other, b"10").allowed,
        1,
        "a key with the same beginning is another bucket"
    );
    let twice = [b"TB.MTAKE".as_slice(), b"2", &long, b"10", b"1", b"0", &long, b"10", b"1", b"0"];
    assert_eq!(client.try_run(&twice).unwrap_err(), "ERR key must not be given twice in one call");
    assert_well(&server, &mut client);
}

#[test]
fn a_number_of_a_megabyte_is_read_or_refused_at_once() {
    let server = Server::start();
    let mut client = server.connect();
    let digits =
        |before: &str, digit: &str, behind: &str| format!("{before}{}{behind}", digit.repeat(MEGABYTE));
    let started = Instant::now();
    // Leading zeros, digits without weight and exponents without end say something, if not much.
    for (cost, remaining) in [
        (digits("", "0", "5"), 5),
        (digits("5.", "0", ""), 5),
        (digits("4.", "9", ""), 5),
        (digits("0.", "0", "1"), 9),
        (digits("1e-", "9", ""), 9),
        (digits("5e", "0", ""), 5),
        (digits("0e", "9", ""), 10),
    ] {
        client.say("DEL k");
        let taken = decision(&client.run(&["TB.TAKE", "k", "10", "1/d", &cost]));
        assert_eq!((taken.allowed, taken.remaining), (1, remaining), "{cost:.40}");
    }
    for number in [
        digits("", "9", ""),
        digits("1e", "9", ""),
        digits("", "1", "x"),
        digits("-", "1", ""),
        digits("", ".", ""),
        digits("1", "e", "1"),
        digits("1e", "-", "1"),
        digits("", "\0", ""),
        digits("1/", "9", "s"),
        digits("1/s", "s", ""),
        digits("1", "/", "s"),
    ] {
        for (command, arguments) in ONE_BUCKET {
            for place in 0..arguments.len() {
                let mut bad = arguments.to_vec();
                bad[place] = &number;
                let call: Vec<_> = [command, "k"].into_iter().chain(bad).collect();
                let refused = client.try_run(&call);
                assert!(
                    refused.is_err_and(|error| error.starts_with("ERR ")),
                    "{command} {place} {number:.40}"
                );
            }
        }
        let refused = client.try_run(&["TB.MTAKE", &number, "k", "10", "1", "1"]);
        assert!(refused.is_err_and(|error| error.starts_with("ERR numkeys")), "{number:.40}");
    }
    assert!(started.elapsed() < common::PATIENCE, "200 megabytes took {:?}", started.elapsed());
    assert_well(&server, &mut client);
}

#[test]
fn a_hundred_thousand_arguments_are_counted_and_refused() {
    const MANY: usize = 100_000;
    let server = Server::start();
    let mut client = server.connect();
    for (command, arguments) in ONE_BUCKET {
        let mut call = vec![command, "k"];
        call.extend(arguments);
        call.resize(MANY, "1");
        let refused = client.try_run(&call).unwrap_err();
        assert!(refused.starts_with("ERR wrong number of arguments"), "{command}: {refused}");
    }
    let buckets = MANY / 4;
    let keys: Vec<_> = (0..buckets).map(|number| format!("key:{number}")).collect();
    for (numkeys, error) in [
        (buckets.to_string(), "ERR numkeys must be a whole number from 1 to 1024"),
        ("1024".to_owned(), "ERR numkeys must match"),
        ("18446744073709551615".to_owned(), "ERR numkeys must be a whole number from 1 to 1024"),
    ] {
        let mut call = vec!["TB.MTAKE", &numkeys];
        call.extend(keys.iter().flat_map(|key| [key.as_str(), "10", "1", "1"]));
        let refused = client.try_run(&call).unwrap_err();
        assert!(refused.starts_with(error), "{numkeys}: {refused}");
    }
    let mut call = vec!["TB.RESTORE"];
    call.resize(MANY + 1, "x");
    assert!(client.try_run(&call).unwrap_err().starts_with("ERR state"));
    assert_eq!(text(&client.say("DBSIZE")), "0");
    assert_well(&server, &mut client);
}

/// A replicated state as the module sends it: version 1, level in micro-tokens, time in Unix microseconds, expiry
/// in Unix milliseconds.
fn effect(version: u8, level_micro: i64, refilled_at_us: i64, expire_at_ms: i64) -> Vec<u8> {
    let fields = [level_micro, refilled_at_us, expire_at_ms].map(i64::to_le_bytes).concat();
    [vec![version], fields].concat()
}

#[test]
fn a_replicated_state_whose_fields_are_out_of_bounds_is_refused() {
    const TRILLION_MICRO: i64 = 1_000_000_000_000_000_000;
    let server = Server::start();
    let mut client = server.connect();
    let mut restore = |state: &[u8]| client.try_run(&[b"TB.RESTORE".as_slice(), b"k", state]);
    let far_ms = 4_000_000_000_000;
    for (level, time, expiry) in
        [(0, 0, -1), (TRILLION_MICRO, 1 << 60, 1 << 53), (-TRILLION_MICRO, 1_767_225_600_000_000, far_ms)]
    {
        assert!(restore(&effect(1, level, time, expiry)).is_ok(), "{level} {time} {expiry}");
    }
    let good = effect(1, 5_000_000, 1_767_225_600_000_000, far_ms);
    assert!(restore(&good).is_ok());
    let mut refused = vec![Vec::new(), good[..24].to_vec(), [good.as_slice(), b"\0"].concat()];
    refused.extend([0, 2, 255].map(|version| effect(version, 5_000_000, 1, far_ms)));
    refused.extend(
        [TRILLION_MICRO + 1, -TRILLION_MICRO - 1, i64::MAX, i64::MIN].map(|level| effect(1, level, 1, -1)),
    );
    refused.extend([-1, (1 << 60) + 1, i64::MAX, i64::MIN].map(|time| effect(1, 0, time, -1)));
    refused.extend([-2, (1 << 53) + 1, i64::MAX, i64::MIN].map(|expiry| effect(1, 0, 1, expiry)));
    for state in refused {
        let error = restore(&state).expect_err("it was taken");
        assert_eq!(
            error,
            "ERR state must be a bucket state as this module replicates it",
            "{}",
            state.escape_ascii()
        );
    }
    assert_eq!(client.state("k").unwrap().0, "5");
    assert_well(&server, &mut client);
}

#[test]
fn a_hundred_thousand_arguments_of_restore_are_fifty_thousand_buckets() {
    const MANY: usize = 50_000;
    let server = Server::start();
    let mut client = server.connect();
    let keys: Vec<_> = (0..MANY).map(|number| format!("key:{number}").into_bytes()).collect();
    let good = effect(1, 5_000_000, 1_767_225_600_000_000, -1);
    let mut call: Vec<&[u8]> = vec![b"TB.RESTORE"];
    call.extend(keys.iter().flat_map(|key| [key.as_slice(), &good]));
    let bad = effect(1, i64::MAX, 0, -1);
    let mut spoiled = call.clone();
    *spoiled.last_mut().unwrap() = &bad;
    let refused = client.try_run(&spoiled).unwrap_err();
    assert_eq!(refused, "ERR state must be a bucket state as this module replicates it");
    assert_eq!(text(&client.say("DBSIZE")), "0", "all of them, or none");
    assert_eq!(text(&client.run(&call)), "OK");
    assert_eq!(text(&client.say("DBSIZE")), MANY.to_string());
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
            2..=4 => self.multi_take(),
            5 | 6 => self.restore(),
            7 | 8 => self.throttle(),
            _ => self.one_bucket(),
        };
        if is_ours(&line) {
            // Not so the server's, whose errors may repeat what is no text, which this client cannot read.
            for _ in 0..self.random.below(4).saturating_sub(1) {
                self.spoil(&mut line);
            }
        }
        line
    }

    fn one_bucket(&mut self) -> Line {
        let commands = [
            "TB.TAKE",
            "TB.PEEK",
            "TB.TAKEUPTO",
            "TB.RESERVE",
            "TB.CHARGE",
            "TB.GIVE",
            "TB.STATE",
            "tb.tAkE",
        ];
        let command = *self.random.pick(&commands);
        let mut line = vec![command.as_bytes().to_vec(), self.key()];
        if command != "TB.STATE" {
            line.extend([self.number(), self.rate(), self.number()]);
        }
        if command == "TB.RESERVE" {
            line.push(self.number());
        }
        line
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

    fn throttle(&mut self) -> Line {
        let mut line = vec![b"CL.THROTTLE".to_vec(), self.key()];
        line.extend([self.number(), self.number(), self.number(), self.number()]);
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
        let odd = [
            "",
            "-1",
            "inf",
            "nan",
            "1e400",
            "0x1",
            "1e-7",
            "1e12",
            "1e13",
            "+5",
            "0.5",
            "9e99999999999999999",
            "٣",
        ];
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
        let mut key = || format!("key:{}", self.random.below(50)).into_bytes();
        let (one, other) = (key(), key());
        let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
        match self.random.below(14) {
            0 => words(&[b"DEL", &one]),
            1 => words(&[b"UNLINK", &one]),
            2 => words(&[b"RENAME", &one, &other]),
            3 => words(&[b"COPY", &one, &other, b"REPLACE"]),
            4 => words(&[b"PERSIST", &one]),
            5 => words(&[b"PEXPIRE", &one, b"5"]),
            6 => words(&[b"TYPE", &one]),
            7 => words(&[b"DUMP", &one]),
            // Redis 8.6 and 8.10 read the wrong address for any module's key that has an expiry. With jemalloc
            // the answer is right all the same; with another allocator they may end.
            8 if self.has_jemalloc => words(&[b"MEMORY", b"USAGE", &one]),
            8 => words(&[b"OBJECT", b"ENCODING", &one]),
            9 => words(&[b"OBJECT", b"FREQ", &one]),
            10 => words(&[b"SET", &one, b"5"]),
            11 => words(&[
                b"COMMAND",
                b"GETKEYS",
                b"TB.MTAKE",
                b"2",
                &one,
                b"1",
                b"1",
                b"1",
                &other,
                b"1",
                b"1",
                b"1",
            ]),
            12 => words(&[b"SCAN", b"0", b"TYPE", b"tb-bucket"]),
            _ => words(&[b"DEBUG", b"DIGEST-VALUE", &one]),
        }
    }

    fn garbage(&mut self) -> Line {
        let commands = ["TB.TAKE", "TB.MTAKE", "TB.RESTORE", "TB.STATE", "TB.RESERVE", "CL.THROTTLE"];
        let mut line = vec![self.random.pick(&commands).as_bytes().to_vec()];
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
        _ => false,
    }
}

fn is_ours(line: &Line) -> bool {
    line[0].len() > 3
        && ["TB.", "CL."].iter().any(|prefix| line[0][..3].eq_ignore_ascii_case(prefix.as_bytes()))
}

/// How many keys hold a bucket, asked of the keys themselves.
fn count_buckets(client: &mut Connection) -> usize {
    let Value::Array(keys) = client.say("KEYS *") else { panic!("no keys") };
    let mut is_bucket = |key: &Value| {
        let Value::BulkString(key) = key else { panic!("no key: {key:?}") };
        text(&client.run(&[b"TYPE".as_slice(), key])) == "tb-bucket"
    };
    keys.iter().filter(|key| is_bucket(key)).count()
}

/// The counter of buckets is that of the keys, and all memory comes back with them.
fn assert_nothing_leaked(client: &mut Connection, memory_before: i64) {
    client.say("CONFIG SET maxmemory 0");
    common::wait_until("the buckets that are counted are those that are there", || {
        let counted: usize = client.info("tokenbucket", "tokenbucket_buckets").parse().unwrap();
        counted == count_buckets(client)
    });
    client.say("FLUSHALL");
    common::wait_until("the buckets are freed", || client.info("tokenbucket", "tokenbucket_buckets") == "0");
    let mut growth = 0;
    common::wait_until("the memory comes back", || {
        growth = used_memory(client) - memory_before;
        growth < i64::try_from(MEGABYTE).unwrap()
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
            memory_before = used_memory(&mut client);
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
    let (allowed, errors) = (
        client.info("tokenbucket", "tokenbucket_decisions_allowed"),
        client.info("tokenbucket", "tokenbucket_errors"),
    );
    let [allowed, errors] = [allowed, errors].map(|number| number.parse::<u64>().unwrap());
    assert!(allowed > count / 40 && errors > count / 20, "{allowed} allowed, {errors} errors: too one-sided");
    assert_nothing_leaked(&mut client, memory_before);
    assert_well(&server, &mut client);
}

/// The checksum of a DUMP: CRC-64 with the polynomial of Jones, reflected, as servers use it.
fn crc64(bytes: &[u8]) -> u64 {
    let step = |crc: u64| if crc & 1 == 1 { crc >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { crc >> 1 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| step(crc)))
}

/// A DUMP taken apart: the type of the value and the module's name, what the module wrote, and the file version.
struct Dump {
    head: Vec<u8>,
    content: Vec<u8>,
    version: [u8; 2],
}

impl Dump {
    /// One byte says "a module's value", one that 8 bytes with its name and encoding version follow.
    const HEAD: usize = 10;
    const CHECKSUM: usize = 8;

    fn of(client: &mut Connection, key: &str) -> Self {
        let Value::BulkString(bytes) = client.say(&format!("DUMP {key}")) else { panic!("no dump") };
        let (body, checksum) = bytes.split_at(bytes.len() - Self::CHECKSUM);
        assert_eq!(crc64(body).to_le_bytes(), checksum);
        let (head, rest) = body.split_at(Self::HEAD);
        let (content, version) = rest.split_at(rest.len() - 2);
        Self { head: head.to_vec(), content: content.to_vec(), version: version.try_into().unwrap() }
    }

    /// With a checksum that is right whatever the rest.
    fn with(&self, encoding_version: u8, content: &[u8]) -> Vec<u8> {
        let mut head = self.head.clone();
        *head.last_mut().unwrap() = encoding_version;
        let body = [&head, content, &self.version].concat();
        [body.as_slice(), &crc64(&body).to_le_bytes()].concat()
    }
}

/// What the module writes of a bucket: twice the mark of an integer and the integer, and the mark of the end.
fn content(level_micro: i64, refilled_at_us: i64) -> Vec<u8> {
    let integer = |integer: i64| [vec![2, 0x81], integer.to_be_bytes().to_vec()].concat();
    [integer(level_micro), integer(refilled_at_us), vec![0]].concat()
}

/// Restores a payload as the key `copy`. Says whether it was taken; otherwise it must have been refused.
fn is_taken(server: &mut Server, client: &mut Connection, payload: &[u8]) -> bool {
    let reply = client.try_run(&[b"RESTORE".as_slice(), b"copy", b"0", payload, b"REPLACE"]);
    let Err(error) = reply else { return true };
    if Engine::under_test().is_redis(6, 0) && error != "ERR Bad data format" {
        // That server ends itself when a module's value cannot be read, whatever the module says.
        assert_eq!(server.wait_for_exit(), 1);
        assert!(server.log().contains("The RDB file contains module data"), "{}", server.log());
        server.start_again();
        *client = server.connect();
    } else {
        assert_eq!(error, "ERR Bad data format", "{}", payload.escape_ascii());
    }
    false
}

#[test]
fn a_dump_whose_fields_are_out_of_bounds_is_refused() {
    let mut server = Server::start();
    let mut client = server.connect();
    client.say("TB.TAKE k 10 1/h 4");
    let dump = Dump::of(&mut client, "k");
    let trillion = 1_000_000_000_000_000_000;
    let latest_us = 1 << 60;
    for (level, time) in [(0, 0), (trillion, latest_us), (-trillion, 1)] {
        let payload = dump.with(1, &content(level, time));
        assert!(is_taken(&mut server, &mut client, &payload), "{level} {time}");
    }
    let mut refused = vec![
        dump.with(0, &dump.content),
        dump.with(2, &dump.content),
        dump.with(255, &dump.content),
        dump.with(1, &dump.content[..dump.content.len() / 2]),
        dump.with(1, b""),
    ];
    refused.extend(
        [
            (trillion + 1, 0),
            (-trillion - 1, 0),
            (i64::MIN, 0),
            (i64::MAX, 0),
            (0, -1),
            (0, latest_us + 1),
            (0, i64::MIN),
        ]
        .map(|(level, time)| dump.with(1, &content(level, time))),
    );
    for payload in refused {
        assert!(!is_taken(&mut server, &mut client, &payload), "{} was taken", payload.escape_ascii());
    }
    let mut torn = dump.with(1, &dump.content);
    *torn.last_mut().unwrap() ^= 1;
    let error = client.try_run(&[b"RESTORE".as_slice(), b"copy", b"0", &torn, b"REPLACE"]).unwrap_err();
    assert!(error.contains("DUMP payload version or checksum are wrong"), "{error}");
    assert_well(&server, &mut client);
}

/// What the module wrote, with bytes changed, left out, put in, or made up.
fn spoiled_content(random: &mut Random, dump: &Dump) -> Vec<u8> {
    let mut bytes = dump.content.clone();
    if random.once_in(3) {
        let edges = [0, -1, 1 << 60, 1_000_000_000_000_000_000, i64::MIN, i64::MAX];
        let mut integer = || random.pick(&edges).wrapping_add(random.between(-1, 1));
        bytes = content(integer(), integer());
    }
    for _ in 0..random.below(4) {
        let place = usize::try_from(random.below(bytes.len() as u64 + 1)).unwrap();
        match random.below(4) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, random.bytes(1)[0]),
            2 if place < bytes.len() => drop(bytes.remove(place)),
            3 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
            _ => bytes.extend(random.bytes(9)),
        }
    }
    bytes
}

#[test]
fn random_dumps_with_a_right_checksum_are_taken_or_refused() {
    // Each payload that is refused costs a server of 6.0.
    let usual = if Engine::under_test().is_redis(6, 0) { 30 } else { 5000 };
    let count = environment("HOSTILE_PAYLOADS", usual);
    let mut server = Server::start();
    let mut client = server.connect();
    let mut random = Random::new(2);
    client.say("TB.TAKE k 10 1/h 4");
    let dump = Dump::of(&mut client, "k");
    client.say("DEL k");
    let memory_before = used_memory(&mut client);
    let mut taken = 0;
    for _ in 0..count {
        let version = if random.once_in(10) { random.bytes(1)[0] & 3 } else { 1 };
        let payload = dump.with(version, &spoiled_content(&mut random, &dump));
        if is_taken(&mut server, &mut client, &payload) {
            taken += 1;
            let (level, refilled_at_us) = client.state("copy").expect("it was taken");
            let in_bounds = exact(&level) <= whole(1_000_000_000_000i64);
            assert!(in_bounds && (0..=1 << 60).contains(&refilled_at_us), "{level} {refilled_at_us}");
            assert_eq!(client.decide("TB.PEEK copy 10 1 11").retry_after_ms, -1);
        }
    }
    assert!(taken > count / 20 && taken < count * 9 / 10, "{taken} of {count} were taken: too one-sided");
    assert_nothing_leaked(&mut client, memory_before);
    assert_well(&server, &mut client);
}

#[test]
fn a_client_that_goes_away_in_the_middle_of_a_call_harms_nobody() {
    use std::io::Write;
    let server = Server::start();
    for half in
        ["*4\r\n$7\r\nTB.TAKE\r\n$1\r\nk\r\n$2\r\n1", "*1000000\r\n$8\r\nTB.MTAKE\r\n", "TB.TAKE k 10"]
    {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(half.as_bytes()).unwrap();
    }
    let mut client = server.connect();
    assert_eq!(client.state("k"), None);
    assert_well(&server, &mut client);
}
