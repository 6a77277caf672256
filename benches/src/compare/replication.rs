//! What a decision sends to a replica.

use super::Bench;
use crate::approaches::Approach;
use crate::client::{block_on, Client};
use crate::report::{note, Section, Table};
use crate::server::{start, wait};
use crate::template::{key, Limit};

/// The first decision on a bucket is allowed, the second is not.
const LIMIT: Limit = Limit { capacity: 1, count: 1, period_s: 3600 };

pub fn measure(bench: &Bench) -> Section {
    let buckets = bench.pick(5000, 500);
    let mut table = Table::new("approach | bytes, allowed | bytes, denied");
    for approach in bench.approaches.iter() {
        note(format_args!("replication: {}", approach.name));
        let [allowed, denied] = bytes(approach, buckets);
        table.row([approach.name.clone(), format!("{allowed:.1}"), format!("{denied:.1}")]);
    }
    let text = format!(
        "Bytes of the replication stream per decision, over {buckets} buckets with keys of 12 bytes and a replica attached. An \
         approach that sends nothing when it allows loses its buckets in a failover."
    );
    Section::new("replication", "Replication", text, table)
}

/// Bytes per allowed and per denied decision.
fn bytes(approach: &Approach, buckets: u64) -> [f64; 2] {
    // The primary's own pings are none of the approach's.
    let server = || {
        let server = approach.module.server();
        server.option("repl-ping-replica-period", 3600).option("repl-diskless-sync-delay", 0)
    };
    let primary = start(server());
    let _replica = start(server().option("replicaof", format!("127.0.0.1 {}", primary.port())));
    let mut control = primary.connect();
    wait("a replica is attached", || {
        control.count("replication", "connected_slaves") == 1
            && control.info("replication", "slave0").contains("state=online")
    });
    let mut sent = || control.count("replication", "master_repl_offset") as f64;
    block_on(async {
        let mut client = Client::open(primary.port(), 0, LIMIT).await;
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
