//! A bucket that comes from outside, in a payload or a file, may be anything. It is a bucket that the arithmetic
//! can bear, or it is refused; the server goes on.

mod common;

use common::stored::{append_only_file, buckets, buckets_alive, copy_of_files, tells_of_a_crash};
use common::{text, Connection, Server};
use redis::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use tempfile::TempDir;

/// What `DUMP` makes of a bucket, taken apart: the type's name and encoding version, then level and time, then
/// the version of the server's format and a checksum.
struct Payload {
    /// A byte for "a module's value", and a length that is the type's name and encoding version.
    head: Vec<u8>,
    format_version: Vec<u8>,
}

const HEAD_LEN: usize = 10;
const FORMAT_VERSION_LEN: usize = 2;
const CHECKSUM_LEN: usize = 8;

/// "An unsigned integer follows" and "the value ends here", inside a module's value.
const INTEGER: u8 = 2;
const END: u8 = 0;

impl Payload {
    fn of(client: &mut Connection) -> Self {
        client.say("TB.TAKE template 10 1/h");
        let bytes = dump(client, "template");
        client.say("DEL template");
        let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM_LEN);
        assert_eq!(checksum, crc64(body).to_le_bytes());
        let format_version = body[body.len() - FORMAT_VERSION_LEN..].to_vec();
        Self { head: body[..HEAD_LEN].to_vec(), format_version }
    }

    /// The value of a bucket with any fields.
    fn value(&self, level_micro: i64, refilled_at_us: i64) -> Vec<u8> {
        let fields = [integer(level_micro), integer(refilled_at_us), vec![END]].concat();
        [self.head.clone(), fields].concat()
    }

    /// What `RESTORE` takes, with a checksum that is right.
    fn seal(&self, value: &[u8]) -> Vec<u8> {
        let mut bytes = [value, &self.format_version].concat();
        bytes.extend(crc64(&bytes).to_le_bytes());
        bytes
    }

    /// The same value, as if another version of the module had written it.
    fn with_encoding(mut value: Vec<u8>, version: u8) -> Vec<u8> {
        // The lowest ten bits of the name are the version.
        value[HEAD_LEN - 1] = version;
        value
    }
}

fn integer(number: i64) -> Vec<u8> {
    const EIGHT_BYTES_FOLLOW: u8 = 0x81;
    [&[INTEGER, EIGHT_BYTES_FOLLOW], number.to_be_bytes().as_slice()].concat()
}

/// The checksum of payloads and snapshots: 64 bits, reflected, of the polynomial that Jones chose.
fn crc64(bytes: &[u8]) -> u64 {
    const REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
    let shift = |crc: u64| (crc >> 1) ^ if crc & 1 == 1 { REFLECTED } else { 0 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| shift(crc)))
}

fn dump(client: &mut Connection, key: &str) -> Vec<u8> {
    match client.run(&["DUMP", key]) {
        Value::BulkString(bytes) => bytes,
        other => panic!("no dump: {other:?}"),
    }
}

const MAX_MICRO: i64 = 1_000_000_000_000_000_000;

/// The latest time that a bucket may bear.
const MAX_TIME_US: i64 = 1 << 60;

/// A server that is offered payloads. Redis 6.0 ends itself, in good order, when any module refuses one; from 6.2
/// on it replies an error.
struct Target {
    server: Server,
    client: Connection,
    payload: Payload,
    ends_on_refusal: bool,
}

impl Target {
    fn start() -> Self {
        let server = Server::with_clock();
        let mut client = server.connect();
        let ends_on_refusal = client.info("server", "redis_version").starts_with("6.0.");
        let payload = Payload::of(&mut client);
        Self { server, client, payload, ends_on_refusal }
    }

    fn restore(&mut self, payload: &[u8]) -> Result<Value, String> {
        self.client.try_run(&[b"RESTORE".as_slice(), b"hostile", b"0", payload])
    }

    /// Offers a value that may be refused. If it is taken, it has to be a bucket, and the same one afterwards.
    fn offer(&mut self, value: &[u8]) -> Verdict {
        let sealed = self.payload.seal(value);
        match self.restore(&sealed) {
            Ok(_) => {
                self.assert_is_a_bucket();
                Verdict::Taken
            }
            Err(error) => {
                self.assert_refused_well(&error);
                Verdict::Refused
            }
        }
    }

    fn assert_refused_well(&mut self, error: &str) {
        if error == "ERR Bad data format" {
            assert_eq!(text(&self.client.say("EXISTS hostile")), "0");
            assert_eq!(buckets_alive(&mut self.client), 0);
            return;
        }
        assert!(self.ends_on_refusal, "{error}");
        self.server.wait_for_exit();
        assert!(!tells_of_a_crash(&self.server.log()), "{}", self.server.log());
        self.server.start_again();
        self.client = self.server.connect();
    }

    fn assert_is_a_bucket(&mut self) {
        let (level, refilled_at_us) = self.client.state("hostile").unwrap();
        assert!(level.parse::<f64>().unwrap().abs() <= 1e12, "{level}");
        assert!((0..=MAX_TIME_US).contains(&refilled_at_us), "{refilled_at_us}");
        let again = dump(&mut self.client, "hostile");
        assert_eq!(text(&self.client.say("DEL hostile")), "1");
        self.restore(&again).unwrap();
        assert_eq!(self.client.state("hostile"), Some((level, refilled_at_us)));
        self.client.say("TB.TAKE hostile 10 1/h");
        self.client.say("TB.PEEK hostile 1e12 1e12 1e12");
        self.client.say("DEL hostile");
        assert_eq!(buckets_alive(&mut self.client), 0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Taken,
    Refused,
}

#[test]
fn fields_within_bounds_are_taken() {
    let mut target = Target::start();
    for level_micro in [0, 1, -1, 9_000_000, MAX_MICRO, -MAX_MICRO] {
        for refilled_at_us in [0, 1, target.server.clock().now_us(), MAX_TIME_US] {
            let value = target.payload.value(level_micro, refilled_at_us);
            assert_eq!(target.offer(&value), Verdict::Taken, "{level_micro} {refilled_at_us}");
        }
    }
}

#[test]
fn fields_out_of_bounds_are_refused() {
    let mut target = Target::start();
    let now_us = target.server.clock().now_us();
    let levels = [MAX_MICRO + 1, -MAX_MICRO - 1, i64::MAX, i64::MIN].map(|level| (level, now_us));
    let times = [-1, MAX_TIME_US + 1, i64::MAX, i64::MIN].map(|time_us| (5_000_000, time_us));
    for (level_micro, refilled_at_us) in levels.into_iter().chain(times) {
        let value = target.payload.value(level_micro, refilled_at_us);
        assert_eq!(target.offer(&value), Verdict::Refused, "{level_micro} {refilled_at_us}");
        assert!(target.server.log().contains("refused a bucket whose level or time is out of bounds"));
    }
}

#[test]
fn an_encoding_of_another_version_is_refused() {
    let mut target = Target::start();
    for version in [0, 2, 3, 255] {
        let value = Payload::with_encoding(target.payload.value(5_000_000, 1), version);
        assert_eq!(target.offer(&value), Verdict::Refused, "{version}");
        assert!(target.server.log().contains("written by a newer version of the module"));
    }
}

/// Whatever is wrong with a payload, its checksum being right: one byte anywhere behind the type (which decides
/// what other part of the server reads it).
#[test]
fn a_payload_with_any_byte_changed_does_no_harm() {
    let mut target = Target::start();
    let value = target.payload.value(5_000_000, 1_767_225_600_000_007);
    let mut verdicts = Vec::new();
    for position in 1..value.len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut changed = value.clone();
            changed[position] ^= mask;
            verdicts.push(target.offer(&changed));
        }
    }
    let taken = verdicts.iter().filter(|verdict| **verdict == Verdict::Taken).count();
    assert!(taken > 10 && verdicts.len() - taken > 30, "{taken} of {} taken", verdicts.len());
}

/// Nothing tells where a value ends but the value itself: what follows it, two bytes and the checksum, is read as
/// part of one that was cut. At most a few cuts can make a bucket of that.
#[test]
fn a_payload_that_ends_anywhere_does_no_harm() {
    let mut target = Target::start();
    let value = target.payload.value(5_000_000, 1_767_225_600_000_007);
    let verdicts: Vec<_> = (1..value.len()).map(|len| target.offer(&value[..len])).collect();
    let taken = verdicts.iter().filter(|verdict| **verdict == Verdict::Taken).count();
    assert!(taken <= 3, "{verdicts:?}");
}

#[test]
fn a_payload_with_a_wrong_checksum_is_refused() {
    let mut target = Target::start();
    let mut sealed = target.payload.seal(&target.payload.value(5_000_000, 1));
    let last = sealed.len() - 1;
    sealed[last] ^= 1;
    assert!(target.restore(&sealed).unwrap_err().contains("checksum"));
    assert_eq!(text(&target.client.say("PING")), "PONG");
}

/// A snapshot, without a checksum, in which a bucket has been given other fields.
fn snapshot_with(change: impl Fn(&Payload) -> Vec<u8>) -> TempDir {
    let server = Server::builder().option("rdbchecksum", "no").controlled_clock().start();
    let mut client = server.connect();
    let payload = Payload::of(&mut client);
    client.say("TB.TAKE before 10 1/h 4");
    client.say("TB.TAKE victim 10 1/h 4");
    client.say("TB.TAKE {v} 10 1/h 4");
    let original = dump(&mut client, "victim");
    let original = &original[..original.len() - FORMAT_VERSION_LEN - CHECKSUM_LEN];
    client.say("SAVE");
    let files = copy_of_files(&server);
    let file = files.path().join("dump.rdb");
    let changed = replace_behind(&fs::read(&file).unwrap(), b"victim", original, &change(&payload));
    fs::write(file, changed).unwrap();
    files
}

/// Replaces the value of a key: the type stands before the key, all else behind it.
fn replace_behind(bytes: &[u8], key: &[u8], value: &[u8], new: &[u8]) -> Vec<u8> {
    let from = [key, &value[1..]].concat();
    let to = [key, &new[1..]].concat();
    let at =
        bytes.windows(from.len()).position(|window| window == from).expect("the snapshot has no such key");
    [&bytes[..at], &to, &bytes[at + from.len()..]].concat()
}

fn reading(files: &Path) -> Server {
    Server::builder().files_in(files).controlled_clock().start()
}

/// One bad bucket is no reason to take a whole service down. It holds no more than it claimed.
#[test]
fn a_snapshot_with_fields_out_of_bounds_is_loaded_with_these_corrected() {
    const TIME_US: i64 = 1_767_225_600_000_000;
    for (level_micro, refilled_at_us, level, time_us) in [
        (5_000_000, TIME_US, "5", TIME_US),
        (MAX_MICRO + 1, TIME_US, "1000000000000", TIME_US),
        (i64::MAX, TIME_US, "1000000000000", TIME_US),
        (i64::MIN, TIME_US, "-1000000000000", TIME_US),
        (5_000_000, -1, "5", 0),
        (5_000_000, i64::MIN, "5", 0),
        (5_000_000, i64::MAX, "5", MAX_TIME_US),
    ] {
        let files = snapshot_with(|payload| payload.value(level_micro, refilled_at_us));
        let server = reading(files.path());
        let mut client = server.connect();
        assert_eq!(client.state("victim"), Some((level.to_owned(), time_us)));
        assert_eq!(client.state("before").unwrap().0, "6");
        assert_eq!(buckets(&mut client).len(), 3);
        let corrected = (level_micro, refilled_at_us) != (5_000_000, TIME_US);
        assert_eq!(server.log().contains("corrected a bucket whose level or time"), corrected);
    }
}

/// A bucket of a newer module cannot be guessed at: the server says so instead of starting without it.
#[test]
fn a_snapshot_of_a_newer_module_is_not_loaded() {
    let files = snapshot_with(|payload| Payload::with_encoding(payload.value(5_000_000, 1), 2));
    let log = Server::builder().files_in(files.path()).start_expecting_refusal();
    assert!(log.contains("written by a newer version of the module"), "{log}");
    assert!(!tells_of_a_crash(&log), "{log}");
}

/// An effect that no bucket can have had is passed over, and what follows it is read.
#[test]
fn an_append_only_file_with_a_bad_effect_is_read_to_its_end() {
    let with_file = || {
        Server::builder()
            .option("appendonly", "yes")
            .option("appendfsync", "always")
            .option("aof-use-rdb-preamble", "no")
            .controlled_clock()
    };
    let server = with_file().start();
    server.connect().say("TB.TAKE user:1 10 1/h 4");
    let file = append_only_file(&server);
    let effects: [&[u8]; 4] = [b"", b"\x01", &[0xff; 25], &[0; 1000]];
    let mut appended = File::options().append(true).open(&file).unwrap();
    for effect in effects {
        let head = format!("*3\r\n$10\r\nTB.RESTORE\r\n$6\r\nuser:1\r\n${}\r\n", effect.len());
        appended.write_all(&[head.as_bytes(), effect, b"\r\n"].concat()).unwrap();
    }
    appended
        .write_all(b"*2\r\n$3\r\nDEL\r\n$6\r\nuser:2\r\n*3\r\n$3\r\nSET\r\n$3\r\nend\r\n$1\r\n1\r\n")
        .unwrap();
    let before = server.connect().state("user:1");
    let reader = with_file().files_in(server.folder()).start();
    assert_eq!(reader.connect().state("user:1"), before);
    assert_eq!(text(&reader.connect().say("GET end")), "1");
}
