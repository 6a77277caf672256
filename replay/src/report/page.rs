//! The report as a page of HTML, which loads nothing else.

use minijinja::{context, Environment, Value};

use super::words::{count, duration, percent, time};
use super::{paste, plot, text, Report};
use crate::options::NamedLimit;
use crate::replay::Replayed;

/// The widths of pictures on a desk and on a phone. The page shows one of both.
const WIDTHS: [f64; 2] = [760.0, 320.0];

/// Returns the page.
///
/// # Errors
/// A mistake in the template.
pub fn page(report: &Report) -> Result<String, String> {
    let environment = Environment::new();
    let template = environment.template_from_named_str("page.html", include_str!("page.html"));
    let rows = report.table.rows.iter().map(|row| {
        let is_suggested = report.suggestion.as_ref().is_some_and(|limit| limit.rate == row.rate);
        context! { rate => row.rate.name.clone(), capacities => row.capacities.iter().map(|at| count(*at)).collect::<Vec<_>>(), is_suggested }
    });
    let versus = report.versus.as_ref().map(|versus| {
        let changes = versus.changes.iter().map(|(key, requests, denied)| {
            context! { key => report.key(*key), requests => count(*requests), denied => denied.map(count) }
        });
        let limits = report.replays.iter().map(|(limits, _)| text::joined(limits)).collect::<Vec<_>>();
        context! { limits, keys => versus.keys.map(count), changes => changes.collect::<Vec<_>>() }
    });
    let head = text::head(report);
    let last = report.replays.last();
    let context = context! {
        head => head.lines().take(report.reading.sources.len() + 1).map(ToOwned::to_owned).collect::<Vec<_>>(),
        notes => text::notes(report),
        keys_are => report.keys_are(),
        suggestion => text::suggestion(report),
        suggested => report.suggestion.as_ref().map(|limit| limit.denied),
        denied => report.table.denied.iter().map(|(_, words)| *words).collect::<Vec<_>>(),
        rows => rows.collect::<Vec<_>>(),
        capacities => WIDTHS.map(|width| plot::capacities(report, width)),
        replays => report.replays.iter().map(|(limits, all)| replay(report, limits, all)).collect::<Vec<_>>(),
        versus,
        limit => last.map(|(limits, _)| text::joined(limits)),
        paste => last.map(|(limits, _)| paste::paste(report, limits)),
    };
    template.and_then(|template| template.render(context)).map_err(|error| error.to_string())
}

fn replay(report: &Report, limits: &[NamedLimit], all: &Replayed) -> Value {
    let requests = report.reading.requests;
    let most_denied = all.most_denied.iter().map(|denied| {
        let longest = denied.longest_us.map_or_else(|| "for ever".to_owned(), duration);
        let (key, first) = (report.key(denied.key), time(denied.first_us));
        context! { key, denied => count(denied.denied), requests => count(denied.requests), first, longest }
    });
    context! {
        limit => text::joined(limits),
        tiles => [
            ("requests denied", percent(all.denied as f64, requests as f64), format!("{} of {}", count(all.denied), count(requests))),
            (
                if report.keys_are() == "addresses" { "addresses denied" } else { "keys denied" },
                percent(all.keys as f64, report.log.count_keys() as f64),
                format!("{} of {}", count(all.keys), count(report.log.count_keys() as u64)),
            ),
            ("of the cost passed", percent(all.passed_micro as f64, all.cost_micro as f64), String::new()),
        ],
        period => all.period(),
        periods => WIDTHS.map(|width| plot::periods(all, width)),
        most_denied => most_denied.collect::<Vec<_>>(),
    }
}
