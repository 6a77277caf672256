//! Numbers as clients print them: what is read from them, what is refused, and that nothing is lost on the way.
//!
//! A naive reader (`exact/number.rs`) says what the words mean; the module has to agree with it on every byte string.
//! The tables below are the contract's own words, for people.

use super::model::number;
use super::model::number::{assert_amount_read_as_meant, assert_flows, assert_rate_read_as_meant};
use super::model::{Exact, Flow};
use super::scenario::{calendar_rates, rates, steady_rates};
use super::strategies::damaged;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;
use regex::Regex;
use tokenbucket_core::bucket::Limit;
use tokenbucket_core::cast::{signed_32, unsigned_32};
use tokenbucket_core::number::{
    decimal_tokens, micro_tokens, whole, Rounding, MAX_MICRO, MAX_TOKENS, MICRO_PER_TOKEN,
};
use tokenbucket_core::rate::{Rate, RateError};

/// In micro-tokens, rounded down and up; a whole number if it is one of tokens.
#[track_caller]
fn assert_amount(bytes: &[u8], down: Option<i64>, up: Option<i64>) {
    let text = bytes.escape_ascii();
    assert_eq!(micro_tokens(bytes, Rounding::Down), down, "{text} down");
    assert_eq!(micro_tokens(bytes, Rounding::Up), up, "{text} up");
    let is_whole = |micro: &i64| down == up && micro % MICRO_PER_TOKEN == 0;
    assert_eq!(
        whole(bytes, MAX_TOKENS),
        down.filter(is_whole).map(|micro| micro / MICRO_PER_TOKEN),
        "{text}"
    );
    assert_amount_read_as_meant(bytes);
}

#[track_caller]
fn assert_rate(text: &str, per_second: &Exact) {
    let rate = Rate::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    assert_flows(text, rate, per_second, per_second);
    assert_rate_read_as_meant(text.as_bytes());
}

/// In micro-tokens. The second half is what floats print that were a whole number of them.
#[rustfmt::skip]
const AMOUNTS: [(&str, i64); 37] = [
    ("10", 10_000_000), ("0.5", 500_000), ("1e3", 1_000_000_000), ("1E-2", 10_000), ("+7", 7_000_000),
    ("+1.5e+1", 15_000_000), ("1.25E2", 125_000_000), ("007", 7_000_000),
    ("0000000000000000000000000000000000000000001", 1_000_000), ("5.", 5_000_000), (".5", 500_000),
    ("0", 0), ("0.000", 0), ("0e999999999999999999999999", 0), ("0.5e1", 5_000_000), ("500e-2", 5_000_000),
    ("1.000000000000000000000000000000000000000000", 1_000_000), ("0.000001", 1),
    ("999999999999.999999", MAX_MICRO - 1), ("1000000000000", MAX_MICRO), ("1e12", MAX_MICRO),
    ("0.0000000000000000000000000000000000000001e52", MAX_MICRO),
    ("10000000000000000000000000000000000000000e-28", MAX_MICRO),

    ("0.29999999999999999", 300_000), ("0.30000000000000004", 300_000),
    ("2.9999999999999996", 3_000_000), ("2.9999999999999999999e-1", 300_000), ("0.000000999999", 1), ("0.000001000001", 1),
    ("3.00000000000000000000000000000000000000000000001", 3_000_000),
    ("0.99999999999999999999999999999999999999999999999", 1_000_000), ("1e-12", 0), ("1e-39", 0),
    ("1.00000000000100000000000000000000000000", 1_000_000), ("1e-999999999999999999999999", 0),
    ("999999999999.9999999999995", MAX_MICRO), ("1000000000000.0000000000005", MAX_MICRO),
];

/// What is finer than a micro-token: the one below, which is given; one more is taken.
#[rustfmt::skip]
const FINER: [(&str, i64); 11] = [
    ("0.0000001", 0), ("0.9999999", 999_999), ("1.0000005", 1_000_000), ("1e-7", 0), ("1.1e-12", 0),
    ("0.0000010000011", 1), ("0.0000019999989", 1), ("1.0000000000010000000000000000000000001", 1_000_000),
    ("123456789012.3456789", 123_456_789_012_345_678), ("999999999999.9999999", MAX_MICRO - 1),
    ("123456789012.34567800000100000000000000000000000001", 123_456_789_012_345_678),
];

/// As whole numbers they are read up to the largest of 63 bits.
const TOO_LARGE: &str = "9223372036854775807 9223372036854775808 1000000000001 1000000000000.000001 \
    1.000000000000000001e12 1e13 1e38 10.000000000000000000000000000001e17 1e999999999999999999999999 \
    99999999999999999999999999999999999999999999";

#[test]
fn amounts_are_read_in_every_way_that_clients_print_them() {
    AMOUNTS.iter().for_each(|(text, micro)| assert_amount(text.as_bytes(), Some(*micro), Some(*micro)));
    FINER.iter().for_each(|(text, below)| assert_amount(text.as_bytes(), Some(*below), Some(below + 1)));
    TOO_LARGE.split(' ').for_each(|text| assert_amount(text.as_bytes(), None, None));
}

/// What is no non-negative decimal.
const NO_NUMBERS: &str =
    "|+|-|.|e|e3|1e|1e+|1e-|1e1.5|1e1e1|-0|-1|++1|+-1|1+|1-|1..2|1.2.3| | 1|1 |1\n|\t1|1\0|\0|inf|+inf|\
    nan|0x10|1_000|1,5|1,000|ten|1f|1\u{a0}|１";

#[test]
fn what_is_no_decimal_is_refused() {
    for bytes in NO_NUMBERS.split('|').map(str::as_bytes).chain([b"\xff".as_slice(), b"1\xc2"]) {
        assert_amount(bytes, None, None);
        assert_eq!(Rate::parse(bytes), Err(RateError::Malformed), "{}", bytes.escape_ascii());
    }
}

#[test]
fn rates_are_exact_ratios() {
    #[rustfmt::skip]
    let examples = [
        ("5", 5_i128, 1_i128), ("0.25", 1, 4), ("1e-3", 1, 1000), ("100/m", 5, 3), ("10/10s", 1, 1),
        ("5000/h", 25, 18), ("1/250ms", 4, 1), ("100/h", 1, 36), ("1/d", 1, 86_400),
        ("7/30d", 7, 2_592_000), ("3.7", 37, 10), ("1/3s", 1, 3), ("1.5/0.5h", 1, 1200),
        ("1e3/1e-3m", 50_000, 3), ("+1/+2s", 1, 2),
        ("999999999999/999999999997d", 999_999_999_999, 86_399_999_999_740_800),
        ("1/36525d", 1, number::CENTURY_S.into()), ("1e0/36525d", 1, number::CENTURY_S.into()),
        ("1e0/10s", 1, 10), ("1e12", MAX_TOKENS.into(), 1), ("1e9/ms", MAX_TOKENS.into(), 1),
        ("1/1e-12s", MAX_TOKENS.into(), 1), ("2.1e-3/1e3ms", 21, 10_000), ("21e4/1e11ms", 21, 10_000),
        ("999999999999e14/999999999989d", 999_999_999_999_000_000_000_000_i128, 999_999_999_989 * 864),
        // All but whole micro-tokens, as of amounts.
        ("0.29999999999999999", 3, 10), ("0.30000000000000004", 3, 10), ("0.30000000000000004/m", 1, 200),
        ("99.99999999999999999/m", 5, 3), ("0.000001000001/m", 1, 60_000_000),
        // Digits beyond the twelfth round a count down, and a period up.
        ("1.234567890129999999999", 123_456_789_012, 100_000_000_000),
        ("1/3.000000000000000000001s", 100_000_000_000, 300_000_000_001),
    ];
    for (text, numerator, denominator) in examples {
        assert_rate(text, &Exact::new(numerator.into(), denominator.into()));
    }
    LONG_RATES.split('|').for_each(|text| assert_rate_read_as_meant(text.as_bytes()));
}

/// "1/s@d" is a count per period with a bad unit.
const NO_RATES: &str =
    "0/s|1/0s|1/0.0ms|/|/s|1/|1/1|1/S|1/x|1/1x|1/sec|1/min|1//s|1/s/s|1/1/s|1/ s|1 /s|1/s |1/-1s|-1/s|\
    1/1mss|1/1sm|1/us|1/e3s|1/.s|1/y|1/w|\
    @d|0@d|-1@d|x@d|1@|1@x|1@D|1@0d|1@1.5h|1@-1h|1@ d|1 @d|1@d |1@2w|1@2mo|1@03mo|1@5mo|1@6mo|1@12mo|1@3y|1@2y|1@d+|1@d+9|1@d+9:00|1@d+09|\
    1@d+0900|1@d+09:60|1@d+14:01|1@d-15:00|1@d+09:0|1@d+09:000|1@d+:00|1@d*09:00|1@d+09:00+09:00|1@d/s|1/s@d|\
    1@d@d|1@+09:00|1@1e3s|\
    1@w+7d|1@mo+31d|1@3mo+31d|1@mo+99d|1@mo+100d|1@mo+014d|1@mo+d|1@mo-1d|1@mo-14d|1@w-06d|1@mo+1.5d|1@mo+14|1@mo+14D|1@mo+14h|1@mo14d|\
    1@mo+1d+2d|1@mo+09:00+14d|1@mo+14d+|1@mo+14d+9|1@mo+14d09:00|1@mo+14d+14:01|1@mo+14d-15:00|1@mo+-1d|1@mo++1d|\
    1@d+1d|1@d+0d|1@24h+1d|1@7d+1d|1@y+14d|1@y+0d|1@1w+1d|1@1mo+1d|1@2mo+1d|1@mo/+1d|1/mo+14d|1/d+1d";

const OUT_OF_RANGE: &str = "1.00000000001e12|1e13|1e99|1e999999999999999999999|1000000001/ms|18446744073.709552/ms|\
    1/1e-13s|1/36525.0001d|1/3155760001s|1/36526d|0.99999999999/36525d|3.1688e-10|1e-99|1e-999999999999999999999|\
    1/1e999999999999999999999s|1e-7@s|1e13@d|1e12@ms|0.009@y|0.0024@3mo|1e-6@mo|1@36526d|1@99999999999999999999d|1e10@1ms";

const CALENDAR_RATES: &str =
    "1e-6@s|1e9@ms|1e12@s|0.01@y|1@36525d|+1@d|1e3@d|1000@d+14:00|1000@d-00:00|1@01d|\
    1@w+6d|1@w+0d|1@w+06d|1@mo+27d|1@mo+0d|1@mo+05d|1@3mo|1@3mo+27d|1@3mo+14d-14:00|1000@mo+14d+09:00|1@w+6d-03:30|\
    0.0025@3mo+27d|1e12@3mo";

#[test]
fn what_is_no_rate_is_refused() {
    for (texts, read) in [
        (NO_RATES, Err(RateError::Malformed)),
        ("0|0.0|0e9|+0", Err(RateError::Zero)),
        (OUT_OF_RANGE, Err(RateError::OutOfRange)),
        (CALENDAR_RATES, Ok(())),
    ] {
        for text in texts.split('|') {
            assert_eq!(Rate::parse(text.as_bytes()).map(|_| ()), read, "{text}");
            assert_rate_read_as_meant(text.as_bytes());
        }
    }
}

// The module against the naive reader, which has to agree on every byte string.

/// Decimals as the contract has them, most of them ordinary, some absurd.
fn decimals() -> impl Strategy<Value = String> {
    let digits = "([0-9]{1,6}|[0-9]{1,6}|[0-9]{7,25}|0{1,40}[0-9]{0,25}|[0-9]{1,3}0{1,130})";
    let fraction = "(||\\.[0-9]{1,8}|\\.[0-9]{1,8}|\\.[0-9]{0,30}|\\.0{1,60}[0-9]{0,30}|\\.0{1,130}[0-9])";
    let power = "(|||[eE][+-]?[0-9]|[eE][+-]?[0-4][0-9]|[eE][+-]?[0-9]{3}|[eE][+-]?[0-9]{18,21})";
    string_regex(&format!("\\+?{digits}{fraction}{power}")).unwrap()
}

/// Rates of all kinds, in numbers of all kinds.
fn any_rates() -> impl Strategy<Value = String> {
    let written = (decimals(), prop_oneof![Just(String::new()), decimals()], "(ms|s|m|h|d)");
    prop_oneof![
        4 => steady_rates(),
        2 => written.prop_map(|(count, number, unit)| format!("{count}/{number}{unit}")),
        1 => calendar_rates(),
        1 => "[+]?[0-9.e-]{1,4}@[0-9]{0,3}(ms|s|m|h|d|w|mo|y|q|)([+-][0-3]?[0-9]d)?([+-][0-9]{1,2}:?[0-9]{1,2})?",
    ]
}

/// Floats print like the first: what is dropped of them is worth less than the twelfth digit, not the last that is kept.
/// Exponents that fit no machine word are not to be taken for others.
const LONG_RATES: &str =
    "0.30000000000000004|1/0.30000000000000004s|100/1.000000000001ms|3.3333333333333335/m|\
    1000000000001/1000000000001s|10/6.000000000000000000000000000000000001s|1000000000000.9|\
    1e9223372036854775807/1e9223372036854775817s|1e-9223372036854775818/1e-9223372036854775808s|\
    1e99999999999999999999/1e99999999999999999998s|0.1e9223372036854775808/1e9223372036854775807s";

fn spelt(texts: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let bytes = select(b"0123456789+-.eE/msdh xinfa\0\n_,".to_vec());
    damaged(texts.prop_map(String::into_bytes), prop_oneof![4 => bytes, 1 => any::<u8>()])
}

#[test]
fn signs_come_and_go_without_a_change_of_bits() {
    assert_eq!(signed_32(u32::MAX), -1);
    assert!([1, u32::MAX].iter().all(|bits| unsigned_32(signed_32(*bits)) == *bits));
}

proptest! {
    #![proptest_config(super::config(32))]

    #[test]
    fn a_number_is_read_for_what_it_is(bytes in prop_oneof![
        2 => decimals().prop_map(String::into_bytes),
        2 => any_rates().prop_map(String::into_bytes),
        1 => spelt(decimals()),
        1 => spelt(any_rates()),
        // Around whole micro-tokens: on either side of what still counts as one.
        1 => (0..=10_000_000i64, -30..=30i64).prop_map(|(micro, off_by)| {
            format!("{}e-13", (micro * 10_000_000 + off_by).max(0)).into_bytes()
        }),
    ]) {
        assert_amount_read_as_meant(&bytes);
        assert_rate_read_as_meant(&bytes);
    }

    #[test]
    fn an_amount_is_read_back_from_what_is_printed(micro in prop_oneof![0..=MAX_MICRO, 0..=10 * MICRO_PER_TOKEN]) {
        let text = decimal_tokens(micro);
        for rounding in [Rounding::Down, Rounding::Up] {
            prop_assert_eq!(micro_tokens(text.as_bytes(), rounding), Some(micro));
        }
        let canonical = Regex::new(r"^(0|[1-9][0-9]*)(\.[0-9]{0,5}[1-9])?$").unwrap();
        prop_assert!(canonical.is_match(&text), "{}", text);
        if micro > 0 {
            prop_assert_eq!(decimal_tokens(-micro), format!("-{text}"));
        }
    }

    #[test]
    fn a_limit_is_one_that_refills_within_a_century(text in rates(), part in 0.0..2.0f64, off_by in -2..=2i64) {
        let rate = Rate::parse(text.as_bytes()).unwrap();
        let largest = Flow::read(text.as_bytes()).unwrap().largest_capacity_micro();
        // Around the bound itself, and anywhere.
        for capacity_micro in [largest + off_by, (largest as f64 * part) as i64] {
            let capacity_micro = capacity_micro.clamp(0, MAX_MICRO);
            let is_one = Limit::new(capacity_micro, rate).is_some();
            prop_assert_eq!(is_one, capacity_micro <= largest, "{} {}", capacity_micro, text);
        }
    }
}
