//! What a bucket takes up in memory, and what a decision sends to a replica.

use super::*;
use crate::approaches::INTEGER_WITH_EXPIRY;

pub fn memory(bench: &Bench, approaches: &[Approach]) -> Table {
    // Not refilled while anything is measured.
    let limit = Limit { capacity: 1000, count: 1, period_s: 3600 };
    let buckets = bench.pick(1_000_000, 100_000);
    let shown = whole(buckets);
    let mut table = Table::new(
        "memory",
        Plot::Bars("Memory of a key, in bytes", &[], "bytes a key"),
        "approach | bytes a key",
    );
    for approach in [INTEGER_WITH_EXPIRY].iter().chain(approaches) {
        note(format_args!("memory of {shown} keys: {}", approach.name));
        let server = dedicated_server(approach.module);
        let mut client = server.connect();
        let before = client.used_memory();
        run_load(&server, approach, Load { clients: 16, buckets, limit, duration: None });
        wait_for_hash_tables(&server);
        let bytes = client.used_memory() - before;
        table.row(&[approach.name], [whole(bytes as f64 / buckets as f64)]);
    }
    table
}

pub fn replication(bench: &Bench, approaches: &[Approach]) -> Table {
    let buckets = bench.pick(5000, 500);
    let mut table = Table::new("replication", Plot::None, "approach | bytes, allowed | bytes, denied");
    for approach in approaches {
        note(format_args!("replication: {}", approach.name));
        table.row(&[approach.name], replicated_bytes(approach, buckets).map(|bytes| format!("{bytes:.1}")));
    }
    table
}

/// Bytes per allowed and per denied decision.
fn replicated_bytes(approach: &Approach, buckets: u64) -> [f64; 2] {
    // The first decision on a bucket is allowed, the second is not.
    let limit = Limit { capacity: 1, count: 1, period_s: 3600 };
    // The primary's own pings are none of the approach's.
    let server = || {
        let server = approach.module.server();
        server.option("repl-ping-replica-period", 3600).option("repl-diskless-sync-delay", 0)
    };
    let primary = start_apart(server());
    let _replica = start_apart(server().option("replicaof", format!("127.0.0.1 {}", primary.port())));
    let mut control = primary.connect();
    wait("a replica is attached", || {
        control.count("replication", "connected_slaves") == 1
            && control.info("replication", "slave0").contains("state=online")
    });
    let mut sent = || control.count("replication", "master_repl_offset") as f64;
    block_on(async {
        let mut client = Client::open(primary.port(), 0, limit).await;
        // The first write also says which database it is for.
        approach.decide(&mut client, "first").await.unwrap();
        let mut bytes = [0.0; 2];
        for (bytes, allowed) in bytes.iter_mut().zip([true, false]) {
            let before = sent();
            for number in 0..buckets {
                let decided = approach.decide(&mut client, &key(number)).await.unwrap();
                assert_eq!(decided, allowed, "{}: bucket {number}", approach.name);
            }
            *bytes = (sent() - before) / buckets as f64;
        }
        bytes
    })
}
