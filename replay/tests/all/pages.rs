//! The documentation, executed: every block that begins with `$ tokenbucket-replay` shows what the program prints. A line `…`
//! stands for lines that are left out.
//!
//! `UPDATE_EXPECT=1 cargo test pages::` writes what it prints into the pages, to be shortened by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../examples/logs.rs"]
#[allow(dead_code)]
mod logs;

const PAGES: [&str; 2] = ["docs/how-to/limit-from-a-log.md", "docs/reference/replay.md"];
const PLOT: &str = "docs/images/replay.svg";
const BEGINS: &str = "```text\n$ tokenbucket-replay ";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn folder_of_logs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    logs::write_all(folder.path()).expect("files");
    folder
}

/// Runs a command of a page in a folder, and returns what it prints.
fn run(folder: &Path, command: &str) -> String {
    let path = Path::new(env!("CARGO_BIN_EXE_tokenbucket-replay")).parent().expect("a folder").display();
    let shell = format!("PATH={path}:$PATH; {command}");
    let output = Command::new("bash").args(["-c", &shell]).current_dir(folder).output().expect("bash");
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8(said).expect("UTF-8")
}

#[test]
fn the_pages_show_what_the_program_prints() {
    let (folder, updates) = (folder_of_logs(), std::env::var_os("UPDATE_EXPECT").is_some());
    let mut count = 0;
    for name in PAGES {
        let text = std::fs::read_to_string(path(name)).expect("a page");
        let (mut played, mut rest) = (String::new(), text.as_str());
        while let Some((before, block)) = rest.split_once(BEGINS) {
            let (block, after) = block.split_once("\n```").expect("an end");
            let (command, shown) = block.split_once('\n').unwrap_or((block, ""));
            let printed = run(folder.path(), &format!("tokenbucket-replay {command}"));
            let holds = is_shown(shown, printed.trim_end());
            assert!(holds || updates, "{name}: {command} prints\n{printed}");
            let shown = if holds { shown } else { printed.trim_end() };
            played.push_str(&format!("{before}{BEGINS}{command}\n{shown}\n```"));
            rest = after;
            count += 1;
        }
        if updates {
            std::fs::write(path(name), played + rest).expect("a page");
        }
    }
    assert!(count > 4, "{count} blocks");
}

/// The page has a line of each format that is not recognised, and the expression that reads it.
#[test]
fn the_expressions_of_the_page_read_the_lines_above_them() {
    let page = std::fs::read_to_string(path("docs/reference/replay.md")).expect("a page");
    let blocks = page.split("```text\n").skip(1).filter_map(|block| block.split("\n```").next());
    let pairs = blocks.filter_map(|block| block.split_once("\n--regex "));
    let pairs: Vec<(&str, &str)> = pairs.collect();
    for (line, expression) in &pairs {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("log"), format!("{line}\n")).expect("a file");
        let known = run(folder.path(), "tokenbucket-replay log");
        assert!(known.contains("no known format"), "{line}: {known}");
        let command = format!("tokenbucket-replay log --regex {expression} --where path=/ping --json");
        let report: serde_json::Value = serde_json::from_str(&run(folder.path(), &command)).expect("JSON");
        assert_eq!(report["first_keys"], serde_json::json!(["192.0.2.7"]), "{line}");
        assert_eq!(report["from"], "2026-03-02T09:10:11Z", "{line}");
    }
    assert_eq!(pairs.len(), 4);
}

/// Returns whether a page shows what was printed: its parts between lines `…` follow each other.
fn is_shown(shown: &str, printed: &str) -> bool {
    let (shown, mut rest) = (format!("\n{shown}\n"), format!("\n{printed}\n"));
    let parts: Vec<&str> = shown.split("…\n").collect();
    for (place, part) in parts.iter().enumerate() {
        let Some(at) = rest.find(part).filter(|at| place > 0 || *at == 0) else { return false };
        rest = rest[at + part.len()..].to_owned();
    }
    rest.is_empty() || parts.last() == Some(&"")
}

/// The picture of the README is the plot of one of the logs.
#[test]
fn the_plot_is_that_of_a_page() {
    let folder = folder_of_logs();
    run(folder.path(), "tokenbucket-replay access.log --html page.html");
    let page = std::fs::read_to_string(folder.path().join("page.html")).expect("a page");
    let colours =
        page.split("<style>").nth(1).and_then(|rest| rest.split("* { box").next()).expect("colours");
    let style =
        page.split("svg { display").nth(1).and_then(|rest| rest.split(".w320").next()).expect("a style");
    let svg = page.split("<svg ").nth(1).and_then(|rest| rest.split("</svg>").next()).expect("a picture");
    let (tag, content) = svg.split_once('>').expect("a tag");
    let svg = format!("<svg {tag}>\n<style>\n{colours}svg {{ display{style}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"var(--panel)\"/>\n{content}</svg>\n");
    let svg = svg.replace("><", ">\n<").replace("font: 16px", "font: 12px");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path(PLOT), &svg).expect("a file");
    }
    assert!(
        std::fs::read_to_string(path(PLOT)).expect("a picture") == svg,
        "run UPDATE_EXPECT=1 cargo test pages::"
    );
}
