//! What a decision sends to a replica.

use super::Bench;
use crate::approaches::{decide, Approach};
use crate::report::{note, Section, Table};
use crate::server::{info, Server};
use crate::template::{key, Limit};
use anyhow::{ensure, Result};
use redis::Connection;

/// The first decision on a bucket is allowed, the second is not.
const LIMIT: Limit = Limit { capacity: 1, count: 1, period_s: 3600 };

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut table = Table::new("approach | bytes, allowed | bytes, denied");
    for approach in bench.approaches.iter().filter(|approach| approach.has_any_limit()) {
        note(format_args!("replication: {}", approach.name()));
        let [allowed, denied] = bytes(bench, approach.as_ref())?;
        table.row([approach.name().to_owned(), format!("{allowed:.1}"), format!("{denied:.1}")]);
    }
    let text = format!(
        "Bytes of the replication stream per decision, over {} buckets with keys of 12 bytes and a replica attached. An \
         approach that sends nothing when it allows loses its buckets in a failover.",
        decisions(bench)
    );
    Ok(Section::new("replication", "Replication", text, table))
}

fn decisions(bench: &Bench) -> u64 {
    bench.pick(5000, 500)
}

/// Bytes per allowed and per denied decision.
fn bytes(bench: &Bench, approach: &dyn Approach) -> Result<[f64; 2]> {
    // The primary's own pings are none of the approach's.
    let setup = bench
        .setup(approach.module())
        .option("repl-ping-replica-period", 3600)
        .option("repl-diskless-sync-delay", 0);
    let primary = Server::start(&setup)?;
    let _replica = Server::start(&setup.option("replicaof", format!("127.0.0.1 {}", primary.port)))?;
    primary.wait_for_replica()?;
    let mut connection = primary.connect()?;
    // The first write also says which database it is for.
    decide(&mut connection, approach.client(0, LIMIT).as_mut(), "first")?;
    let allowed = bytes_per_decision(bench, &mut connection, approach, true)?;
    let denied = bytes_per_decision(bench, &mut connection, approach, false)?;
    Ok([allowed, denied])
}

fn bytes_per_decision(
    bench: &Bench,
    connection: &mut Connection,
    approach: &dyn Approach,
    allowed: bool,
) -> Result<f64> {
    let before: f64 = info(connection, "replication", "master_repl_offset")?;
    let mut client = approach.client(usize::from(allowed), LIMIT);
    for number in 0..decisions(bench) {
        let decided = decide(connection, client.as_mut(), &key(number))?;
        ensure!(decided == allowed, "{}: bucket {number} should have been {allowed}", approach.name());
    }
    let after: f64 = info(connection, "replication", "master_repl_offset")?;
    Ok((after - before) / decisions(bench) as f64)
}
