//! What a call costs as the number of buckets grows.

use super::{median, Bench, Effort};
use crate::approaches::{Approach, Take};
use crate::calls::key;
use crate::connection::Connection;
use crate::limit::Limit;
use crate::load::{run, Load};
use crate::plot::{Lines, Panel, Series};
use crate::random::Random;
use crate::report::{times, whole, Section, Table};
use crate::resp::Batch;
use crate::server::Server;
use anyhow::Result;

/// Clients without pipelining.
const CLIENTS: usize = 16;
/// The limit of the calls below.
const LIMIT: Limit = Limit { capacity: 1_000_000, count: 1, period_s: 1 };

/// A command on the keys of one server.
struct Command {
    name: &'static str,
    /// Makes a key.
    fill: fn(&str, &mut Batch),
    /// Is measured.
    call: fn(&str, &mut Batch),
    /// Makes the same call without pipelining.
    approach: Option<&'static dyn Approach>,
}

const COMMANDS: [Command; 2] = [
    Command {
        name: "TB.TAKE",
        // Half empty, and refilled within a week: no measured call makes a difference to when the key has to expire.
        fill: |key, batch| batch.push(["TB.TAKE", key, "1000000", "1", "500000"]),
        call: |key, batch| batch.push(["TB.TAKE", key, "1000000", "1"]),
        approach: Some(&Take),
    },
    Command {
        name: "INCR",
        // With an expiry, as a counter that limits has.
        fill: |key, batch| batch.push(["SET", key, "1", "EX", "500000"]),
        call: |key, batch| batch.push(["INCR", key]),
        approach: None,
    },
];

pub fn steps(effort: &Effort) -> usize {
    COMMANDS.len() * effort.growth_keys.len()
}

/// What a call costs at one number of keys, in microseconds.
struct Cost {
    /// In the command, by the server's own count.
    in_call_us: f64,
    /// Of the server's process, reading and sending included, without pipelining.
    process_us: Option<f64>,
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let take = costs(bench, &COMMANDS[0])?;
    let incr = costs(bench, &COMMANDS[1])?;
    let mut table = Table::new(&[
        "buckets",
        "TB.TAKE, server CPU µs",
        "to the first",
        "TB.TAKE, in the call µs",
        "to the first",
        "INCR, in the call µs",
        "to the first",
    ]);
    for ((keys, take_cost), incr_cost) in bench.effort.growth_keys.iter().zip(&take).zip(&incr) {
        let process = [take_cost.process_us, take[0].process_us].map(Option::unwrap_or_default);
        let columns =
            [process, [take_cost.in_call_us, take[0].in_call_us], [incr_cost.in_call_us, incr[0].in_call_us]];
        let cells = columns.iter().flat_map(|[cost, first]| [format!("{cost:.3}"), times(cost / first)]);
        table.row([whole(*keys as f64)].into_iter().chain(cells));
    }
    Ok(Section {
        name: "growth",
        title: "Growth",
        text: format!(
            "What a call on a random one of so many keys costs. *Server CPU* is the processor time of the server's process for a \
             decision by {CLIENTS} clients without pipelining; *in the call* is the server's own count (`INFO commandstats`), \
             where pipelined calls find little in the processor's caches. INCR, of a key with an expiry, shows \
             what the server's tables and the machine's memory do to any command. The median of {} rounds.",
            bench.effort.rounds
        ),
        table,
        groups: 0,
        plots: vec![("growth".to_owned(), plot(bench, [take, incr]))],
    })
}

/// The cost at each number of keys.
fn costs(bench: &mut Bench, command: &Command) -> Result<Vec<Cost>> {
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
        // Also for INCR: both find the machine in the same state.
        server.wait_until_settled()?;
        costs.push(cost(bench.effort, &server, command, keys)?);
    }
    Ok(costs)
}

fn cost(effort: &Effort, server: &Server, command: &Command, keys: u64) -> Result<Cost> {
    let mut connection = server.connect()?;
    let mut random = Random::new(1);
    let in_call = (0..effort.rounds)
        .map(|_| round_us(&mut connection, command, keys, effort.growth_calls, &mut random))
        .collect::<Result<_>>()?;
    let process = |approach: &dyn Approach| -> Result<f64> {
        let load = Load { clients: CLIENTS, buckets: keys, limit: LIMIT, duration: effort.latency };
        let rounds = (0..effort.rounds).map(|_| {
            let outcome = run(server, approach, load)?;
            Ok(outcome.per_decision(outcome.server_cpu_us))
        });
        Ok(median(rounds.collect::<Result<_>>()?))
    };
    Ok(Cost { in_call_us: median(in_call), process_us: command.approach.map(process).transpose()? })
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

fn plot(bench: &Bench, costs: [Vec<Cost>; 2]) -> String {
    let series = COMMANDS.iter().zip(costs).map(|(command, costs)| Series {
        name: command.name.to_owned(),
        values: costs.iter().map(|cost| cost.in_call_us).collect(),
    });
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
