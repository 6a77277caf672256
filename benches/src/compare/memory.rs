//! What a bucket takes up.

use super::{fill, Bench, SLOW};
use crate::approaches::{Approach, Bucket, SetWithExpiry};
use crate::plot::{Bar, Bars};
use crate::report::{whole, Section, Table};
use crate::resp::Batch;
use crate::server::Server;
use anyhow::Result;

/// The approaches whose buckets can be made without waiting for replies. The clients' own hashes are the script's.
fn taking_part(approaches: &[Box<dyn Approach>]) -> Vec<&dyn Approach> {
    let bucket = Bucket { key: String::new(), limit: SLOW };
    let mut taking_part: Vec<&dyn Approach> = vec![&SetWithExpiry];
    let can = |approach: &&dyn Approach| approach.write_at_once(&bucket, &mut Batch::new()).unwrap_or(false);
    taking_part.extend(approaches.iter().map(AsRef::as_ref).filter(can));
    taking_part
}

pub fn steps(approaches: &[Box<dyn Approach>]) -> usize {
    taking_part(approaches).len()
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let keys = bench.effort.memory_keys;
    let approaches = bench.approaches.clone();
    let mut sizes = Vec::new();
    for approach in taking_part(&approaches) {
        bench.progress.step(format_args!("memory of {} keys: {}", whole(keys as f64), approach.name()));
        sizes.push((approach.name().to_owned(), bytes_a_key(bench, approach)?));
    }
    Ok(Section {
        name: "memory",
        title: "Memory",
        text: format!(
            "`used_memory` for {} keys like `user:0000001`, each after its first decision and with its expiry, divided by their \
             number. A plain integer with an expiry is the least that any approach can have. A sorted set grows with each decision.",
            whole(keys as f64)
        ),
        table: table(&sizes),
        groups: 0,
        plots: vec![("memory".to_owned(), plot(&sizes, &bench.caption))],
    })
}

fn bytes_a_key(bench: &Bench, approach: &dyn Approach) -> Result<f64> {
    let server = Server::start(&bench.inspectable(approach.module(bench.paths.module))?)?;
    let mut connection = server.connect()?;
    approach.load(&mut connection)?;
    let before = connection.info("memory")?.number("used_memory")?;
    let keys = bench.effort.memory_keys;
    fill(&mut connection, approach, 0..keys, SLOW)?;
    server.wait_for_hash_tables()?;
    let after = connection.info("memory")?.number("used_memory")?;
    Ok((after - before) / keys as f64)
}

fn table(sizes: &[(String, f64)]) -> Table {
    let mut table = Table::new(&["approach", "bytes a key"]);
    sizes.iter().for_each(|(name, bytes)| table.row([name.clone(), whole(*bytes)]));
    table
}

fn plot(sizes: &[(String, f64)], caption: &str) -> String {
    let bar = |(name, bytes): &(String, f64)| Bar {
        label: name.clone(),
        value: *bytes,
        text: format!("{} bytes", whole(*bytes)),
        own: Bar::is_own(name),
    };
    Bars { title: "Memory of a key", caption, bars: sizes.iter().map(bar).collect(), mark: None }.svg()
}
