//! The version is said once, in Cargo.toml. Whatever else names one has to agree.

use regex::Regex;
use std::fs;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The versions that stand behind `before`.
fn versions(text: &str, before: &str) -> Vec<[u32; 3]> {
    let version = Regex::new(&format!(r"(?m){before}([0-9]+)\.([0-9]+)\.([0-9]+)")).unwrap();
    let numbers = version.captures_iter(text).map(|found| found.extract().1);
    numbers.map(|numbers: [&str; 3]| numbers.map(|number| number.parse().unwrap())).collect()
}

/// The versions in the headings of the changelog: `## [1.2.3] - when`.
fn headings() -> Vec<[u32; 3]> {
    let changelog = fs::read_to_string(path("CHANGELOG.md")).unwrap();
    let headings = versions(&changelog, r"^## \[");
    assert_eq!(headings.len(), changelog.matches("\n## ").count(), "a heading is no version");
    headings
}

#[test]
fn the_changelog_begins_with_this_version_and_goes_back_in_time() {
    let headings = headings();
    assert_eq!(headings[..1], versions(env!("CARGO_PKG_VERSION"), "^"));
    assert!(headings.is_sorted_by(|later, earlier| later > earlier), "{headings:?}");
}

#[test]
fn a_command_came_with_a_version_that_there_was() {
    let headings = headings();
    for (folder, before) in [("src/command", "since: c\""), ("docs/reference/commands", "Since ")] {
        let files = fs::read_dir(path(folder)).unwrap().map(|entry| entry.unwrap().path());
        let texts = files.filter(|path| path.is_file()).map(|file| fs::read_to_string(file).unwrap());
        let texts = texts.collect::<String>();
        let named = versions(&texts, before);
        assert_eq!(named.len(), texts.matches(before).count(), "{folder} names what is no version");
        assert!(
            !named.is_empty() && named.iter().all(|since| headings.contains(since)),
            "{folder}: {named:?}"
        );
    }
}
