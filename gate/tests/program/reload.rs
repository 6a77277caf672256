use std::os::unix::fs::symlink;
use std::path::Path;

use crate::gate::{wait_until, Gate, Setup};
use crate::{started, TWO};

const SUCCESS: &str = "ratelimit_service_config_load_success ";
const ERROR: &str = "ratelimit_service_config_load_error ";

fn limits(domain: &str) -> String {
    TWO.replace("domain: d", &format!("domain: {domain}"))
}

fn has(gate: &Gate, domain: &str) -> bool {
    gate.rlconfig().contains(&format!("{domain}.key"))
}

fn wait_for(gate: &Gate, domain: &str) {
    wait_until(domain, || has(gate, domain));
}

/// Written, renamed into place, removed: each is in use without a signal.
#[test]
fn follows_files() {
    let gate = Setup::new().file("first.yaml", &limits("first")).start();
    gate.write("second", &limits("second"));
    wait_for(&gate, "second");
    gate.write(".new", &limits("third"));
    std::fs::rename(gate.file(".new"), gate.file("second")).expect("a file");
    wait_until("the third instead of the second", || has(&gate, "third") && !has(&gate, "second"));
    std::fs::create_dir(gate.file("below")).expect("a folder");
    gate.write("below/fourth.yaml", &limits("fourth"));
    wait_for(&gate, "fourth");
    std::fs::remove_file(gate.file("second")).expect("a file");
    wait_until("without the third", || !has(&gate, "third"));
    assert!(has(&gate, "first"));
}

/// A mistake keeps the limits in use and counts once; the next good file is used.
#[test]
fn keeps_limits_on_a_mistake() {
    let (_redis, gate) = started(&[]);
    assert_eq!((gate.metric(SUCCESS), gate.metric(ERROR)), (1, 0));
    gate.write("two.yaml", "domain: d\ndescriptor: []\n");
    let line = gate.wait_for_line("unknown key 'descriptor'");
    assert!(line.contains("two.yaml:2: ") && line.ends_with("the limits in use stay"), "{line}");
    assert_eq!((gate.metric(SUCCESS), gate.metric(ERROR)), (1, 1));
    assert!(has(&gate, "d"));
    gate.write("two.yaml", &limits("e"));
    wait_for(&gate, "e");
    assert_eq!((gate.metric(SUCCESS), gate.metric(ERROR)), (2, 1));
}

fn version(folder: &Path, name: &str, domain: &str) {
    std::fs::create_dir_all(folder.join(name).join("config")).expect("a folder");
    std::fs::write(folder.join(name).join("config/limits.yaml"), limits(domain)).expect("a file");
}

/// The symbolic link replaces the old one in one step.
fn swap(folder: &Path, target: &str, link: &str) {
    symlink(target, folder.join("new")).expect("a link");
    std::fs::rename(folder.join("new"), folder.join(link)).expect("a link");
}

/// `RUNTIME_ROOT` may be a link, as envoyproxy/ratelimit wants it.
#[test]
fn follows_the_link_of_the_root() {
    let folder = tempfile::tempdir().expect("a folder");
    version(folder.path(), "v1", "one");
    version(folder.path(), "v2", "two");
    swap(folder.path(), "v1", "root");
    let gate = Setup::new().start_in(folder);
    assert!(has(&gate, "one"));
    swap(gate.folder.path(), "v2", "root");
    wait_until("the second", || has(&gate, "two") && !has(&gate, "one"));
    // What the link leads to now is watched as well.
    version(gate.folder.path(), "v2", "three");
    wait_for(&gate, "three");
    swap(gate.folder.path(), "v1", "root");
    wait_for(&gate, "one");
}

/// Kubernetes mounts a config map as links to `..data`, a link that it swaps to another folder.
#[test]
fn follows_config_maps() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("root/config");
    let map = |name: &str, domain: &str| {
        std::fs::create_dir_all(config.join(name)).expect("a folder");
        std::fs::write(config.join(name).join("limits.yaml"), limits(domain)).expect("a file");
    };
    map("..2026_01", "one");
    swap(&config, "..2026_01", "..data");
    symlink("..data/limits.yaml", config.join("limits.yaml")).expect("a link");
    // Also without RUNTIME_IGNOREDOTFILES the file counts once, not once more in its folder.
    let gate = Setup::new().start_in(folder);
    assert!(has(&gate, "one"));
    map("..2026_02", "two");
    swap(&config, "..2026_02", "..data");
    std::fs::remove_dir_all(config.join("..2026_01")).expect("a folder");
    wait_until("the second", || has(&gate, "two") && !has(&gate, "one"));
}

/// SIGHUP reloads, and ends nothing.
#[test]
fn reloads_on_sighup() {
    let (_redis, gate) = started(&[]);
    for n in 2..5 {
        gate.signal("HUP");
        wait_until("a reload", || gate.metric(SUCCESS) == n);
    }
}

/// A folder that is gone, if only while links are replaced, takes no limits with it. One that is removed is a change like any
/// other: nothing to warn of.
#[test]
fn keeps_limits_without_a_folder() {
    let (_redis, gate) = started(&[]);
    for _ in 0..5 {
        std::fs::create_dir_all(gate.file("two/three/four")).expect("a folder");
        gate.write("two/three/four/limits.yaml", &limits("two"));
        wait_for(&gate, "two");
        std::fs::remove_dir_all(gate.file("two")).expect("a folder");
        wait_until("its limits are gone", || !has(&gate, "two"));
    }
    let [root, away] = ["root", "away"].map(|name| gate.folder.path().join(name));
    std::fs::rename(&root, &away).expect("a folder");
    gate.wait_for_line("root/config: no such folder; the limits in use stay");
    let log = gate.log();
    assert!(has(&gate, "d") && !log.iter().any(|line| line.contains("WARN")), "{log:#?}");
    std::fs::write(away.join("config/two.yaml"), limits("e")).expect("a file");
    std::fs::rename(&away, &root).expect("a folder");
    wait_for(&gate, "e");
}
