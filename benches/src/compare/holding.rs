//! Holding one of so many places, by clients that may die meanwhile.

use super::Bench;
use crate::approaches::{decide, Approach, Places, Then, COUNTER};
use crate::load::{run, Load};
use crate::report::{median, note, times, whole, Section, Table};
use crate::server::{info, Server};
use crate::template::{key, Limit};
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

const BUCKETS: u64 = 100;
const CLIENTS: usize = 16;
const HOLDS: u64 = 10_000;
/// What a hold of the module may take up.
const MOST_BYTES: f64 = 150.0;
const DEAD: u64 = 1000;
const RIVALS: usize = 64;
const FEW_PLACES: u64 = 10;
/// How long a place is given for where that is waited for, and where not.
const SHORT_MS: u64 = 1000;
const LONG_MS: u64 = 600_000;
/// Well after some of them have ended.
const CONTEST_MS: u64 = 3 * SHORT_MS + SHORT_MS / 2;

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let module = bench.arguments.module.clone();
    let (lasting, fleeting) = (Places::all(&module, LONG_MS), Places::all(&module, SHORT_MS));
    let speeds = speeds(bench, &lasting)?;
    let mut table = Table::new("way | speed | bytes a hold | leaked of 1,000 | in flight of 10");
    for ((lasting, fleeting), speed) in lasting.iter().zip(&fleeting).zip(speeds) {
        note(format_args!("memory, leaks and over-grant of places: {}", lasting.name()));
        let bytes = bytes_a_hold(bench, lasting)?;
        ensure!(lasting.module().is_none() || bytes <= MOST_BYTES, "a hold takes up {bytes:.0} bytes");
        let (leaked, in_flight) = (leaked(bench, fleeting)?, most_in_flight(bench, fleeting)?);
        let figures = [times(speed), format!("{bytes:.1}"), leaked.to_string(), in_flight.to_string()];
        table.row([lasting.name().to_owned()].into_iter().chain(figures));
    }
    let text = format!(
        "A pool of places (rate 0) beside counters and the script that is copied most. *Speed*: how many times as often as with \
         *{COUNTER}* {CLIENTS} clients are given a place and give it back, in {BUCKETS} pools with room for all; the median of \
         {} rounds in which all take turns. *Bytes a hold*: `used_memory` for {} places held in {BUCKETS} pools, under names \
         of 36 bytes, divided by their number. A counter knows no names, and a sorted set is packed while it has at most 128 \
         members. *Leaked*: {} clients die holding a place while another goes on; what is still taken after the {SHORT_MS} ms \
         for which places are given. *In flight*: the most of {RIVALS} clients that held a place of {FEW_PLACES} at once, each \
         for a few milliseconds, in {} s.",
        rounds(bench),
        whole(HOLDS as f64),
        whole(DEAD as f64),
        CONTEST_MS as f64 / 1000.0
    );
    Ok(Section::new("holding", "Holding a place", text, table))
}

fn pool(places: u64) -> Limit {
    Limit { capacity: places, count: 1, period_s: 3600 }
}

/// Many and short ones: what disturbs the machine disturbs all ways alike.
fn rounds(bench: &Bench) -> usize {
    bench.rounds * 3
}

/// How many times as fast as the counter each way is.
fn speeds(bench: &mut Bench, ways: &[Places]) -> Result<Vec<f64>> {
    let duration = Duration::from_millis(bench.pick(500, 100));
    let load = Load { clients: CLIENTS, buckets: BUCKETS, limit: pool(1000), duration: Some(duration) };
    let counter = ways.iter().position(|way| way.name() == COUNTER).context("no counter")?;
    let mut ratios = vec![Vec::new(); ways.len()];
    for round in 1..=rounds(bench) {
        note(format_args!("places, {CLIENTS} clients, round {round}"));
        let mut speeds = Vec::new();
        for way in ways {
            let outcome = run(bench.server(way.module())?, way, load)?;
            ensure!(outcome.allowed == outcome.decisions, "{} denied or failed", way.name());
            speeds.push(outcome.decisions_a_second());
        }
        ratios.iter_mut().zip(&speeds).for_each(|(ratios, speed)| ratios.push(speed / speeds[counter]));
    }
    Ok(ratios.iter().map(|ratios| median(ratios)).collect())
}

fn bytes_a_hold(bench: &Bench, way: &Places) -> Result<f64> {
    let server = Server::start(&bench.inspectable(way.module())?)?;
    let mut connection = server.connect()?;
    // What the server keeps for the connection is there by then.
    decide(&mut connection, way.client(0, pool(1)).as_mut(), &key(BUCKETS))?;
    let before: f64 = info(&mut connection, "memory", "used_memory")?;
    for number in 0..HOLDS {
        let mut client = way.and_then(Then::Die).client(number as usize, pool(HOLDS));
        ensure!(decide(&mut connection, client.as_mut(), &key(number % BUCKETS))?, "no place for {number}");
    }
    server.wait_for_hash_tables()?;
    let after: f64 = info(&mut connection, "memory", "used_memory")?;
    Ok((after - before) / HOLDS as f64)
}

/// Places that nobody holds and nobody is given, after the time for which they were given.
fn leaked(bench: &mut Bench, way: &Places) -> Result<u64> {
    let (dying, limit) = (way.and_then(Then::Die), pool(2 * DEAD));
    let mut connection = bench.server(way.module())?.connect()?;
    let mut numbers = 0..;
    let mut is_placed = |way: &Places| {
        let mut client = way.client(numbers.next().unwrap_or_default(), limit);
        decide(&mut connection, client.as_mut(), &key(0))
    };
    for _ in 0..DEAD {
        ensure!(is_placed(&dying)?, "{} has no place for all who die", way.name());
    }
    let last = Instant::now();
    while last.elapsed() <= Duration::from_millis(SHORT_MS + 1) {
        ensure!(is_placed(way)?, "{} has no place for who lives on", way.name());
    }
    let mut free = 0;
    while is_placed(&dying)? {
        free += 1;
    }
    Ok(limit.capacity.saturating_sub(free))
}

fn most_in_flight(bench: &mut Bench, way: &Places) -> Result<u64> {
    let duration = Duration::from_millis(CONTEST_MS);
    let load = Load { clients: RIVALS, buckets: 1, limit: pool(FEW_PLACES), duration: Some(duration) };
    let way = way.and_then(Then::Work(5));
    run(bench.server(way.module())?, &way, load)?;
    Ok(way.most_in_flight())
}
