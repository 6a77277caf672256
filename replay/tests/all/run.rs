//! Runs the program.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs it with arguments given as words, in which `·` stands for a space, and with this standard input.
pub fn run(words: &str, input: impl AsRef<[u8]>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tokenbucket-replay"))
        .args(words.split_whitespace().map(|word| word.replace('·', " ")))
        .env_remove("TOKENBUCKET_REPLAY_SECRET")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.as_ref().to_owned();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("no panic");
    output
}

/// Returns what it prints when it succeeds.
pub fn text(words: &str, input: impl AsRef<[u8]>) -> String {
    let output = run(words, input);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the report for programs.
pub fn json(words: &str, input: impl AsRef<[u8]>) -> Value {
    serde_json::from_str(&text(&format!("{words} --json"), input)).expect("JSON")
}

/// Returns what it says when it fails.
pub fn failure(words: &str, input: impl AsRef<[u8]>) -> String {
    let output = run(words, input);
    assert_eq!(output.status.code(), Some(1), "{words}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// Returns each key of a log with the number of its requests and the time of the first one, sorted. A limit of nothing denies
/// all of them.
pub fn requests(words: &str, input: impl AsRef<[u8]>) -> Vec<(String, u64, String)> {
    let report = json(&format!("{words} --limit 0·1"), input);
    let rows = report["replays"][0]["most_denied"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let mut rows: Vec<_> = rows
        .map(|row| (text(&row["key"]), row["requests"].as_u64().expect("a number"), text(&row["first"])))
        .collect();
    rows.sort();
    rows
}

/// Returns the keys of a log, each with its number of requests.
pub fn clients(words: &str, log: &str) -> Vec<(String, u64)> {
    requests(words, log).into_iter().map(|(key, count, _)| (key, count)).collect()
}

pub fn counted(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect()
}
