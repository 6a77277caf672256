//! What a decision sends to a replica.

use super::Bench;
use crate::approaches::{decide, Approach, Bucket};
use crate::connection::Connection;
use crate::limit::Limit;
use crate::report::{Section, Table};
use crate::server::Server;
use anyhow::{ensure, Result};

/// The first decision on a bucket is allowed, the second is not.
const LIMIT: Limit = Limit { capacity: 1, count: 1, period_s: 3600 };

fn taking_part(approaches: &[Box<dyn Approach>]) -> impl Iterator<Item = &dyn Approach> {
    approaches.iter().map(AsRef::as_ref).filter(|approach| approach.has_any_limit())
}

pub fn steps(approaches: &[Box<dyn Approach>]) -> usize {
    taking_part(approaches).count()
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut table = Table::new(&["approach", "bytes, allowed", "bytes, denied"]);
    let approaches = bench.approaches.clone();
    for approach in taking_part(&approaches) {
        bench.progress.step(format_args!("replication: {}", approach.name()));
        let [allowed, denied] = bytes(bench, approach)?;
        table.row([approach.name().to_owned(), format!("{allowed:.1}"), format!("{denied:.1}")]);
    }
    Ok(Section {
        name: "replication",
        title: "Replication",
        text: format!(
            "Bytes of the replication stream per decision, over {} buckets with keys of 12 bytes and a replica attached. An \
             approach that sends nothing when it allows loses its buckets in a failover.",
            bench.effort.replicated
        ),
        table,
        groups: 0,
        plots: Vec::new(),
    })
}

/// Bytes per allowed and per denied decision.
fn bytes(bench: &Bench, approach: &dyn Approach) -> Result<[f64; 2]> {
    // The primary's own pings are none of the approach's.
    let setup = bench
        .setup(approach.module(bench.paths.module))
        .option("repl-ping-replica-period", 3600)
        .option("repl-diskless-sync-delay", 0);
    let primary = Server::start(&setup)?;
    let _replica = Server::start(&setup.option("replicaof", format!("127.0.0.1 {}", primary.port())))?;
    primary.wait_for_replica()?;
    let mut connection = primary.connect()?;
    approach.load(&mut connection)?;
    // The first write also says which database it is for.
    decide(&mut connection, approach.client(0).as_mut(), &Bucket { key: "first".to_owned(), limit: LIMIT })?;
    let allowed = bytes_per_decision(&mut connection, approach, bench.effort.replicated, true)?;
    let denied = bytes_per_decision(&mut connection, approach, bench.effort.replicated, false)?;
    Ok([allowed, denied])
}

fn bytes_per_decision(
    connection: &mut Connection,
    approach: &dyn Approach,
    decisions: u64,
    allowed: bool,
) -> Result<f64> {
    let before = offset(connection)?;
    let mut client = approach.client(usize::from(allowed));
    for number in 0..decisions {
        let bucket = Bucket::of_user(number, LIMIT);
        let decision = decide(connection, client.as_mut(), &bucket)?;
        ensure!(decision == allowed, "{}: {bucket:?} should have been {allowed}", approach.name());
    }
    Ok((offset(connection)? - before) / decisions as f64)
}

fn offset(connection: &mut Connection) -> Result<f64> {
    connection.info("replication")?.number("master_repl_offset")
}
