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

/// The packages and the gate read the same file.
#[test]
fn rates_are_those_of_the_packages() {
    let text = include_str!("../../../clients/conformance/rates.txt");
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let read = Rate::parse(words[0].as_bytes());
        match words[1..] {
            [since, until] => {
                let (read, since_us, until_us) = (read.unwrap(), us(since), us(until));
                assert_eq!(read.reaches_at_us(since_us, MILLION), until_us, "{line}");
                assert_eq!(read.flow(since_us, until_us - 1).micro, 0, "{line}");
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
