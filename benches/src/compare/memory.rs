//! What a bucket takes up.

use super::{tidy, Bench, SLOW};
use crate::approaches::{integer_with_expiry, Approach};
use crate::load::{run, Load};
use crate::report::{note, whole, Section, Table};
use crate::server::wait_for_hash_tables;

const CLIENTS: usize = 16;

pub fn measure(bench: &Bench) -> Section {
    let keys = bench.pick(1_000_000, 100_000);
    let mut table = Table::new("approach | bytes a key");
    for approach in [integer_with_expiry()].iter().chain(bench.approaches.iter()) {
        note(format_args!("memory of {} keys: {}", whole(keys as f64), approach.name));
        table.row([approach.name.clone(), whole(bytes_a_key(approach, keys))]);
    }
    let text = format!(
        "`used_memory` for {} keys like `user:0000001`, each after its first decision and with its expiry, divided by their \
         number. A plain integer with an expiry is the least that any approach can have. A sorted set grows with each decision.",
        whole(keys as f64)
    );
    Section::new("memory", "Memory", text, table).bars(
        ("memory", "Memory of a key"),
        &[],
        ("bytes a key", " bytes"),
        &bench.caption,
    )
}

fn bytes_a_key(approach: &Approach, keys: u64) -> f64 {
    let server = tidy(approach.module);
    let mut client = server.connect();
    let before = client.used_memory();
    run(&server, approach, Load { clients: CLIENTS, buckets: keys, limit: SLOW, duration: None });
    wait_for_hash_tables(&server);
    (client.used_memory() - before) as f64 / keys as f64
}
