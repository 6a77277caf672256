//! The report as text and as a page of HTML, which loads nothing else.

use minijinja::{context, Environment, Value};

use super::{json::json, plot, words, Report};

/// The widths of pictures on a desk and on a phone. The page shows one of both.
const WIDTHS: [f64; 2] = [760.0, 320.0];

/// Returns the report for a terminal.
///
/// # Errors
/// A mistake in the template.
pub fn text(report: &Report) -> Result<String, String> {
    render(report, "report.txt", include_str!("report.txt"), context! {})
}

/// Returns the page.
///
/// # Errors
/// A mistake in the template.
pub fn page(report: &Report) -> Result<String, String> {
    let periods = report.replays.iter().map(|(_, all)| WIDTHS.map(|width| plot::periods(all, width)));
    let capacities = WIDTHS.map(|width| plot::capacities(report, width));
    let pictures = context! { capacities, periods => periods.collect::<Vec<_>>() };
    render(report, "page.html", include_str!("page.html"), pictures)
}

/// Renders a template. One whose name ends in `html` escapes what it shows.
fn render(report: &Report, name: &str, template: &'static str, pictures: Value) -> Result<String, String> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(true);
    environment.add_filter("count", |number: i64| words::count(number));
    environment.add_filter("percent", words::percent);
    environment.add_filter("duration", |seconds: Option<f64>| {
        seconds.map_or_else(|| "for ever".to_owned(), |seconds| words::duration((seconds * 1e6) as i64))
    });
    environment
        .add_filter("time", |moment: String| moment.replace('T', " ").chars().take(19).collect::<String>());
    environment.add_filter("shown", |text: String| words::printable(text.as_bytes()));
    environment.add_filter("right", |text: String, width: usize| format!("{text:>width$}"));
    environment.add_filter("left", |text: String, width: usize| format!("{text:width$}"));
    environment.add_filter("widest", |rows: Vec<Value>| {
        let key = |row: &Value| Some(words::printable(row.get_attr("key").ok()?.as_str()?.as_bytes()));
        rows.iter().filter_map(key).map(|key| key.chars().count()).fold(18, usize::max)
    });
    environment.add_filter("blocks", |numbers: Vec<u64>| words::blocks(&numbers));
    let template = environment.template_from_named_str(name, template).map_err(|error| error.to_string())?;
    let is_coarse = report.log.tick_us() == 1_000_000 && !report.options.spread;
    let names = context! { keys_are => report.keys_are(), costs_are => report.costs_are().to_owned(), has_cost => report.options.cost.is_some(), is_coarse };
    let all = context! { ..Value::from_serialize(json(report)), ..names, ..pictures };
    template.render(all).map_err(|error| error.to_string())
}
