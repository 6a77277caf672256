//! The version is said once, in Cargo.toml. Whatever else names one has to agree.

use std::fs;
use std::path::Path;

type Version = [u32; 3];

fn version(text: &str) -> Version {
    let numbers: Vec<u32> = text.split('.').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The versions in the headings of the changelog, as they stand there: `## 1.2.3 (when)`.
fn headings() -> Vec<Version> {
    let changelog = read("CHANGELOG.md");
    let headings = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    headings.map(|heading| version(heading.split_once(' ').unwrap().0)).collect()
}

#[test]
fn the_changelog_begins_with_this_version_and_goes_back_in_time() {
    let headings = headings();
    assert_eq!(headings[0], version(env!("CARGO_PKG_VERSION")));
    assert!(headings.is_sorted_by(|later, earlier| later > earlier), "{headings:?}");
}

/// The version behind `before` in each file of a folder that has it.
fn named_in(folder: &str, before: &str) -> Vec<(String, Version)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
        let name = format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap());
        for (_, behind) in read(&name).lines().filter_map(|line| line.split_once(before)) {
            let end = behind.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(behind.len());
            found.push((name.clone(), version(behind[..end].trim_end_matches('.'))));
        }
    }
    assert!(!found.is_empty(), "{folder} names no version");
    found
}

#[test]
fn a_command_came_with_a_version_that_there_was() {
    let headings = headings();
    for (file, since) in [named_in("src/command", "since: c\""), named_in("docs/commands", "Since ")].concat()
    {
        assert!(headings.contains(&since), "{file}: {since:?} is not in the changelog");
    }
}

#[test]
fn rust_of_the_same_age_builds_every_package() {
    let minimum = |manifest| {
        let manifest = read(manifest);
        manifest.lines().find_map(|line| line.strip_prefix("rust-version = ").map(str::to_owned)).unwrap()
    };
    assert_eq!(minimum("benches/Cargo.toml"), minimum("Cargo.toml"));
}
