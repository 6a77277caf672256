//! How much passes that should not, when many clients want it at once.

use super::Bench;
use crate::approaches::Approach;
use crate::limit::Limit;
use crate::load::{run, Load};
use crate::plot::{Bar, Bars};
use crate::report::{whole, Section, Table};
use anyhow::Result;
use std::time::Duration;

const LIMIT: Limit = Limit { capacity: 10, count: 10, period_s: 1 };
const CLIENTS: usize = 64;

/// What one approach let pass.
struct Grant {
    approach: String,
    decisions: u64,
    allowed: u64,
    errors: u64,
    elapsed: Duration,
}

impl Grant {
    /// The most tokens that there can have been.
    fn possible(&self) -> u64 {
        LIMIT.capacity + (LIMIT.rate() * self.elapsed.as_secs_f64()).floor() as u64
    }

    fn over_percent(&self) -> f64 {
        self.allowed.saturating_sub(self.possible()) as f64 * 100.0 / self.possible() as f64
    }

    fn under(&self) -> u64 {
        self.possible().saturating_sub(self.allowed)
    }
}

/// Peers that cannot be told the limit do not take part.
fn takes_part(approach: &dyn Approach) -> bool {
    approach.has_any_limit()
}

pub fn steps(approaches: &[Box<dyn Approach>]) -> usize {
    approaches.iter().filter(|approach| takes_part(approach.as_ref())).count()
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut grants = Vec::new();
    let approaches = bench.approaches.clone();
    let load = Load { clients: CLIENTS, buckets: 1, limit: LIMIT, duration: bench.effort.over_grant };
    for approach in approaches.iter().filter(|approach| takes_part(approach.as_ref())) {
        bench.progress.step(format_args!("over-grant: {}", approach.name()));
        let outcome = run(bench.server(approach.as_ref())?, approach.as_ref(), load)?;
        grants.push(Grant {
            approach: approach.name().to_owned(),
            decisions: outcome.decisions,
            allowed: outcome.allowed,
            errors: outcome.errors,
            elapsed: outcome.elapsed,
        });
    }
    Ok(Section {
        name: "over-grant",
        title: "Over-grant",
        text: format!(
            "{CLIENTS} clients want as much as they can get of one key that holds {} tokens and refills with {} a second, for \
             {} s. *Possible* is the capacity and what flows in until the last reply. Approaches that count in windows \
             allow that many a window, and may allow less in the time.",
            LIMIT.capacity,
            LIMIT.count,
            load.duration.as_secs_f64()
        ),
        table: table(&grants),
        groups: 0,
        plots: vec![("over-grant".to_owned(), plot(&grants, &bench.caption))],
    })
}

fn table(grants: &[Grant]) -> Table {
    let mut table =
        Table::new(&["approach", "decisions", "errors", "allowed", "possible", "over %", "under by"]);
    for grant in grants {
        table.row([
            grant.approach.clone(),
            whole(grant.decisions as f64),
            whole(grant.errors as f64),
            whole(grant.allowed as f64),
            whole(grant.possible() as f64),
            format!("{:.2}", grant.over_percent()),
            whole(grant.under() as f64),
        ]);
    }
    table
}

fn plot(grants: &[Grant], caption: &str) -> String {
    let bar = |grant: &Grant| Bar {
        label: grant.approach.clone(),
        value: grant.allowed as f64,
        text: format!(
            "{} of {} possible, {:.2} % over",
            whole(grant.allowed as f64),
            grant.possible(),
            grant.over_percent()
        ),
        own: Bar::is_own(&grant.approach),
    };
    let possible = grants.first().map_or(0, Grant::possible);
    Bars {
        title: "Allowed by 64 clients on one key that holds 10 and refills with 10 a second",
        caption,
        bars: grants.iter().map(bar).collect(),
        mark: Some((possible as f64, format!("possible: {possible}"))),
    }
    .svg()
}
