//! Files that each release has written, which every later one reads: from 1.0 on, downgrades aside, a promise.
//!
//! `tests/formats` has a folder for each release. The oldest server has written them, because all others read its files:
//! `UPDATE_EXPECT=1 make test-server SERVER=… TESTS=formats::`, on Redis 6.0, writes that of the present version. It is kept
//! as it is once that version is released.

use crate::common::clock::START_US;
use crate::common::stored::{buckets, copy_of_files, fill, with_append_only_file};
use crate::common::{is_before, Server, HOUR_MS};
use std::fs;
use std::path::{Path, PathBuf};

/// What the buckets must be, beside the files that hold them.
const BUCKETS: &str = "buckets.txt";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats")
}

/// The buckets an hour after the first of them was made, one in each line.
fn shown(server: &Server) -> String {
    server.clock().set_us(START_US + HOUR_MS * 1000);
    let buckets = buckets(&mut server.connect());
    buckets.iter().map(|(key, stored)| format!("{key}: {stored:?}\n")).collect()
}

fn write(folder: &Path) {
    assert!(is_before(6, 2), "a newer server's files are not read by older ones");
    let server = with_append_only_file("no").start();
    fill(&mut server.connect(), server.clock());
    server.connect().say("SAVE");
    let files = copy_of_files(&server);
    fs::create_dir_all(folder).unwrap();
    for name in ["dump.rdb", "appendonly.aof"] {
        fs::copy(files.path().join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join(BUCKETS), shown(&server)).unwrap();
}

#[test]
fn files_of_every_release_are_read() {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        write(&folder().join(env!("CARGO_PKG_VERSION")));
    }
    let releases: Vec<_> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(releases.contains(&folder().join(env!("CARGO_PKG_VERSION"))), "of this version none is kept");
    for release in releases {
        let expected = fs::read_to_string(release.join(BUCKETS)).unwrap();
        for append_only in ["no", "yes"] {
            let server = Server::builder()
                .option("appendonly", append_only)
                .controlled_clock()
                .files_in(&release)
                .start();
            assert_eq!(shown(&server), expected, "{}, appendonly {append_only}", release.display());
        }
    }
}
