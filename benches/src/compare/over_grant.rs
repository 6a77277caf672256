//! How much passes that should not, when many clients want it at once.

use super::Bench;
use crate::load::{run, Load};
use crate::report::{note, whole, Section, Table};
use crate::template::Limit;
use std::time::Duration;

/// What is scarce.
pub const LIMIT: Limit = Limit { capacity: 10, count: 10, period_s: 1 };
const CLIENTS: usize = 64;

pub fn measure(bench: &mut Bench) -> Section {
    let mut table = Table::new("approach | decisions | errors | allowed | possible | over % | under by");
    let mut most_possible = 0;
    let approaches = bench.approaches.clone();
    // Not whole tokens' worth: whether the last token came before the end must not be a matter of microseconds.
    let duration = Duration::from_millis(bench.pick(3050, 1050));
    let load = Load { clients: CLIENTS, buckets: 1, limit: LIMIT, duration: Some(duration) };
    for approach in approaches.iter() {
        note(format_args!("over-grant: {}", approach.name));
        let outcome = run(bench.server(approach.module), approach, load);
        let possible = outcome.possible(LIMIT);
        let over = outcome.over_percent(LIMIT);
        let cell = |number: u64| whole(number as f64);
        table.row([
            approach.name.clone(),
            cell(outcome.decisions),
            cell(outcome.errors),
            cell(outcome.allowed),
            cell(possible),
            format!("{over:.2}"),
            cell(possible.saturating_sub(outcome.allowed)),
        ]);
        most_possible = most_possible.max(possible);
    }
    let title = format!("Allowed by {CLIENTS} clients on one key that can grant {most_possible}");
    let text = format!(
        "{CLIENTS} clients want as much as they can get of one key that holds {} tokens and refills with {} a second, for \
         {} s. *Possible* is the capacity and what flows in until the last reply. Approaches that count in windows \
         allow that many a window, and may allow less in the time.",
        LIMIT.capacity,
        LIMIT.count,
        duration.as_secs_f64()
    );
    Section::new("over-grant", "Over-grant", text, table).bars(
        ("over-grant", &title),
        &[],
        ("allowed", ""),
        &bench.caption,
    )
}
