//! What a bucket takes up.

use super::{Bench, SLOW};
use crate::approaches::{integer_with_expiry, Approach};
use crate::load::{run, Load};
use crate::plot::Bar;
use crate::report::{note, whole, Section, Table};
use crate::server::{info, Server};
use anyhow::Result;

const CLIENTS: usize = 16;

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let keys = bench.pick(1_000_000, 100_000);
    let integer = integer_with_expiry();
    let approaches = bench.approaches.clone();
    let mut table = Table::new("approach | bytes a key");
    let mut bars = Vec::new();
    let all = [&integer as &dyn Approach].into_iter().chain(approaches.iter().map(AsRef::as_ref));
    for approach in all {
        note(format_args!("memory of {} keys: {}", whole(keys as f64), approach.name()));
        let bytes = bytes_a_key(bench, approach, keys)?;
        table.row([approach.name().to_owned(), whole(bytes)]);
        bars.push(Bar::new(approach.name(), bytes, |bytes| format!("{} bytes", whole(bytes))));
    }
    let text = format!(
        "`used_memory` for {} keys like `user:0000001`, each after its first decision and with its expiry, divided by their \
         number. A plain integer with an expiry is the least that any approach can have. A sorted set grows with each decision.",
        whole(keys as f64)
    );
    Ok(Section::new("memory", "Memory", text, table)
        .plot("memory", Bar::plot("Memory of a key", &bench.caption, bars.into_iter(), None)?))
}

fn bytes_a_key(bench: &Bench, approach: &dyn Approach, keys: u64) -> Result<f64> {
    let server = Server::start(&bench.inspectable(approach.module())?)?;
    let mut connection = server.connect()?;
    let before: f64 = info(&mut connection, "memory", "used_memory")?;
    run(&server, approach, Load { clients: CLIENTS, buckets: keys, limit: SLOW, duration: None })?;
    server.wait_for_hash_tables()?;
    let after: f64 = info(&mut connection, "memory", "used_memory")?;
    Ok((after - before) / keys as f64)
}
