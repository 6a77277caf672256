//! Each block of a page that says `sh` is one for Debian's `sh`: dash can read it, and it has nothing that bash alone knows.
//! The tests of procedures run theirs in dash.

use regex::Regex;
use std::process::Command;
use std::{env, fs};

const PAGES: [&str; 5] =
    ["*.md", "docs/**/*.md", "clients/*/README.md", "clients/*/docs/*.md", "examples/**/README.md"];

/// What dash reads too, and takes for something else.
#[rustfmt::skip]
const OF_BASH: [&str; 14] = [
    r"\[\[ ", r"&>", r"<<<", r"<\(", r"\$'", r"\{[^ {}$]*(,|\.\.)[^ {}]*\}", r"\$\{\w+(//?|\^|,,|:[0-9])", r"\$\{!",
    r"\becho -[en]\b", r"\becho .*\\[nt0]", r"\bread -[apst]", r"(^|[;&|] *)(source|function|declare|pushd|shopt) ",
    r"(^|[;&|] *)\w+\+?=\(", r"\$(RANDOM|SECONDS|BASH\w*|OSTYPE)\b",
];

#[test]
fn every_block_is_for_the_sh_of_debian() {
    let of_bash = OF_BASH.map(|pattern| Regex::new(&format!("(?m){pattern}")).unwrap());
    let mut count = 0;
    for path in PAGES.iter().flat_map(|pattern| {
        glob::glob(&format!("{}/{pattern}", env!("CARGO_MANIFEST_DIR"))).unwrap().map(Result::unwrap)
    }) {
        for block in blocks(&fs::read_to_string(&path).unwrap()) {
            let page = path.display();
            let read = Command::new("dash").args(["-n", "-c", &block]).output().expect("dash is missing");
            let objection = String::from_utf8_lossy(&read.stderr);
            assert!(read.status.success(), "{page}: {objection}\n{block}");
            let found = of_bash.iter().find_map(|pattern| pattern.find(&block));
            assert!(found.is_none(), "{page}: {found:?} is of bash\n{block}");
            count += 1;
        }
    }
    assert!(count > 30, "only {count} blocks were found");
}

/// Returns the blocks of `sh` on a page, without their indentation.
fn blocks(page: &str) -> Vec<String> {
    let mut lines = page.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(indent) = line.strip_suffix("```sh") {
            let block = lines.by_ref().map(|line| line.strip_prefix(indent).unwrap_or(line));
            found.push(block.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect());
        }
    }
    found
}
