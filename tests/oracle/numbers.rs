//! The module's reading of numbers against the naive one.

use super::decimal;
use super::rational::{integer, Exact};
use num_traits::{One, ToPrimitive};
use tokenbucket::number::{
    micro_tokens, whole, Rate, RateError, Rounding, MAX_MICRO, MAX_TOKENS, MICRO_PER_TOKEN,
};

/// Flows and times are told up to here.
pub const MOST: i64 = 1 << 62;

pub const BOTH_WAYS: [Rounding; 2] = [Rounding::Down, Rounding::Up];

/// The module reads these bytes as an amount exactly as the naive reader does.
pub fn agrees_on_amounts(bytes: &[u8]) {
    for rounding in BOTH_WAYS {
        assert_eq!(
            micro_tokens(bytes, rounding),
            decimal::amount(bytes, rounding),
            "{}",
            bytes.escape_ascii()
        );
    }
    for max in [0, 1, 1024, MAX_TOKENS, i64::MAX] {
        assert_eq!(whole(bytes, max), decimal::whole(bytes, max), "{} up to {max}", bytes.escape_ascii());
    }
}

/// The module reads these bytes as a rate as the naive reader does; exactly, if they have few enough digits.
pub fn agrees_on_rates(bytes: &[u8]) {
    let text = bytes.escape_ascii().to_string();
    match (Rate::parse(bytes), decimal::rate(bytes)) {
        (Ok(rate), Ok(meant)) if meant.is_short => assert_is_exactly(&text, rate, &meant.per_second),
        (Ok(rate), Ok(meant)) => assert_is_barely_below(&text, rate, &meant.per_second),
        // Digits beyond the twelfth may be dropped, and the rate with them fall out of bounds, or into them.
        (Err(RateError::OutOfRange), Ok(meant)) if is_at_a_bound(&meant) || meant.is_absurd => {}
        (Ok(rate), Err(RateError::OutOfRange)) => {
            assert_is_barely_below(&text, rate, &decimal::unbounded_rate(bytes).unwrap().per_second);
        }
        (read, meant) => assert_eq!(read.map(|_| ()), meant.map(|_| ()), "{text}"),
    }
}

fn is_at_a_bound(meant: &decimal::Rate) -> bool {
    !meant.is_short && &meant.per_second * one_minus_a_digit() < integer(decimal::CENTURY_S).recip()
}

/// What the loss of all digits beyond the twelfth, in count and period, leaves at least.
fn one_minus_a_digit() -> Exact {
    Exact::one() - Exact::new(3.into(), 100_000_000_000i64.into())
}

pub fn assert_is_exactly(text: &str, rate: Rate, per_second: &Exact) {
    for time_us in times_us(per_second) {
        let flowed = per_second * integer(time_us);
        let flow = rate.flow(time_us);
        assert_eq!(flow.micro, saturated(&flowed.floor()), "{text} flows in {time_us} us");
        if flow.micro < MOST {
            let rest_us = (&flowed - flowed.floor()) / per_second;
            assert_eq!(flow.carry_us, saturated(&rest_us.floor()), "{text} leaves over in {time_us} us");
        }
    }
    for micro in amounts_micro(per_second) {
        let time_us = (integer(micro) / per_second).ceil();
        assert_eq!(rate.time_us(micro), saturated(&time_us), "{micro} at {text}");
    }
}

fn assert_is_barely_below(text: &str, rate: Rate, per_second: &Exact) {
    for time_us in times_us(per_second) {
        let flowed = per_second * integer(time_us);
        let least = &flowed * one_minus_a_digit();
        let read = rate.flow(time_us).micro;
        assert!(read <= saturated(&flowed.floor()), "{text} flows too much in {time_us} us: {read}");
        assert!(read >= saturated(&least.floor()), "{text} flows too little in {time_us} us: {read}");
    }
    for micro in amounts_micro(per_second) {
        let time_us = integer(micro) / per_second;
        let most = (&time_us / one_minus_a_digit()).ceil();
        let read = rate.time_us(micro);
        assert!(read >= saturated(&time_us.ceil()), "{micro} at {text} too early: {read}");
        assert!(read <= saturated(&most), "{micro} at {text} too late: {read}");
    }
}

/// Short times, and the longest in which less flows than is told: there the last digit of the rate shows.
fn times_us(per_second: &Exact) -> Vec<i64> {
    let longest = saturated(&(integer(MOST) / per_second).floor());
    let mut times = vec![
        0,
        1,
        999,
        1_000_000,
        86_400_000_000,
        1_700_000_000_000_000,
        longest,
        longest / 7,
        MOST,
        i64::MAX,
    ];
    times.push(saturated(&per_second.recip().ceil()));
    times
}

/// Small amounts, and the largest that take less time than is told.
fn amounts_micro(per_second: &Exact) -> Vec<i64> {
    let largest = saturated(&(integer(MOST) * per_second).floor());
    vec![0, 1, 999, MICRO_PER_TOKEN, MAX_MICRO, 2 * MAX_MICRO, largest, largest / 7, MOST, i64::MAX]
}

pub fn saturated(number: &Exact) -> i64 {
    number.to_integer().to_i64().unwrap_or(MOST).min(MOST)
}
