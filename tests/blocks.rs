//! Each block of a page that says `sh` calls in Debian's `sh` what it calls in bash.
//!
//! A block runs twice, with a stand-in for each program that it names. The stand-in records its arguments, prints numbers, and
//! succeeds at every other call, so that each loop ends.

use regex::Regex;
use std::collections::BTreeSet;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use tempfile::TempDir;

const PAGES: [&str; 5] =
    ["*.md", "docs/**/*.md", "clients/*/README.md", "clients/*/docs/*.md", "examples/**/README.md"];

const STAND_IN: &str = r#"#!/bin/sh
name=${0##*/}
printf '%s\n' "$name: $*" >>"$CALLS/$name"
count=0
while read -r _; do count=$((count + 1)); done <"$CALLS/$name"
echo 7 7 7
[ $((count % 2)) = 1 ]
"#;

/// Data of a server, for patterns.
const FILES: [&str; 4] = [
    "etc/redis/redis.conf",
    "var/lib/redis/dump.rdb",
    "var/lib/redis/appendonly.aof",
    "work/.venv/bin/activate",
];

#[test]
fn every_block_calls_in_dash_what_it_calls_in_bash() {
    let mut count = 0;
    for path in PAGES.iter().flat_map(|pattern| {
        glob::glob(&format!("{}/{pattern}", env!("CARGO_MANIFEST_DIR"))).unwrap().map(Result::unwrap)
    }) {
        for block in blocks(&fs::read_to_string(&path).unwrap()) {
            // One folder for both, which the records name.
            let folder = tempfile::tempdir().unwrap();
            let [dash, bash] = ["dash", "bash"].map(|shell| calls(shell, &block, &folder));
            assert_eq!(dash, bash, "dash (left) and bash (right), {}:\n{block}", path.display());
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

/// Runs a block in a folder that stands for `/`; returns the calls of programs, and what became of the configuration file.
fn calls(shell: &str, block: &str, folder: &TempDir) -> Vec<String> {
    let root = folder.path();
    for entry in fs::read_dir(root).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    for file in FILES.map(|file| root.join(file)) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    let [programs, records] = ["programs", "calls"].map(|name| root.join(name));
    for folder in [&programs, &records] {
        fs::create_dir(folder).unwrap();
    }
    make_stand_ins(block, &programs);
    let absolute = Regex::new(r"(?m)(^|[\s>='(])/(etc|usr|var|path|srv|opt)/").unwrap();
    let block = absolute.replace_all(block, format!("${{1}}{}/$2/", root.display()));
    let mut command = Command::new(program("timeout"));
    command.arg("60").arg(program(shell)).args(["-c", &block]).current_dir(root.join("work"));
    let output = command.env("PATH", &programs).env("CALLS", &records).output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{shell} does not end:\n{block}");
    let mut calls: Vec<String> = fs::read_dir(records)
        .unwrap()
        .flat_map(|file| {
            fs::read_to_string(file.unwrap().path())
                .unwrap()
                .lines()
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    // Those of a pipeline are in no order.
    calls.sort();
    calls.push(fs::read_to_string(root.join(FILES[0])).unwrap());
    calls
}

/// Writes a stand-in for each word of a block, which may be a program.
fn make_stand_ins(block: &str, folder: &Path) {
    let stand_in = folder.join(".stand-in");
    fs::write(&stand_in, STAND_IN).unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    let words: BTreeSet<_> =
        Regex::new("[A-Za-z][A-Za-z0-9_-]*").unwrap().find_iter(block).map(|word| word.as_str()).collect();
    for word in words {
        symlink(&stand_in, folder.join(word)).unwrap();
    }
}

/// Returns the path of a program.
fn program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap();
    let found = env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is missing"))
}
