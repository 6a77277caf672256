//! Calendar rates: boundaries where people expect them, and everywhere else those of an independent calendar.

use super::exact::calendar::assert_calendar_read_as_meant;
use super::scenario;
use chrono::DateTime;
use proptest::prelude::*;
use tokenbucket::bucket::Limit;
use tokenbucket::number::MICRO_PER_TOKEN;
use tokenbucket::rate::{Rate, RateError};

fn us(time: &str) -> i64 {
    DateTime::parse_from_rfc3339(time).unwrap_or_else(|error| panic!("{time}: {error}")).timestamp_micros()
}

#[test]
fn the_next_boundary_is_the_one_on_the_wall() {
    for (rate, since, next) in [
        ("1000@d", "2026-11-21T17:00:00Z", "2026-11-22T00:00:00Z"),
        ("1000@d+09:00", "2026-11-21T14:59:59Z", "2026-11-22T00:00:00+09:00"),
        ("1000@d+09:00", "2026-11-21T15:00:00Z", "2026-11-23T00:00:00+09:00"),
        ("1000@d-03:30", "2026-11-21T03:29:59.999999Z", "2026-11-21T00:00:00-03:30"),
        ("10@15m", "2026-11-21T17:14:59Z", "2026-11-21T17:15:00Z"),
        ("5@10s", "2026-11-21T17:14:50Z", "2026-11-21T17:15:00Z"),
        ("5@250ms", "2026-11-21T17:14:50.1Z", "2026-11-21T17:14:50.25Z"),
        ("1@h+05:45", "2026-11-21T17:10:00Z", "2026-11-21T17:15:00Z"),
        ("1@w", "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z"),
        ("1@w", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("1@w", "1970-01-01T00:00:00Z", "1970-01-05T00:00:00Z"),
        ("1@mo", "2026-12-31T23:59:59.999999Z", "2027-01-01T00:00:00Z"),
        ("1@mo", "2024-02-28T12:00:00Z", "2024-03-01T00:00:00Z"),
        ("1@mo", "2000-02-29T12:00:00Z", "2000-03-01T00:00:00Z"),
        ("1@mo-14:00", "2026-01-01T13:59:59Z", "2026-01-01T00:00:00-14:00"),
        ("1@mo+14:00", "1970-01-01T00:00:00Z", "1970-02-01T00:00:00+14:00"),
        ("1@y", "2099-06-01T00:00:00Z", "2100-01-01T00:00:00Z"),
        ("1@y", "2261-12-31T23:59:59.999999Z", "2262-01-01T00:00:00Z"),
        ("365@366d", "1970-01-01T00:00:00Z", "1971-01-02T00:00:00Z"),
    ] {
        let (read, since_us, next_us) = (Rate::parse(rate.as_bytes()).expect(rate), us(since), us(next));
        assert_eq!(read.reaches_at_us(since_us, 1), next_us, "{rate} since {since}");
        assert_eq!(read.flow(since_us, next_us - 1).micro, 0, "{rate} since {since}");
        assert!(read.flow(since_us, next_us).micro > 0, "{rate} since {since}");
    }
}

/// "1/s@d" is a count per period with a bad unit.
const NO_CALENDAR_RATES: &str =
    "@d|0@d|-1@d|x@d|1@|1@x|1@D|1@0d|1@1.5h|1@-1h|1@ d|1 @d|1@d |1@2w|1@3mo|1@2y|1@d+|1@d+9|1@d+9:00|1@d+09|\
    1@d+0900|1@d+09:60|1@d+14:01|1@d-15:00|1@d+09:0|1@d+09:000|1@d+:00|1@d*09:00|1@d+09:00+09:00|1@d/s|1/s@d|\
    1@d@d|1@+09:00|1@1e3s";

const OUT_OF_RANGE: &str = "1e-7@s|1e13@d|1e12@ms|0.009@y|1@36526d|1@99999999999999999999d|1e10@1ms";

const RATES: &str = "1e-6@s|1e9@ms|1e12@s|0.01@y|1@36525d|+1@d|1e3@d|1000@d+14:00|1000@d-00:00|1@01d";

#[test]
fn what_is_no_calendar_rate_is_an_error_of_the_rate() {
    for (texts, read) in [
        (NO_CALENDAR_RATES, Err(RateError::Malformed)),
        (OUT_OF_RANGE, Err(RateError::OutOfRange)),
        (RATES, Ok(())),
    ] {
        for words in texts.split('|') {
            assert_eq!(Rate::parse(words.as_bytes()).map(|_| ()), read, "{words}");
            assert_calendar_read_as_meant(words.as_bytes(), 0, 1, 1);
        }
    }
}

#[test]
fn a_bucket_refills_within_a_century_of_usual_periods() {
    for (rate, most) in [("1@y", 100), ("3@mo", 3600), ("1@w", 5217), ("7@d+09:00", 7 * 36_525)] {
        let limit = |tokens| Limit::new(tokens * MICRO_PER_TOKEN, Rate::parse(rate.as_bytes()).expect(rate));
        assert!(limit(most).is_some() && limit(most + 1).is_none(), "{most} of {rate}");
    }
}

proptest! {
    /// What comes between two moments, and when an amount has come, is what an independent calendar says: anywhere, and
    /// next to a boundary.
    #[test]
    fn boundaries_are_those_of_the_calendar(
        words in scenario::calendar_rates(),
        since_us in scenario::starts(),
        next_to in -1..=1i64,
        elapsed_us in scenario::spread(1 << 58),
        micro in scenario::spread(1 << 60),
    ) {
        let boundary_us = Rate::parse(words.as_bytes()).unwrap().reaches_at_us(since_us, 1);
        for since_us in [since_us, boundary_us + next_to] {
            assert_calendar_read_as_meant(words.as_bytes(), since_us, elapsed_us, micro);
        }
    }

    /// Whatever the bytes, they are read as the contract words it.
    #[test]
    fn calendar_rates_are_read_as_meant(
        words in "[+]?[0-9.e-]{1,4}@[0-9]{0,3}(ms|s|m|h|d|w|mo|y|q|)([+-][0-9]{1,2}:?[0-9]{1,2})?",
    ) {
        assert_calendar_read_as_meant(words.as_bytes(), 0, 1, 1);
    }
}
