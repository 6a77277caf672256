//! The line that a wrong call gets: which argument, which part of it, and how to write it; whatever bytes were sent.

use super::model::operation::parse;
use proptest::prelude::*;
use proptest::sample::select;
use tokenbucket_core::effect;
use tokenbucket_core::error::{Error, MAX_QUOTED};
use tokenbucket_core::request;

const TAKE: &str = "TB.TAKE key capacity rate [cost]";
const MTAKE: &str = "TB.MTAKE numkeys key capacity rate cost [key capacity rate cost ...]";
const HOLD: &str = "TB.HOLD key capacity rate amount ttl_ms id";
const BTAKE: &str = "TB.BTAKE key capacity rate cost max_wait_ms [SHARE tenant [WEIGHT weight]]";

#[rustfmt::skip] // A line for each.
const COMMANDS: [&str; 23] = [
    TAKE, MTAKE, HOLD, BTAKE,
    "TB.PEEK key capacity rate [cost]",
    "TB.CHARGE key capacity rate amount",
    "TB.GIVE key capacity rate amount",
    "TB.TAKEUPTO key capacity rate max",
    "TB.RESERVE key capacity rate cost max_wait_ms",
    "TB.RENEW key capacity rate ttl_ms id",
    "TB.SETTLE key capacity rate id used",
    "TB.OVERRIDE key capacity rate ttl_ms [FULL]",
    "TB.MHOLD numkeys ttl_ms id key capacity rate amount [key capacity rate amount ...]",
    "TB.MRENEW numkeys ttl_ms id key capacity rate [key capacity rate ...]",
    "TB.MSETTLE numkeys id key capacity rate used [key capacity rate used ...]",
    "TB.RESTORE key effect [key effect ...]",
    "TB.TOP [COUNT n] [RESET]",
    "CL.THROTTLE key max_burst count period [quantity]",
    "TB.TAKEANY numkeys each key capacity rate cost [key capacity rate cost ...]",
    "TB.HOLDANY numkeys each ttl_ms id key capacity rate amount [key capacity rate amount ...]",
    "TB.BMTAKE numkeys max_wait_ms key capacity rate cost [key capacity rate cost ...]",
    "TB.BHOLD key capacity rate amount ttl_ms id max_wait_ms [SHARE tenant [WEIGHT weight]]",
    "TB.BMHOLD numkeys ttl_ms id max_wait_ms key capacity rate amount [key capacity rate amount ...]",
];

/// The error line of a call, if it is wrong.
fn refusal(syntax: &str, arguments: &[&[u8]]) -> Option<String> {
    let refusal = match syntax.split(' ').next().unwrap() {
        "TB.RESTORE" => effect::read_all(arguments).err(),
        "TB.TOP" => request::top(arguments).err(),
        name => parse(&name[3..], arguments).err(),
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

/// Calls and their lines.
fn wrong_calls() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("errors.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_once(" => ").expect(line))
}

#[test]
fn a_wrong_call_is_told_by_its_argument() {
    for (call, said) in wrong_calls() {
        match said.strip_suffix('…') {
            Some(beginning) => assert!(line(call).starts_with(beginning), "{call}: {}", line(call)),
            None => assert_eq!(line(call), said, "{call}"),
        }
    }
    assert_eq!(Error::Max.to_string(), Error::Max.rule());
}

#[test]
fn a_value_is_quoted_as_far_as_it_is_short_and_printable() {
    let capacity = |capacity: &[u8]| refusal(TAKE, &[b"k", capacity, b"1"]).unwrap();
    const RULE: &str = "ERR capacity must be a decimal number of tokens from 0 to 1e12";
    assert_eq!(capacity(b"\x1b[31m"), RULE);
    assert_eq!(capacity("１".as_bytes()), RULE);
    let rate = |rate: &[u8]| refusal(TAKE, &[b"k", b"10", rate]).unwrap();
    assert!(rate(b"5\n").ends_with("or count@period (1000@d)"), "{}", rate(b"5\n"));
    assert_eq!(capacity(b"a b"), format!("{RULE}, not 'a b'"));
    assert_eq!(capacity(&[b'x'; 32]), format!("{RULE}, not '{}'", "x".repeat(32)));
    assert_eq!(capacity(&[b'x'; 33]), format!("{RULE}, not '{}'...", "x".repeat(32)));
    assert_eq!(capacity(&[b'x'; 128]), format!("{RULE}, not '{}'...", "x".repeat(32)));
    assert_eq!(capacity(&[b'1'; 129]), format!("{RULE} in at most 128 bytes, not '{}'...", "1".repeat(32)));
    for (len, bound) in [(128, ""), (129, " with numbers of at most 128 bytes")] {
        let end = format!("or count@period (1000@d){bound}, not '{}'...", "x".repeat(32));
        assert!(rate(&vec![b'x'; len]).ends_with(&end), "{}", rate(&vec![b'x'; len]));
    }
    for (len, said) in [(0, Some("not 0")), (1, None), (128, None), (129, Some("not 129"))] {
        let told = refusal(HOLD, &[b"k", b"10", b"1", b"1", b"1", &vec![0; len]]);
        assert_eq!(told, said.map(|said| format!("ERR id must be 1 to 128 bytes, {said}")));
    }
    let key = [b'k'; 33];
    let twice = refusal(MTAKE, &[b"2", &key, b"1", b"1", b"1", &key, b"1", b"1", b"1"]).unwrap();
    let shown = "k".repeat(32);
    let rule = "ERR key must not be given twice in one call";
    assert_eq!(twice, format!("{rule}: '{shown}'... is bucket 1 and bucket 2"));
}

/// Words of all kinds, in which long runs of one letter show how much is quoted.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let wrong = wrong_calls().flat_map(|(call, _)| call.split(' '));
    let rates: Vec<_> = wrong.filter(|word| word.contains(['/', '@'])).map(Vec::from).collect();
    prop_oneof![
        4 => select("1 10 0 -1 2 5/m 1000@d RESET COUNT k x 1e13 0.5 5".split(' ').collect::<Vec<_>>())
            .prop_map(|word| word.as_bytes().to_vec()),
        2 => select(rates),
        1 => prop::collection::vec(any::<u8>(), 0..6),
        1 => "[0-9]{0,3}[@/]?[0-9]{0,2}[a-zA-Z+:-]{0,9}".prop_map(String::into_bytes),
        1 => "[0-9]{1,3}@(w|3?mo|d|y)([+-]{0,2}[0-9]{0,3}[d:D]?){0,3}".prop_map(String::into_bytes),
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
