//! Calendar rates: boundaries where people expect them, and everywhere else those of an independent calendar. How they are
//! read is in `numbers.rs`.

use super::model::calendar::assert_calendar_read_as_meant;
use super::MILLION;
use super::{scenario, strategies};
use chrono::DateTime;
use proptest::prelude::*;
use tokenbucket_core::rate::{Rate, RateError};

fn us(time: &str) -> i64 {
    DateTime::parse_from_rfc3339(time).unwrap_or_else(|error| panic!("{time}: {error}")).timestamp_micros()
}

#[test]
fn the_next_boundary_is_the_one_on_the_wall() {
    for (rate, since, next) in [
        ("1000@d", "2026-11-21T17:00:00Z", "2026-11-22T00:00:00Z"),
        ("1000@d+09:00", "2026-11-21T14:59:59Z", "2026-11-22T00:00:00+09:00"),
        ("1000@d-03:30", "2026-11-21T03:29:59.999999Z", "2026-11-21T00:00:00-03:30"),
        ("5@250ms", "2026-11-21T17:14:50.1Z", "2026-11-21T17:14:50.25Z"),
        ("1@h+05:45", "2026-11-21T17:10:00Z", "2026-11-21T17:15:00Z"),
        ("1@w", "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z"),
        ("1@w", "1970-01-01T00:00:00Z", "1970-01-05T00:00:00Z"),
        ("1@mo", "2000-02-29T12:00:00Z", "2000-03-01T00:00:00Z"),
        ("1@mo+14:00", "1970-01-01T00:00:00Z", "1970-02-01T00:00:00+14:00"),
        ("1@y", "2261-12-31T23:59:59.999999Z", "2262-01-01T00:00:00Z"),
        ("1@w+6d", "2026-11-28T23:59:59.999999Z", "2026-11-29T00:00:00Z"),
        ("1@w+6d", "2026-11-29T00:00:00Z", "2026-12-06T00:00:00Z"),
        ("1@w+3d", "1970-01-01T00:00:00Z", "1970-01-08T00:00:00Z"),
        ("1@w+2d-11:30", "2026-11-25T11:29:59Z", "2026-11-25T00:00:00-11:30"),
        ("1@mo+14d", "2026-11-14T23:59:59.999999Z", "2026-11-15T00:00:00Z"),
        ("1@mo+14d", "2026-11-15T00:00:00Z", "2026-12-15T00:00:00Z"),
        ("1@mo+14d+09:00", "2026-12-20T00:00:00Z", "2027-01-15T00:00:00+09:00"),
        ("1@mo+0d", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
        ("1@mo+27d", "2027-02-27T23:59:59Z", "2027-02-28T00:00:00Z"),
        ("1@mo+27d-14:00", "2028-02-28T13:59:59Z", "2028-02-28T00:00:00-14:00"),
        ("1@mo+27d", "2028-02-29T12:00:00Z", "2028-03-28T00:00:00Z"),
        ("1@mo+28d", "2027-02-27T23:59:59Z", "2027-02-28T00:00:00Z"),
        ("1@mo+28d", "2028-02-28T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("1@mo+29d", "2027-02-28T00:00:00Z", "2027-03-30T00:00:00Z"),
        ("1@mo+30d", "2026-11-29T23:59:59Z", "2026-11-30T00:00:00Z"),
        ("1@mo+30d", "2026-11-30T00:00:00Z", "2026-12-31T00:00:00Z"),
        ("1@mo+30d+09:00", "2027-01-31T00:00:00Z", "2027-02-28T00:00:00+09:00"),
        ("1@3mo+30d", "2027-01-31T00:00:00Z", "2027-04-30T00:00:00Z"),
        ("1@mo+14d", "1970-01-01T00:00:00Z", "1970-01-15T00:00:00Z"),
        ("1@3mo", "2026-11-21T17:00:00Z", "2027-01-01T00:00:00Z"),
        ("1@3mo", "2000-02-29T12:00:00Z", "2000-04-01T00:00:00Z"),
        ("1@3mo+14d", "2026-10-14T23:59:59.999999Z", "2026-10-15T00:00:00Z"),
        ("1@3mo+14d", "2026-10-15T00:00:00Z", "2027-01-15T00:00:00Z"),
        ("1@3mo+14d-05:00", "2026-07-02T00:00:00Z", "2026-07-15T00:00:00-05:00"),
        ("1@3mo+27d", "1969-12-31T23:59:59Z", "1970-01-28T00:00:00Z"),
        ("365@366d", "1970-01-01T00:00:00Z", "1971-01-02T00:00:00Z"),
    ] {
        let (read, since_us, next_us) = (Rate::parse(rate.as_bytes()).expect(rate), us(since), us(next));
        assert_eq!(read.reaches_at_us(since_us, 1), next_us, "{rate} since {since}");
        assert_eq!(read.flow(since_us, next_us - 1).micro, 0, "{rate} since {since}");
        assert!(read.flow(since_us, next_us).micro > 0, "{rate} since {since}");
    }
}

/// The packages and the gate read the same file.
#[test]
fn rates_are_those_of_the_packages() {
    let text = include_str!("../../../clients/conformance/rates.txt");
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let read = Rate::parse(words[0].as_bytes());
        match words[1..] {
            [since, until] => {
                assert_eq!(read.unwrap().reaches_at_us(us(since), MILLION), us(until), "{line}")
            }
            _ => assert_eq!(read, Err(RateError::Malformed), "{line}"),
        }
    }
}

proptest! {
    #![proptest_config(super::config(1))]

    /// What comes between two moments, and when an amount has come, is what an independent calendar says: anywhere, and
    /// next to a boundary.
    #[test]
    fn boundaries_are_those_of_the_calendar(
        words in scenario::calendar_rates(),
        since_us in scenario::starts(),
        next_to in -1..=1i64,
        elapsed_us in strategies::spread(1 << 58),
        micro in strategies::spread(1 << 60),
    ) {
        let boundary_us = Rate::parse(words.as_bytes()).unwrap().reaches_at_us(since_us, 1);
        for since_us in [since_us, boundary_us + next_to] {
            assert_calendar_read_as_meant(words.as_bytes(), since_us, elapsed_us, micro);
        }
    }
}
