//! Numbers as clients print them: what is read from them, what is refused, and that nothing is lost on the way.
//!
//! A naive reader (`oracle/decimal.rs`) says what the words mean; the module has to agree with it on every byte
//! string. The tables below are the contract's own words, for people.

mod oracle;
#[path = "model/settings.rs"]
mod settings;

use oracle::decimal;
use oracle::numbers::{agrees_on_amounts, agrees_on_rates, assert_is_exactly, saturated, BOTH_WAYS};
use oracle::rational::{integer, Exact};
use proptest::prelude::*;
use tokenbucket::bucket::Limit;
use tokenbucket::number::{
    decimal_tokens, micro_tokens, whole, Rate, RateError, Rounding, MAX_MICRO, MAX_TOKENS, MICRO_PER_TOKEN,
};

// What the contract says, in examples.

#[test]
fn amounts_are_read_in_every_way_that_clients_print_them() {
    for (text, micro) in [
        ("10", 10_000_000),
        ("0.5", 500_000),
        ("1e3", 1_000_000_000),
        ("1E-2", 10_000),
        ("+7", 7_000_000),
        ("+1.5e+1", 15_000_000),
        ("1.25E2", 125_000_000),
        ("007", 7_000_000),
        ("0000000000000000000000000000000000000000001", 1_000_000),
        ("5.", 5_000_000),
        (".5", 500_000),
        ("0", 0),
        ("0.000", 0),
        ("0e999999999999999999999999", 0),
        ("1.000000000000000000000000000000000000000000", 1_000_000),
        ("0.000001", 1),
        ("999999999999.999999", MAX_MICRO - 1),
        ("1000000000000", MAX_MICRO),
        ("1e12", MAX_MICRO),
        ("0.0000000000000000000000000000000000000001e52", MAX_MICRO),
        ("10000000000000000000000000000000000000000e-28", MAX_MICRO),
    ] {
        for rounding in BOTH_WAYS {
            assert_eq!(micro_tokens(text.as_bytes(), rounding), Some(micro), "{text} {rounding:?}");
        }
    }
}

#[test]
fn what_is_finer_than_a_micro_token_never_favours_the_taker() {
    for (text, down, up) in [
        ("0.0000001", 0, 1),
        ("0.9999999", 999_999, 1_000_000),
        ("1.0000005", 1_000_000, 1_000_001),
        ("1e-7", 0, 1),
        ("1e-38", 0, 1),
        ("1e-39", 0, 1),
        ("1e-999999999999999999999999", 0, 1),
        ("123456789012.3456789", 123_456_789_012_345_678, 123_456_789_012_345_679),
        ("999999999999.9999999", MAX_MICRO - 1, MAX_MICRO),
        ("0.00000100000000000000000000000000000000000000001", 1, 2),
        ("3.00000000000000000000000000000000000000000000001", 3_000_000, 3_000_001),
    ] {
        assert_eq!(micro_tokens(text.as_bytes(), Rounding::Down), Some(down), "{text} down");
        assert_eq!(micro_tokens(text.as_bytes(), Rounding::Up), Some(up), "{text} up");
    }
}

/// Bytes that are no non-negative decimal.
const NO_NUMBERS: [&[u8]; 38] = [
    b"",
    b" ",
    b"+",
    b"-",
    b".",
    b"e",
    b"e3",
    b"1e",
    b"1e+",
    b"1e-",
    b"1e1.5",
    b"1e1e1",
    b"-0",
    b"-1",
    b"++1",
    b"+-1",
    b"1+",
    b"1-",
    b"1..2",
    b"1.2.3",
    b" 1",
    b"1 ",
    b"1\n",
    b"\t1",
    b"1\0",
    b"\0",
    b"inf",
    b"+inf",
    b"nan",
    b"0x10",
    b"1_000",
    b"1,5",
    b"1,000",
    b"ten",
    b"1f",
    b"\xff",
    b"1\xc2\xa0",
    "１".as_bytes(),
];

#[test]
fn what_is_no_decimal_is_refused() {
    for bytes in NO_NUMBERS {
        for rounding in BOTH_WAYS {
            assert_eq!(micro_tokens(bytes, rounding), None, "{}", bytes.escape_ascii());
        }
        assert_eq!(whole(bytes, i64::MAX), None, "{}", bytes.escape_ascii());
        assert_eq!(Rate::parse(bytes), Err(RateError::Malformed), "{}", bytes.escape_ascii());
    }
}

#[test]
fn amounts_above_the_largest_are_refused() {
    for text in [
        "1000000000001",
        "1000000000000.000001",
        "1.000000000000000001e12",
        "1e13",
        "1e38",
        "1e999999999999999999999999",
        "99999999999999999999999999999999999999999999",
    ] {
        for rounding in BOTH_WAYS {
            assert_eq!(micro_tokens(text.as_bytes(), rounding), None, "{text}");
        }
    }
}

#[test]
fn whole_numbers_are_whole_in_any_spelling() {
    for (text, value) in [
        ("0", 0),
        ("0.0", 0),
        ("5", 5),
        ("5.0", 5),
        ("5e0", 5),
        ("0.5e1", 5),
        ("500e-2", 5),
        ("+5", 5),
        ("1e12", MAX_TOKENS),
    ] {
        assert_eq!(whole(text.as_bytes(), MAX_TOKENS), Some(value), "{text}");
    }
    for text in
        ["0.5", "1e-1", "5.0000000000000000000000000001", "1000000000001", "1e13", "1e99999999999999999999"]
    {
        assert_eq!(whole(text.as_bytes(), MAX_TOKENS), None, "{text}");
    }
    assert_eq!(whole(b"7", 7), Some(7));
    assert_eq!(whole(b"8", 7), None);
    assert_eq!(whole(b"9223372036854775807", i64::MAX), Some(i64::MAX));
    assert_eq!(whole(b"9223372036854775808", i64::MAX), None);
}

#[test]
fn rates_are_exact_ratios() {
    for (text, numerator, denominator) in [
        ("5", 5_i128, 1_i128),
        ("0.25", 1, 4),
        ("1e-3", 1, 1000),
        ("100/m", 5, 3),
        ("10/10s", 1, 1),
        ("5000/h", 25, 18),
        ("1/250ms", 4, 1),
        ("100/h", 1, 36),
        ("1/d", 1, 86_400),
        ("7/30d", 7, 2_592_000),
        ("3.7", 37, 10),
        ("1/3s", 1, 3),
        ("1.5/0.5h", 1, 1200),
        ("1e3/1e-3m", 50_000, 3),
        ("+1/+2s", 1, 2),
        ("999999999999/999999999997d", 999_999_999_999, 86_399_999_999_740_800),
        ("1/36525d", 1, decimal::CENTURY_S.into()),
        ("1e12", MAX_TOKENS.into(), 1),
        ("1e9/ms", MAX_TOKENS.into(), 1),
        ("1/1e-12s", MAX_TOKENS.into(), 1),
        ("2.1e-20/1e-14ms", 21, 10_000),
        ("999999999999e14/999999999989d", 999_999_999_999_000_000_000_000_i128, 999_999_999_989 * 864),
    ] {
        let rate = Rate::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert_is_exactly(text, rate, &Exact::new(numerator.into(), denominator.into()));
    }
}

#[test]
fn what_is_no_rate_is_refused() {
    let malformed = [
        "0", "0.0", "0/s", "0e9", "1/0s", "1/0.0ms", "/", "/s", "1/", "1/1", "1/S", "1/x", "1/1x", "1/sec",
        "1/min", "1//s", "1/s/s", "1/1/s", "1/ s", "1 /s", "1/s ", "1/-1s", "-1/s", "1/1mss", "1/1sm",
        "1/us", "1/e3s", "1/.s", "1/y", "1/w",
    ];
    for text in malformed {
        assert_eq!(Rate::parse(text.as_bytes()), Err(RateError::Malformed), "{text}");
    }
    let out_of_range = [
        "1.00000000001e12",
        "1e13",
        "1e99",
        "1e999999999999999999999",
        "1000000001/ms",
        "1/1e-13s",
        "1/36525.0001d",
        "1/3155760001s",
        "1/36526d",
        "0.99999999999/36525d",
        "3.1688e-10",
        "1e-99",
        "1e-999999999999999999999",
        "1/1e999999999999999999999s",
    ];
    for text in out_of_range {
        assert_eq!(Rate::parse(text.as_bytes()), Err(RateError::OutOfRange), "{text}");
    }
}

/// Floats print like this. What is dropped of them is worth less than the twelfth digit, not the last that is kept.
#[test]
fn digits_beyond_the_twelfth_hardly_matter() {
    for text in [
        "0.30000000000000004",
        "1/0.30000000000000004s",
        "100/1.000000000001ms",
        "1000000000001/1000000000001s",
        "3.3333333333333335/m",
        "10/6.000000000000000000000000000000000001s",
        "1000000000000.9",
    ] {
        assert!(Rate::parse(text.as_bytes()).is_ok(), "{text}");
        agrees_on_rates(text.as_bytes());
    }
}

#[test]
fn exponents_that_fit_no_machine_word_are_not_taken_for_others() {
    for text in [
        "1e9223372036854775807/1e9223372036854775817s",
        "1e-9223372036854775818/1e-9223372036854775808s",
        "1e99999999999999999999/1e99999999999999999998s",
        "0.1e9223372036854775808/1e9223372036854775807s",
    ] {
        agrees_on_rates(text.as_bytes());
    }
}

#[test]
fn a_bucket_refills_within_a_century_or_is_none() {
    let limit =
        |capacity_micro, rate: &str| Limit::new(capacity_micro, Rate::parse(rate.as_bytes()).unwrap());
    assert!(limit(MICRO_PER_TOKEN, "1/36525d").is_some());
    assert!(limit(MICRO_PER_TOKEN + 1, "1/36525d").is_none());
    assert!(limit(36_525 * MICRO_PER_TOKEN, "1/d").is_some());
    assert!(limit(36_525 * MICRO_PER_TOKEN + 1, "1/d").is_none());
    assert!(limit(MAX_MICRO, "316.9").is_some());
    assert!(limit(MAX_MICRO, "316.8").is_none());
    assert!(limit(0, "1/36525d").is_some());
    assert!(limit(MAX_MICRO, "1e12").is_some());
}

#[test]
fn levels_are_printed_as_decimals_with_up_to_six_fraction_digits() {
    for (micro, text) in [
        (0, "0"),
        (1, "0.000001"),
        (-1, "-0.000001"),
        (10_000_000, "10"),
        (-3_500_000, "-3.5"),
        (1_000_001, "1.000001"),
        (1_200_000, "1.2"),
        (MAX_MICRO, "1000000000000"),
        (-MAX_MICRO, "-1000000000000"),
        (i64::MAX, "9223372036854.775807"),
        (i64::MIN, "-9223372036854.775808"),
    ] {
        assert_eq!(decimal_tokens(micro), text);
    }
}

// The module against the naive reader, which has to agree on every byte string.

/// Decimals as the contract has them, most of them ordinary, some absurd.
fn decimals() -> impl Strategy<Value = String> {
    let digits = prop_oneof![6 => "[0-9]{1,6}", 3 => "[0-9]{7,25}", 2 => "0{1,40}[0-9]{0,25}", 1 => "[0-9]{1,3}0{1,300}"];
    let fraction = prop_oneof![
        4 => Just(String::new()),
        4 => "\\.[0-9]{1,8}",
        2 => "\\.[0-9]{0,30}",
        1 => "\\.0{1,60}[0-9]{0,30}",
        1 => "\\.0{1,300}[0-9]",
    ];
    let power = prop_oneof![
        6 => Just(String::new()),
        3 => "[eE][+-]?[0-9]",
        3 => "[eE][+-]?[0-4][0-9]",
        1 => "[eE][+-]?[0-9]{3}",
        1 => "[eE][+-]?[0-9]{18,21}",
    ];
    ("\\+?", digits, fraction, power)
        .prop_map(|(sign, digits, fraction, power)| sign + &digits + &fraction + &power)
}

/// Rates as the contract has them, many of them within bounds.
fn rates() -> impl Strategy<Value = String> {
    let plain = prop_oneof!["[1-9][0-9]{0,12}", "0\\.[0-9]{1,12}", "[1-9][0-9]{0,11}e-?[0-9]{1,2}"];
    let long = "[0-9]{1,3}\\.[0-9]{8,20}";
    let number = prop_oneof![2 => Just(String::new()), 6 => plain.clone(), 1 => long, 1 => decimals()];
    let count = prop_oneof![8 => plain, 1 => decimals()];
    prop_oneof![
        1 => count.clone(),
        4 => (count, number, "(ms|s|m|h|d)").prop_map(|(count, number, unit)| format!("{count}/{number}{unit}")),
    ]
}

/// A byte changed, left out, put in or doubled.
fn damaged(texts: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => proptest::sample::select(b"0123456789+-.eE/msdh xinfa\0\n_,".to_vec()), 1 => any::<u8>()];
    (texts, any::<proptest::sample::Index>(), byte, 0..4u8).prop_map(|(text, index, byte, how)| {
        let mut bytes = text.into_bytes();
        let at = index.index(bytes.len());
        match how {
            0 => bytes[at] = byte,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, byte),
            _ => bytes.insert(at, bytes[at]),
        }
        bytes
    })
}

proptest! {
    #![proptest_config(settings::cases("proptest-regressions/numbers.txt", 8))]

    #[test]
    fn a_decimal_is_read_for_what_it_is(text in decimals()) {
        agrees_on_amounts(text.as_bytes());
        agrees_on_rates(text.as_bytes());
    }

    #[test]
    fn a_rate_is_read_for_what_it_is(text in rates()) {
        agrees_on_rates(text.as_bytes());
    }

    #[test]
    fn a_damaged_number_is_read_for_what_is_left_of_it(bytes in prop_oneof![damaged(decimals()), damaged(rates())]) {
        agrees_on_amounts(&bytes);
        agrees_on_rates(&bytes);
    }

    #[test]
    fn any_bytes_are_read_for_what_they_are(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..24),
            proptest::collection::vec(proptest::sample::select(b"0159+-.eE/msdh".to_vec()), 0..12),
        ],
    ) {
        agrees_on_amounts(&bytes);
        agrees_on_rates(&bytes);
    }

    #[test]
    fn an_amount_is_read_back_from_what_is_printed(micro in prop_oneof![0..=MAX_MICRO, 0..=10 * MICRO_PER_TOKEN]) {
        let text = decimal_tokens(micro);
        for rounding in BOTH_WAYS {
            prop_assert_eq!(micro_tokens(text.as_bytes(), rounding), Some(micro));
        }
        let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
        prop_assert!(fraction.len() <= 6 && !fraction.ends_with('0'), "{}", text);
        if micro > 0 {
            prop_assert_eq!(decimal_tokens(-micro), format!("-{text}"));
        }
    }

    #[test]
    fn a_limit_is_one_that_refills_within_a_century(text in rates(), part in 0.0..2.0f64, off_by in -2..=2i64) {
        let Ok(rate) = Rate::parse(text.as_bytes()) else { return Ok(()) };
        let meant = decimal::rate(text.as_bytes()).ok().filter(|meant| meant.is_short);
        let Some(meant) = meant else { return Ok(()) };
        let longest = (&meant.per_second * integer(decimal::CENTURY_S) * integer(MICRO_PER_TOKEN)).floor();
        let longest = saturated(&longest).min(MAX_MICRO);
        // Around the bound itself, and anywhere.
        for capacity_micro in [longest.saturating_add(off_by), (longest as f64 * part) as i64] {
            let capacity_micro = capacity_micro.clamp(0, MAX_MICRO);
            let expected = decimal::refills_within_a_century(capacity_micro, &meant.per_second);
            prop_assert_eq!(Limit::new(capacity_micro, rate).is_some(), expected, "{} {}", capacity_micro, text);
        }
    }
}

/// Reading takes time linear in the length and no memory: a megabyte of digits is read, and means what it means.
#[test]
fn a_megabyte_of_digits_is_a_number_too() {
    let zeros = "0".repeat(1 << 20);
    let nines = "9".repeat(1 << 20);
    assert_eq!(micro_tokens(format!("{zeros}7").as_bytes(), Rounding::Up), Some(7_000_000));
    assert_eq!(micro_tokens(format!("0.{zeros}7").as_bytes(), Rounding::Up), Some(1));
    assert_eq!(micro_tokens(format!("0.{zeros}7e{}", 1 << 20).as_bytes(), Rounding::Up), Some(700_000));
    assert_eq!(micro_tokens(format!("7{zeros}e-{}", 1 << 20).as_bytes(), Rounding::Up), Some(7_000_000));
    assert_eq!(micro_tokens(format!("0.{nines}").as_bytes(), Rounding::Down), Some(999_999));
    assert_eq!(micro_tokens(format!("1e{nines}").as_bytes(), Rounding::Down), None);
    assert_eq!(micro_tokens(nines.as_bytes(), Rounding::Down), None);
    assert_eq!(Rate::parse(format!("1/{nines}s").as_bytes()), Err(RateError::OutOfRange));
    assert_eq!(Rate::parse(format!("1{zeros}/1{zeros}s").as_bytes()), Rate::parse(b"1"));
    assert_eq!(whole(format!("{zeros}{}", i64::MAX).as_bytes(), i64::MAX), Some(i64::MAX));
}
