//! A bucket that comes from outside, in a payload or a file, may be anything. It is a bucket that the arithmetic
//! can bear, or it is refused; the server goes on. `HOSTILE_PAYLOADS` says how many random ones to send.

use super::hostile::{assert_nothing_leaked, assert_well};
use crate::common::payload::{content, Payload, ENCODING};
use crate::common::stored::{assert_same_buckets, buckets, buckets_alive, copy_of_files, tells_of_a_crash};
use crate::common::{array, environment, is_before, texts, Connection, Random, Server};
use std::fs;
use tempfile::TempDir;
use tokenbucket_core::bucket::MAX_TIME_US;
use tokenbucket_core::number::MAX_MICRO;

const BUCKET: &[&str] = &["TB.TAKE template 10 1/h 5"];
const BUCKET_WITH_HOLDS: &[&str] = &[
    "TB.HOLD template 10 0 1 5000 a",
    "TB.HOLD template 10 0 1 5000 b",
    "TB.HOLD template 10 0 1 5000 longer",
];

const BUCKET_WITH_OVERRIDE: &[&str] = &["TB.TAKE template 10 1/h 5", "TB.OVERRIDE template 20 7@mo 5000"];

/// A server that is offered payloads.
struct Target {
    server: Server,
    client: Connection,
    payload: Payload,
}

impl Target {
    /// The payloads are made from one of a bucket that `calls` have made.
    fn start(calls: &[&str]) -> Self {
        let (server, mut client) = Server::with_clock_and_client();
        calls.iter().for_each(|call| drop(client.say(call)));
        let payload = Payload::of(&mut client, "template");
        client.say("DEL template");
        Self { server, client, payload }
    }

    /// Returns whether a payload is taken: then it is a bucket, and the same one afterwards. Otherwise it is refused.
    fn takes(&mut self, encoding: u8, content: &[u8]) -> bool {
        let sealed = self.payload.with(encoding, content);
        match self.client.restore("hostile", &sealed) {
            Ok(_) => self.assert_is_a_bucket(),
            Err(error) if error == "ERR Bad data format" => {
                assert_eq!((self.client.keys(), buckets_alive(&mut self.client)), (0, 0));
                return false;
            }
            Err(error) => {
                // Redis 6.0 ends itself, in good order, when any module refuses a payload.
                assert!(is_before(6, 2), "{error}");
                self.server.wait_for_exit();
                assert!(!tells_of_a_crash(&self.server.log()), "{}", self.server.log());
                self.server.start_again();
                self.client = self.server.connect();
                return false;
            }
        }
        true
    }

    fn assert_is_a_bucket(&mut self) {
        // What no hold can be is not left out in silence.
        let holds = self.client.count("tokenbucket", "tokenbucket_holds");
        assert!(holds == 0 || holds == BUCKET_WITH_HOLDS.len() as i64, "{holds} of all the holds");
        let (level, refilled_at_us) = self.client.state("hostile").unwrap();
        assert!(level.parse::<f64>().unwrap().abs() <= 1e12, "{level}");
        assert!((0..=MAX_TIME_US).contains(&refilled_at_us), "{refilled_at_us}");
        for hold in array(self.client.say("TB.HOLDS hostile")).into_iter().map(texts) {
            assert!(!hold[1].starts_with('-') && hold[2].parse::<i64>().unwrap() > 0, "{hold:?}");
        }
        if let Some(limit) = array(self.client.say("TB.STATE hostile")).get(2) {
            let [capacity, rate, left_ms]: [String; 3] = texts(limit.clone()).try_into().unwrap();
            let again = format!("TB.OVERRIDE other {capacity} {rate} 1");
            assert!(self.client.attempt(&again).is_ok() && left_ms.parse::<i64>().unwrap() > 0, "{limit:?}");
            self.client.say("DEL other");
        }
        let before = buckets(&mut self.client);
        let again = self.client.dump("hostile");
        self.client.restore("hostile", &again).unwrap();
        assert_same_buckets(&buckets(&mut self.client), &before, "restored again");
        self.client.say("TB.TAKE hostile 10 1/h");
        self.client.say("TB.HOLD hostile 10 1 1 5000 new");
        self.client.say("TB.PEEK hostile 1e12 1e12 1e12");
        self.client.say("DEL hostile");
        assert_eq!(buckets_alive(&mut self.client), 0);
    }
}

#[test]
fn fields_within_bounds_are_taken_and_others_refused() {
    let mut target = Target::start(BUCKET);
    let now_us = target.server.clock().now_us();
    for level_micro in [0, 1, -1, 9_000_000, MAX_MICRO, -MAX_MICRO] {
        for refilled_at_us in [0, 1, now_us, MAX_TIME_US] {
            let content = content(level_micro, refilled_at_us);
            assert!(target.takes(ENCODING, &content), "{level_micro} {refilled_at_us}");
        }
    }
    let levels = [MAX_MICRO + 1, -MAX_MICRO - 1, i64::MAX, i64::MIN].map(|level| (level, now_us));
    let times = [-1, MAX_TIME_US + 1, i64::MAX, i64::MIN].map(|time_us| (5_000_000, time_us));
    let fields = levels.into_iter().chain(times).map(|fields| (ENCODING, fields, "is out of bounds"));
    let versions = [0, 2, 3, 255].map(|version| (version, (5_000_000, 1), "a newer version of the module"));
    for (version, (level_micro, refilled_at_us), logged) in fields.chain(versions) {
        let taken = target.takes(version, &content(level_micro, refilled_at_us));
        assert!(!taken, "{version}: {level_micro} {refilled_at_us}");
        assert!(target.server.log().contains(logged), "{}", target.server.log());
    }
}

#[test]
fn random_payloads_with_a_right_checksum_are_taken_or_refused() {
    // Each payload that is refused costs a server of 6.0.
    let count = environment("HOSTILE_PAYLOADS", if is_before(6, 2) { 30 } else { 5000 });
    for calls in [BUCKET, BUCKET_WITH_HOLDS, BUCKET_WITH_OVERRIDE] {
        let mut target = Target::start(calls);
        let mut random = Random::new(2);
        let memory_before = target.client.used_memory();
        let mut taken = 0;
        for _ in 0..count {
            let version = if random.once_in(10) { random.bytes(1)[0] & 3 } else { ENCODING };
            let content = target.payload.spoiled_content(&mut random);
            taken += u64::from(target.takes(version, &content));
        }
        assert!(taken > count / 20 && taken < count * 9 / 10, "{taken} of {count} were taken: too one-sided");
        assert_eq!(target.client.count("tokenbucket", "tokenbucket_holds"), 0);
        assert_nothing_leaked(&mut target.client, memory_before);
        assert_well(&target.server, &mut target.client);
    }
}

/// A snapshot, without a checksum, in which a bucket has been given other fields.
fn snapshot_with(change: impl Fn(&Payload) -> Vec<u8>) -> TempDir {
    let (server, mut client) =
        Server::builder().option("rdbchecksum", "no").controlled_clock().start_with_client();
    for key in ["before", "victim", "{v}"] {
        client.run(&["TB.TAKE", key, "10", "1/h", "4"]);
    }
    let payload = Payload::of(&mut client, "victim");
    let original = payload.value(ENCODING, payload.content());
    client.say("SAVE");
    let files = copy_of_files(&server);
    let file = files.path().join("dump.rdb");
    let snapshot = fs::read(&file).unwrap();
    // The type stands before the key, all else behind it.
    let from = [b"victim", original.as_slice()].concat();
    let at = snapshot.windows(from.len()).position(|window| window == from).expect("no such key");
    let to = [b"victim", change(&payload).as_slice()].concat();
    fs::write(file, [&snapshot[..at], &to, &snapshot[at + from.len()..]].concat()).unwrap();
    files
}

/// One bad bucket is no reason to take a whole service down. It holds no more than it claimed.
#[test]
fn a_snapshot_with_fields_out_of_bounds_is_loaded_with_these_corrected() {
    const TIME_US: i64 = 1_767_225_600_000_000;
    #[rustfmt::skip]
    let corrected = [
        (5_000_000, TIME_US, "5", TIME_US), (MAX_MICRO + 1, TIME_US, "1000000000000", TIME_US),
        (i64::MAX, TIME_US, "1000000000000", TIME_US), (i64::MIN, TIME_US, "-1000000000000", TIME_US),
        (5_000_000, -1, "5", 0), (5_000_000, i64::MIN, "5", 0), (5_000_000, i64::MAX, "5", MAX_TIME_US),
    ];
    for (level_micro, refilled_at_us, level, time_us) in corrected {
        let files = snapshot_with(|payload| payload.value(ENCODING, &content(level_micro, refilled_at_us)));
        let (server, mut client) =
            Server::builder().files_in(files.path()).controlled_clock().start_with_client();
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
    let files = snapshot_with(|payload| payload.value(2, payload.content()));
    let log = Server::builder().files_in(files.path()).start_expecting_refusal();
    assert!(log.contains("written by a newer version of the module"), "{log}");
    assert!(!tells_of_a_crash(&log), "{log}");
}
