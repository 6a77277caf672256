//! Where files are found, and what `check` says about them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tokenbucket_gate::limits::{check_files, read_folder, Options};

const LIMITS: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n";

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// The names of the files that are found, below the folder.
fn found(folder: &Path, ignore_dot_files: bool) -> Vec<String> {
    let prefix = format!("{}/", folder.display());
    let files = read_folder(folder, ignore_dot_files).unwrap();
    files.iter().map(|file| file.name.strip_prefix(&prefix).unwrap().to_owned()).collect()
}

#[test]
fn every_file_counts_in_the_order_of_names() {
    let folder =
        folder(&[("b", b""), ("a/z.txt", b""), ("a/y.yaml", b""), (".hidden", b""), (".git/config", b"")]);
    assert_eq!(found(folder.path(), true), ["a/y.yaml", "a/z.txt", "b"]);
    assert_eq!(found(folder.path(), false), ["a/y.yaml", "a/z.txt", "b", ".git/config", ".hidden"]);
}

#[test]
fn links_are_followed_also_in_a_circle() {
    let elsewhere = folder(&[("far.yaml", b"")]);
    let folder = folder(&[("near.yaml", b"")]);
    symlink(elsewhere.path(), folder.path().join("linked")).unwrap();
    symlink(folder.path(), folder.path().join("circle")).unwrap();
    assert_eq!(found(folder.path(), false), ["linked/far.yaml", "near.yaml"]);
}

#[test]
fn links_to_nothing_are_no_files() {
    // Editors leave them beside the files that they have open.
    let folder = folder(&[("limits.yaml", b"")]);
    symlink("nowhere", folder.path().join(".#limits.yaml")).unwrap();
    assert_eq!(found(folder.path(), false), ["limits.yaml"]);
    // The limits behind this one would be gone.
    symlink("nowhere", folder.path().join("more.yaml")).unwrap();
    let error = read_folder(folder.path(), false).unwrap_err().to_string();
    assert!(error.ends_with("/more.yaml: a link to nothing"), "{error}");
}

#[test]
fn check_counts_limits_or_lists_all_mistakes() {
    let folder = folder(&[
        ("good.yaml", LIMITS.as_bytes()),
        ("bad", b"x: 1\nz: 2\n"),
        ("binary", b"\xff"),
        ("sub/e.yaml", b"domain: e"),
    ]);
    let check = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.path().join(name)).collect();
        let said = check_files(&paths, &Options::default(), false);
        let short = |said: String| said.replace(&format!("{}/", folder.path().display()), "");
        said.map(short).map_err(short)
    };
    assert_eq!(check(&["good.yaml"]), Ok("ok: 1 limit, 1 domain\n".to_owned()));
    assert_eq!(check(&["good.yaml", "sub"]), Ok("ok: 1 limit, 2 domains\n".to_owned()));
    let keys = ["remote_address_2", "ip_path", "ip", "remote_address_match", "ipad", "masked_remote_address"];
    let of_key = |key| format!("  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let of_value =
        "  - {key: remote_address, value: 192.0.2.1, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let text = format!("domain: keys\ndescriptors:\n{}{of_value}", keys.map(of_key).concat());
    fs::write(folder.path().join("keys"), text).unwrap();
    let note = |line, key| {
        format!("note: keys:{line}: Envoy sends '{key}' only if an action names it; the address of a caller is 'remote_address'\n")
    };
    let notes = [note(3, "remote_address_2"), note(4, "ip_path"), note(5, "ip")];
    assert_eq!(check(&["keys"]), Ok(format!("ok: 7 limits, 1 domain\n{}", notes.concat())));
    assert_eq!(
        check(&["bad", "binary", "good.yaml", "good.yaml"]).unwrap_err(),
        "\
binary:1: error loading config file: not UTF-8
bad:1: config error, unknown key 'x'
bad:1: config file cannot have empty domain
bad:2: config error, unknown key 'z'
good.yaml:1: duplicate domain 'd' in config file (first at good.yaml:1)
"
    );
    let many = "x: 1\n".repeat(10_000);
    fs::write(folder.path().join("many"), many).unwrap();
    assert_eq!(check(&["many"]).unwrap_err().lines().count(), 100);
}
