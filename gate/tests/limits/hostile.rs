//! Hostile files are refused by one mistake.

use tokenbucket_gate::limits::{Limits, Options};

use crate::file;

/// The mistake in a text. What is bounded here would otherwise take hours or all memory.
fn mistake(text: &str) -> String {
    let mistake = Limits::read(&[file("f", text)], &Options::default()).unwrap_err().to_string();
    assert!(mistake.len() < 400, "{mistake}");
    mistake
}

#[test]
fn aliases_do_not_multiply() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    assert!(mistake(&text).ends_with("document contains excessive aliasing"));

    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), "*a, ".repeat(1000));
    assert!(mistake(&long).ends_with("document contains excessive aliasing"));
    assert!(mistake("a: &a [*a]\n").contains("error loading config file: "));
}

#[test]
fn depth_is_bounded() {
    for text in ["[".repeat(500_000), "- ".repeat(500_000), "{a: ".repeat(200_000), "? ".repeat(500_000)] {
        assert!(mistake(&text).contains("error loading config file: "), "{}", &text[..8]);
    }
    let nested = "a: ".to_owned() + &"{a: ".repeat(20) + "1" + &"}".repeat(20);
    let text =
        format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {{unit: day}}\n  metadata: {{{nested}}}\n");
    assert_eq!(mistake(&text), "f:5: error parsing metadata: nested deeper than 16 levels");
}

#[test]
fn size_is_bounded() {
    assert_eq!(mistake(&" ".repeat(17 * 1024 * 1024)), "f:1: larger than 16 MiB");
    assert!(mistake(&"[],".repeat(200_000)).contains("error loading config file: "));
    assert!(mistake(&format!("domain: d\ndescriptors: [{}]", "{},".repeat(1_100_000)))
        .contains("more than 1000000 values"));
    assert!(mistake(&"x".repeat(10_000_000)).contains("the file must be a mapping"));
    assert!(mistake(&format!("domain: d\n{}: 1\n", "x".repeat(1000))).contains("unknown key 'xxx"));
    assert!(mistake(&"x: 1\n".repeat(100_000)).contains("mapping key 'x' already defined"));
}

#[test]
fn strange_bytes_are_text() {
    assert!(mistake("domain: \0\n").starts_with("f:1: "));
    assert!(mistake("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: \"\\n\\e[1m\"}\n")
        .ends_with("invalid rate limit unit '??[1m'"));
    let with_mark = "\u{feff}domain: d\n";
    assert!(Limits::read(&[file("f", with_mark)], &Options::default()).unwrap().has_domain("d"));
    let dos = "domain: d\r\ndescriptors:\r\n- key: k\r\n  rate_limit: {unit: day, requests_per_unit: 1}\r\n";
    assert!(!Limits::read(&[file("f", dos)], &Options::default()).unwrap().dump().is_empty());
}
