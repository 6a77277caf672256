//! Servers that keep the size of a block in front of it align blocks to 8 bytes and no more, as those of Alpine do.

use super::holds::{fill, uuid};
use super::maxmemory::send_all;
use super::persistence::{assert_stored, everything};
use crate::common::calls::{prepare, CALLS};
use crate::common::engine::foreign_compiler;
use crate::common::stored::{follow, quiet, with_append_only_file};
use crate::common::{is_before, Connection, Server};

/// Returns whether its memory can be misaligned: other allocators are not replaced by a library.
fn has_malloc_of_glibc() -> bool {
    foreign_compiler().is_none() && !Server::start().has_jemalloc()
}

/// Also with many holds, whose lists and tables grow.
fn fill_all(server: &Server, client: &mut Connection) {
    fill(client, server.clock());
    for count in [1, 10, 1000] {
        send_all(client, 0..count, |n| format!("TB.HOLD of:{count} 1e6 0 1 {} {}", 3_600_000 + n, uuid(n)));
    }
}

#[test]
fn no_block_of_memory_has_to_be_aligned_to_more_than_eight_bytes() {
    if !has_malloc_of_glibc() {
        return;
    }
    let (mut server, mut client) = with_append_only_file("no").misaligned_memory().start_with_client();
    for call in CALLS.iter() {
        prepare(&mut client);
        call.make(&mut client);
    }
    client.say("FLUSHALL");
    fill_all(&server, &mut client);
    for key in ["renewed", "of:1", "of:10", "of:1000"] {
        if is_before(6, 2) {
            break; // There is no COPY.
        }
        client.say(&format!("COPY {key} copy REPLACE"));
        let dumped = client.dump(key);
        client.restore("restored", &dumped).unwrap();
    }
    let replica = quiet().misaligned_memory().start();
    replica.clock().set_us(server.clock().now_us());
    follow(&replica, &server);
    client.say("TB.HOLD of:1 1e6 0 1 3600000 one-more");
    client.say("TB.SETTLE of:1 1e6 0 one-more 0");
    let before = everything(&server);
    for words in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        client.say(words);
        assert_stored(&server, &before, words);
    }
    server.kill_and_restart();
    assert_stored(&server, &before, "a power cut");
}
