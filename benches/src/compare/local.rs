//! One hot key, when clients decide what they can by themselves.

use super::contest::KEYS;
use super::{in_turns, over_grant, Bench};
use crate::approaches::{in_batches, remembering_denials, take, Approach};
use crate::load::{run, Load, Outcome};
use crate::report::{whole, Section, Table};
use crate::template::Limit;
use std::time::Duration;

const CLIENTS: usize = 64;

pub fn measure(bench: &mut Bench) -> Section {
    let mut table = Table::new("the key | approach | decisions/s | allowed/s | possible/s | over % | commands/decision | server CPU µs/decision");
    let approaches = [take(), in_batches(), remembering_denials()];
    for (name, limit) in [("has plenty", KEYS[0].limit), ("is empty", over_grant::LIMIT)] {
        let rounds = bench.pick(3, 1);
        let outcomes =
            in_turns(rounds, &format!("local decisions, the key {name}"), &approaches, |approach| {
                decide(bench, approach, limit)
            });
        for (approach, outcomes) in approaches.iter().zip(outcomes) {
            let outcome = super::contest::middle(outcomes);
            let a_second = |number: u64| whole(number as f64 / outcome.elapsed.as_secs_f64());
            table.row([
                name.to_owned(),
                approach.name.clone(),
                whole(outcome.decisions_a_second()),
                a_second(outcome.allowed),
                a_second(outcome.possible(limit)),
                format!("{:.2}", outcome.over_percent(limit)),
                format!("{:.4}", outcome.commands_per_decision()),
                format!("{:.3}", outcome.cpu_us_per_decision()),
            ]);
        }
    }
    let text = format!(
        "{CLIENTS} clients want one decision after the other of one key, without pipelining. *In batches*, each spends the tokens \
         that it fetched before it asks again. With *denials remembered*, each refuses by itself for `retry_after_ms`. A client \
         that decides by itself is bound by its own processor, which here is one core for all of them. *Possible* is what \
         one bucket can have allowed; of the key that is empty, what is possible and not allowed lies in batches that are not \
         spent yet."
    );
    Section::new("local", "Decisions by clients themselves", &text, table).grouped_by(1)
}

fn decide(bench: &mut Bench, approach: &Approach, limit: Limit) -> Outcome {
    // Not whole tokens' worth, as in the comparison of over-grant.
    let duration = Duration::from_millis(bench.pick(1050, 250));
    let load = Load { clients: CLIENTS, buckets: 1, limit, duration: Some(duration) };
    run(bench.server(approach.module), approach, load)
}
