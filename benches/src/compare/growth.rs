//! What a call costs as the number of buckets grows.

use super::{median, Bench, Effort, SETTLED_AT_S};
use crate::connection::Connection;
use crate::plot::{Lines, Panel, Series};
use crate::random::Random;
use crate::report::{times, whole, Section, Table};
use crate::resp::Batch;
use crate::server::Server;
use anyhow::Result;

/// A command on the keys of one server.
struct Command {
    name: &'static str,
    /// Makes a key.
    fill: fn(&str, &mut Batch),
    /// Is measured.
    call: fn(&str, &mut Batch),
}

const COMMANDS: [Command; 2] = [
    Command {
        name: "TB.TAKE",
        // Half empty, and refilled within a week: no measured call makes a difference to when the key has to expire.
        fill: |key, batch| batch.push(["TB.TAKE", key, "1000000", "1", "500000"]),
        call: |key, batch| batch.push(["TB.TAKE", key, "1000000", "1"]),
    },
    Command {
        name: "INCR",
        fill: |key, batch| batch.push(["INCR", key]),
        call: |key, batch| batch.push(["INCR", key]),
    },
];

pub fn steps(effort: &Effort) -> usize {
    COMMANDS.len() * effort.growth_keys.len()
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let take = costs(bench, &COMMANDS[0])?;
    let incr = costs(bench, &COMMANDS[1])?;
    let mut table = Table::new(&["buckets", "TB.TAKE µs", "to the first", "INCR µs", "to the first"]);
    for ((keys, take_us), incr_us) in bench.effort.growth_keys.iter().zip(&take).zip(&incr) {
        table.row([
            whole(*keys as f64),
            format!("{take_us:.3}"),
            times(take_us / take[0]),
            format!("{incr_us:.3}"),
            times(incr_us / incr[0]),
        ]);
    }
    Ok(Section {
        name: "growth",
        title: "Growth",
        text: format!(
            "Microseconds per call by the server's own count (`INFO commandstats`) on random ones of so many keys, beside INCR, \
             which shows what the server's tables and the machine's caches do to any command. The median of {} rounds.",
            bench.effort.rounds
        ),
        table,
        groups: 0,
        plots: vec![("growth".to_owned(), plot(bench, [take, incr]))],
    })
}

/// Microseconds per call at each number of keys.
fn costs(bench: &mut Bench, command: &Command) -> Result<Vec<f64>> {
    let server = Server::start(&bench.inspectable(Some(bench.paths.module))?)?;
    let mut connection = server.connect()?;
    let mut filled = 0;
    let mut costs = Vec::new();
    for &keys in bench.effort.growth_keys {
        bench.progress.step(format_args!("growth to {} keys: {}", whole(keys as f64), command.name));
        connection.pipeline(filled..keys, |number, batch| {
            (command.fill)(&key(number), batch);
            Ok(())
        })?;
        filled = keys;
        server.wait_for_hash_tables()?;
        server.wait_for_uptime(SETTLED_AT_S)?;
        let mut random = Random::new(1);
        let rounds = (0..bench.effort.rounds)
            .map(|_| round_us(&mut connection, command, keys, bench.effort.growth_calls, &mut random));
        costs.push(median(rounds.collect::<Result<_>>()?));
    }
    Ok(costs)
}

fn round_us(
    connection: &mut Connection,
    command: &Command,
    keys: u64,
    calls: u64,
    random: &mut Random,
) -> Result<f64> {
    connection.say("CONFIG RESETSTAT")?;
    connection.pipeline(0..calls, |_, batch| {
        (command.call)(&key(random.below(keys)), batch);
        Ok(())
    })?;
    connection.usec_per_call(command.name)
}

fn key(number: u64) -> String {
    format!("user:{number:07}")
}

fn plot(bench: &Bench, costs: [Vec<f64>; 2]) -> String {
    let series =
        COMMANDS.iter().zip(costs).map(|(command, values)| Series { name: command.name.to_owned(), values });
    Lines {
        title: "Microseconds per call as buckets grow in number",
        caption: &bench.caption,
        places: bench.effort.growth_keys.iter().map(|keys| whole(*keys as f64)).collect(),
        places_are: "buckets",
        values_are: "microseconds per call, as the server counts",
        panels: vec![Panel { title: "", series: series.collect() }],
    }
    .svg()
}
