//! Buckets are the same bytes on every processor and with every C library, whichever end of a number they store first:
//! in snapshots, append-only files, `DUMP` and what replicas are sent. So machines can be exchanged under the data.
//!
//! Beside the server under test, which may be foreign to this machine, this takes one that is not, of the same version:
//! `NATIVE_SERVER`, with `NATIVE_MODULE`.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

use common::stored::{
    append_only_file, assert_same_buckets, buckets, commands, copy_of_files, fill, quiet,
    with_append_only_file,
};
use common::{Connection, Server, ServerBuilder};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// A machine: its name, and how a server is started on it.
type Machine = (&'static str, fn(ServerBuilder) -> Server);

const HERE: Machine = ("the native machine", start_natively);
const THERE: Machine = ("the machine under test", ServerBuilder::start);

/// Writers, and readers of what they write.
const BOTH_WAYS: [[Machine; 2]; 2] = [[HERE, THERE], [THERE, HERE]];

fn start_natively(builder: ServerBuilder) -> Server {
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} says none")));
    builder.native(&path("NATIVE_SERVER"), &path("NATIVE_MODULE")).start()
}

/// A server with buckets of every kind, and a client of it.
fn filled((_, start): Machine, builder: ServerBuilder) -> (Server, Connection) {
    let server = start(builder);
    let mut client = server.connect();
    fill(&mut client, server.clock());
    (server, client)
}

/// What `DUMP` makes of each bucket.
fn dumps(client: &mut Connection) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let keys: Vec<Vec<u8>> = redis::from_redis_value(client.say("KEYS *")).unwrap();
    let mut dump = |key: &Vec<u8>| redis::from_redis_value(client.run(&[b"DUMP".as_slice(), key])).unwrap();
    keys.into_iter().map(|key| (key.clone(), dump(&key))).collect()
}

/// What is appended is what replicas are sent. When a bucket that has expired is deleted is up to the server.
#[test]
fn both_dump_and_append_the_same_bytes() {
    let [here, there] = [HERE, THERE].map(|machine| {
        let (server, mut client) = filled(machine, with_append_only_file("no"));
        let mut effects = commands(&fs::read(append_only_file(&server)).unwrap());
        effects.retain(|command| command[0] == b"TB.RESTORE");
        (dumps(&mut client), effects)
    });
    assert!(here.0.len() > 15 && here.1.len() > 50, "{here:?}");
    assert_eq!(here.0, there.0);
    for (here, there) in here.1.iter().zip(&there.1) {
        assert_eq!(here, there);
    }
    assert_eq!(here.1.len(), there.1.len());
}

#[test]
fn each_reads_the_files_of_the_other() {
    let with_appends = || with_append_only_file("no");
    for (builder, write) in [(quiet as fn() -> ServerBuilder, "SAVE"), (with_appends, "PING")] {
        for [writer, (_, start_reader)] in BOTH_WAYS {
            let (server, mut client) = filled(writer, builder());
            client.say(write);
            let files = copy_of_files(&server);
            let read = start_reader(builder().clock_of(&server).files_in(files.path()));
            let when = format!("written by {} with {write}", writer.0);
            assert_same_buckets(&buckets(&mut read.connect()), &buckets(&mut client), &when);
        }
    }
}
