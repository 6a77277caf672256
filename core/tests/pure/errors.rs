//! The line that a wrong call gets: which argument, which part of it, and how to write it; whatever bytes were sent.

use proptest::prelude::*;
use proptest::sample::select;
use tokenbucket_core::error::{Refusal, MAX_QUOTED};
use tokenbucket_core::request;

const TAKE: &str = "TB.TAKE key capacity rate [cost]";
const TAKE_UP_TO: &str = "TB.TAKEUPTO key capacity rate max";
const RESERVE: &str = "TB.RESERVE key capacity rate cost max_wait_ms";
const MTAKE: &str = "TB.MTAKE numkeys key capacity rate cost [key capacity rate cost ...]";
const HOLD: &str = "TB.HOLD key capacity rate amount ttl_ms id";
const MHOLD: &str = "TB.MHOLD numkeys ttl_ms id key capacity rate amount [key capacity rate amount ...]";
const MSETTLE: &str = "TB.MSETTLE numkeys id key capacity rate used [key capacity rate used ...]";
const RESTORE: &str = "TB.RESTORE key effect [key effect ...]";
const TOP: &str = "TB.TOP [COUNT n] [RESET]";
const THROTTLE: &str = "CL.THROTTLE key max_burst count period [quantity]";

const COMMANDS: [&str; 10] = [TAKE, TAKE_UP_TO, RESERVE, MTAKE, HOLD, MHOLD, MSETTLE, RESTORE, TOP, THROTTLE];

/// The error line of a call, if it is wrong.
fn refusal(syntax: &str, arguments: &[&[u8]]) -> Option<String> {
    let refusal: Option<Refusal> = match syntax {
        TAKE => request::take(arguments).err().map(Refusal::from),
        TAKE_UP_TO => request::take_up_to(arguments).err().map(Refusal::from),
        RESERVE => request::reserve(arguments).err().map(Refusal::from),
        MTAKE => request::multi_take(arguments).err(),
        HOLD => request::hold(arguments).err().map(Refusal::from),
        MHOLD => request::multi_hold(arguments).err(),
        MSETTLE => request::multi_settle(arguments).err(),
        RESTORE => request::restore(arguments).err(),
        TOP => request::top(arguments).err(),
        _ => request::throttle(arguments).err().map(Refusal::from),
    };
    refusal.map(|refusal| refusal.line(syntax, arguments))
}

/// The line of a call in words.
fn line(call: &str) -> String {
    let (name, arguments) = call.split_once(' ').unwrap_or((call, ""));
    let syntax = COMMANDS.iter().find(|syntax| syntax.split(' ').next() == Some(name)).expect(call);
    let arguments: Vec<&[u8]> = arguments.split(' ').map(str::as_bytes).collect();
    refusal(syntax, if arguments == [b""] { &[] } else { &arguments }).expect(call)
}

/// A rate, and what the line says behind `ERR rate: `.
#[rustfmt::skip]
const RATES: &[(&str, &str)] = &[
    ("100/min", "unknown unit 'min' in '100/min', use m"),
    ("100/M", "unknown unit 'M' in '100/M', use m"),
    ("100/MS", "unknown unit 'MS' in '100/MS', use ms"),
    ("100/2hours", "unknown unit 'hours' in '100/2hours', use h"),
    ("100/w", "unknown unit 'w' in '100/w', use 7d, or @w for calendar weeks"),
    ("100/month", "unknown unit 'month' in '100/month', use 30d, or @mo for calendar months"),
    ("100/y", "unknown unit 'y' in '100/y', use 365d, or @y for calendar years"),
    ("100/fortnight", "unknown unit 'fortnight' in '100/fortnight', use ms, s, m, h or d"),
    ("100/", "no period in '100/', use ms, s, m, h or d"),
    ("100/60", "no unit in '100/60', use ms, s, m, h or d"),
    ("100/0s", "period '0s' in '100/0s' must be above 0"),
    ("100/-2s", "period '-2s' in '100/-2s' must be a decimal number and a unit"),
    ("100/1/s", "period '1/s' in '100/1/s' must be a decimal number and a unit"),
    ("0/m", "count '0' in '0/m' must be above 0"),
    ("-5/m", "count '-5' in '-5/m' must not be negative"),
    ("x/m", "count 'x' in 'x/m' must be a decimal number"),
    ("/m", "count '' in '/m' must be a decimal number"),
    ("-1", "'-1' must not be negative"),
    ("1000@day", "unknown period 'day' in '1000@day', use d"),
    ("1000@D", "unknown period 'D' in '1000@D', use d"),
    ("1000@2weeks", "unknown period 'weeks' in '1000@2weeks', use w"),
    ("1000@noon", "unknown period 'noon' in '1000@noon', use ms, s, m, h, d, w, mo or y"),
    ("1000@", "no period in '1000@', use ms, s, m, h, d, w, mo or y"),
    ("1000@2w", "period '2w' in '1000@2w' must be w, mo or y without a number"),
    ("1000@0d", "period '0d' in '1000@0d' must be a whole number above 0 and a unit"),
    ("1000@1.5h", "period '1.5h' in '1000@1.5h' must be a whole number above 0 and a unit"),
    ("1000@d+9", "offset '+9' in '1000@d+9' must be +HH:MM or -HH:MM, up to 14:00"),
    ("1000@mo-15:00", "offset '-15:00' in '1000@mo-15:00' must be +HH:MM or -HH:MM, up to 14:00"),
    ("0@d", "count '0' in '0@d' must be above 0"),
    ("fast", "must be tokens per second (5, 0.25), count/period (100/m, 10/15s) or count@period (1000@d), not 'fast'"),
    ("", "must be tokens per second (5, 0.25), count/period (100/m, 10/15s) or count@period (1000@d), not ''"),
    ("5\n", "must be tokens per second (5, 0.25), count/period (100/m, 10/15s) or count@period (1000@d)"),
    // The part alone, where both would be too much.
    ("1000000000000000/fortnights", "unknown unit 'fortnights', use ms, s, m, h or d"),
];

#[test]
fn a_wrong_rate_is_told_by_its_part() {
    for (rate, said) in RATES {
        let arguments = [b"k".as_slice(), b"10", rate.as_bytes()];
        assert_eq!(refusal(TAKE, &arguments), Some(format!("ERR rate: {said}")), "{rate}");
    }
}

/// A call, and its line.
#[rustfmt::skip]
const CALLS: &[(&str, &str)] = &[
    ("TB.TAKE k", "ERR wrong number of arguments for 'tb.take' command: TB.TAKE key capacity rate [cost]"),
    ("TB.RESTORE k", "ERR wrong number of arguments for 'tb.restore' command: TB.RESTORE key effect [key effect ...]"),
    ("TB.TAKE k -1 1", "ERR capacity must be a decimal number of tokens from 0 to 1e12, not '-1'"),
    ("TB.TAKE k 10 1 1,5", "ERR cost must be a decimal number of tokens from 0 to 1e12, not '1,5'"),
    ("TB.TAKE k 10 2e12", "ERR rate must be at least 1 token in 100 years (with @: 0.000001 at each boundary) and at most 1e12 tokens per second, not '2e12'"),
    ("TB.TAKE k 10 0", "ERR rate must be above 0 here; rate 0 (a semaphore) is for TB.HOLD, TB.SETTLE, TB.MHOLD, TB.MSETTLE, TB.PEEK and TB.GIVE"),
    ("TB.TAKE k 10 1/3653d", "ERR refilling capacity from empty at this rate would take more than 100 years: capacity '10', rate '1/3653d'"),
    ("TB.RESERVE k 10 1 1 1s", "ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000, not '1s'"),
    ("TB.TAKEUPTO k 10 1 1.5", "ERR max must be a whole number of tokens from 1 to 1e12, not '1.5'"),
    ("TB.HOLD k 10 1 -2 5 id", "ERR amount must be a decimal number of tokens from 0 to 1e12, not '-2'"),
    ("TB.HOLD k 10 1 1 0 id", "ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000, not '0'"),
    ("TB.MTAKE 0 k 10 1 1", "ERR numkeys must be a whole number from 1 to 1024, not '0'"),
    ("TB.MTAKE 2 k 10 1 1", "ERR numkeys must match the number of 'key capacity rate cost' groups: 2 need 8 arguments, not 4"),
    ("TB.MHOLD 1 7 id k 10 1", "ERR numkeys must match the number of 'key capacity rate amount' groups: 1 need 4 arguments, not 3"),
    ("TB.MTAKE 3 a 10 1 1 b 10 1 x c 10 1 1", "ERR cost must be a decimal number of tokens from 0 to 1e12, not 'x' (bucket 2 of 3)"),
    ("TB.MTAKE 1 a 10 1 x", "ERR cost must be a decimal number of tokens from 0 to 1e12, not 'x'"),
    ("TB.MHOLD 2 7 id a 10 1 1 b 10 5/min 1", "ERR rate: unknown unit 'min' in '5/min', use m (bucket 2 of 2)"),
    ("TB.MSETTLE 2 id a 10 1 1 b 10 0 2", "ERR used must be 0 if the rate is 0 (nothing would refill it), not '2' (bucket 2 of 2)"),
    ("TB.MTAKE 3 a 10 1 1 k 10 1 1 k 10 1 1", "ERR key must not be given twice in one call: 'k' is bucket 2 and bucket 3"),
    ("TB.RESTORE a x b x", "ERR effect must be one as this module replicates it (bucket 1 of 2)"),
    ("TB.TOP 10", "ERR options of TB.TOP are COUNT n and RESET, each at most once, not '10'"),
    ("TB.TOP RESET RESET", "ERR options of TB.TOP are COUNT n and RESET, each at most once, not 'RESET'"),
    ("TB.TOP RESET COUNT 0", "ERR COUNT must be a whole number of keys from 1 to 100000, not '0'"),
    ("TB.TOP COUNT", "ERR COUNT must be a whole number of keys from 1 to 100000"),
    ("TB.TOP COUNT 100001", "ERR COUNT must be a whole number of keys from 1 to 100000, not '100001'"),
    ("TB.TOP COUNT 1 COUNT 1", "ERR options of TB.TOP are COUNT n and RESET, each at most once, not 'COUNT'"),
    ("CL.THROTTLE k -2 1 1", "ERR max_burst must be a whole number of tokens from -1 to 999999999999, not '-2'"),
    ("CL.THROTTLE k 10 0 1", "ERR count must be a whole number of tokens from 1 to 1e12, not '0'"),
    ("CL.THROTTLE k 10 1 1 -1", "ERR quantity must be a whole number of tokens from 0 to 1e12, not '-1'"),
    ("CL.THROTTLE k 10 1 1m", "ERR period must be a whole number of seconds from 1 to 3155760000, not '1m'"),
];

#[test]
fn a_wrong_call_is_told_by_its_argument() {
    for (call, said) in CALLS {
        assert_eq!(&line(call), said, "{call}");
    }
}

#[test]
fn a_value_is_quoted_as_far_as_it_is_short_and_printable() {
    let capacity = |capacity: &[u8]| refusal(TAKE, &[b"k", capacity, b"1"]).unwrap();
    const RULE: &str = "ERR capacity must be a decimal number of tokens from 0 to 1e12";
    assert_eq!(capacity(b"\x1b[31m"), RULE);
    assert_eq!(capacity("１".as_bytes()), RULE);
    assert_eq!(capacity(b"a b"), format!("{RULE}, not 'a b'"));
    assert_eq!(capacity(&[b'x'; 32]), format!("{RULE}, not '{}'", "x".repeat(32)));
    assert_eq!(capacity(&[b'x'; 33]), format!("{RULE}, not '{}'...", "x".repeat(32)));
    assert_eq!(capacity(&[b'1'; 129]), format!("{RULE} in at most 128 bytes, not '{}'...", "1".repeat(32)));
    let id = |id: &[u8]| refusal(HOLD, &[b"k", b"10", b"1", b"1", b"1", id]).unwrap();
    assert_eq!(id(b""), "ERR id must be 1 to 128 bytes, not 0");
    assert_eq!(id(&[0; 129]), "ERR id must be 1 to 128 bytes, not 129");
    let key = [b'k'; 33];
    let twice = refusal(MTAKE, &[b"2", &key, b"1", b"1", b"1", &key, b"1", b"1", b"1"]).unwrap();
    let shown = "k".repeat(32);
    let rule = "ERR key must not be given twice in one call";
    assert_eq!(twice, format!("{rule}: '{shown}'... is bucket 1 and bucket 2"));
}

/// Words of all kinds, in which long runs of one letter show how much is quoted.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let rates: Vec<_> = RATES.iter().map(|(rate, _)| rate.as_bytes().to_vec()).collect();
    prop_oneof![
        4 => select("1 10 0 -1 2 5/m 1000@d RESET COUNT k x 1e13 0.5 5".split(' ').collect::<Vec<_>>())
            .prop_map(|word| word.as_bytes().to_vec()),
        2 => select(rates),
        1 => prop::collection::vec(any::<u8>(), 0..6),
        1 => "[0-9]{0,3}[@/]?[0-9]{0,2}[a-zA-Z+:-]{0,9}".prop_map(String::into_bytes),
        1 => "[0-9]{0,3}[@/]?#{33,200}[a-z]{0,3}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(super::config(16))]

    #[test]
    fn a_line_is_printable_and_short_and_quotes_little(
        syntax in select(COMMANDS.to_vec()),
        arguments in prop::collection::vec(words(), 0..13),
    ) {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        if let Some(line) = refusal(syntax, &arguments) {
            prop_assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{:?}", line);
            prop_assert!(line.starts_with("ERR ") && line.len() < 256, "{}", line);
            prop_assert!(line.matches('#').count() <= MAX_QUOTED, "{}", line);
        }
    }
}
