//! The report on a terminal.

use std::fmt::Write;

use super::words::{blocks, count, duration, percent, printable, time};
use super::{paste::paste, Report};
use crate::options::NamedLimit;
use crate::replay::{Replayed, Versus};

/// Returns the whole report.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = head(report);
    text.push('\n');
    text.push_str(&table(report));
    if let Some(sentence) = suggestion(report) {
        let _ = write!(text, "\n{sentence}\n");
    }
    for (limits, replayed) in &report.replays {
        text.push('\n');
        text.push_str(&replay(report, limits, replayed));
    }
    if let (Some(versus), [(one, _), (other, _)]) = (&report.versus, report.replays.as_slice()) {
        text.push('\n');
        text.push_str(&beside(report, versus, &joined(one), &joined(other)));
    }
    if let Some((limits, _)) = report.replays.last() {
        let _ = write!(text, "\nTo use {}:\n", joined(limits));
        for (place, lines) in paste(report, limits) {
            let lines = lines.replace('\n', &format!("\n{:14}", ""));
            let _ = writeln!(text, "  {place:10}  {lines}");
        }
    }
    text
}

/// Returns limits that hold together, in words.
pub fn joined(limits: &[NamedLimit]) -> String {
    limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// Returns what was read.
pub fn head(report: &Report) -> String {
    let (reading, (first_us, last_us)) = (report.reading, report.log.span_us());
    let mut text = String::new();
    for (name, format) in &reading.sources {
        let _ = writeln!(text, "{name}: {format}");
    }
    let _ = writeln!(
        text,
        "{} requests of {} {} in {}, {} to {} UTC",
        count(reading.requests),
        count(report.log.count_keys() as u64),
        report.keys_are(),
        duration(last_us - first_us),
        time(first_us),
        time(last_us)
    );
    for note in notes(report) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Returns what a reader has to know about the lines, a sentence each.
pub fn notes(report: &Report) -> Vec<String> {
    let (reading, options, mut notes) = (report.reading, report.options, Vec::new());
    if let Some(of) = options.sample {
        notes.push(format!("A sample: one key of {of}, with all of its requests."));
    }
    let mut add = |lines: u64, words: String| {
        if lines > 0 {
            notes.push(format!("{} lines {words}.", count(lines)))
        }
    };
    add(reading.left_out, "are left out by --where".into());
    add(reading.without_key, format!("have no {}", options.by.join(" or no ")));
    add(reading.without_cost, format!("have no {}, and cost nothing", report.costs_are()));
    add(reading.unread, "cannot be read".into());
    for line in &reading.first_unread {
        let shown = if options.anonymize { "…".into() } else { printable(&line.text) };
        notes.push(format!("  {}:{}: {}: {shown}", line.source, line.line, line.reason));
    }
    if report.clock_is_coarse() {
        notes.push("The times are whole seconds: requests of one second count as simultaneous. --spread distributes them.".into());
    }
    notes
}

fn table(report: &Report) -> String {
    let table = &report.table;
    let cells = |first: &str, cells: Vec<String>| {
        cells
            .iter()
            .fold(format!("{first:9}"), |line, cell| format!("{line}{cell:>12}"))
            .trim_end()
            .to_owned()
            + "\n"
    };
    let mut text = "          the least capacity that would have denied\n".to_owned();
    text.push_str(
        cells("rate", table.denied.iter().map(|(_, words)| (*words).to_owned()).collect()).trim_end(),
    );
    let of = if table.denied.len() > 1 { format!("  of the {}", report.keys_are()) } else { String::new() };
    let _ = writeln!(text, "{of}");
    for row in &table.rows {
        text.push_str(&cells(
            &row.rate.name,
            row.capacities.iter().map(|capacity| count(*capacity)).collect(),
        ));
    }
    text
}

/// Returns the sentence that points at a limit.
pub fn suggestion(report: &Report) -> Option<String> {
    let limit = report.suggestion.as_ref()?;
    let (denied, keys, costs) = (limit.denied, report.keys_are(), report.costs_are());
    let denied =
        if denied == "nobody" { denied.to_owned() } else { format!("at most {denied} of the {keys}") };
    let (passes, within) = (count(limit.passes), limit.within);
    Some(format!(
        "Worth trying: {} {}. Of the limits in the table that deny {denied}, it lets the least through in {within}: {passes} {costs}.",
        limit.capacity, limit.rate.name
    ))
}

fn replay(report: &Report, limits: &[NamedLimit], all: &Replayed) -> String {
    let requests = report.reading.requests;
    let mut text = format!(
        "{}: {} of {} requests denied ({}), of {} of {} {}",
        joined(limits),
        count(all.denied),
        count(requests),
        percent(all.denied as f64, requests as f64),
        count(all.keys),
        count(report.log.count_keys() as u64),
        report.keys_are(),
    );
    if report.options.cost.is_some() {
        let passed = percent(all.passed_micro as f64, all.cost_micro as f64);
        let _ = write!(text, "; {passed} of the {} passed", report.costs_are());
    }
    text.push('\n');
    if all.denied == 0 {
        return text;
    }
    let denied: Vec<u64> = all.periods.iter().map(|(_, denied)| *denied).collect();
    let (most, place) =
        denied.iter().zip(0..).map(|(denied, place)| (*denied, -place)).max().unwrap_or_default();
    let worst_us = all.first_period_us - place * all.period_us;
    let _ = writeln!(
        text,
        "by {}  {}  most, {}, from {}\n",
        all.period(),
        blocks(&denied),
        count(most),
        time(worst_us)
    );
    let rows = all.most_denied.iter().map(|denied| {
        let longest = denied.longest_us.map_or_else(|| "for ever".to_owned(), duration);
        [report.key(denied.key), count(denied.denied), count(denied.requests), time(denied.first_us), longest]
    });
    let header =
        ["denied most", "denied", "of", "first denial (UTC)", "longest shut out"].map(ToOwned::to_owned);
    text.push_str(&aligned([header].into_iter().chain(rows).collect()));
    text
}

fn beside(report: &Report, versus: &Versus, one: &str, other: &str) -> String {
    let [both, only_one, only_other] = versus.keys.map(count);
    let keys = report.keys_are();
    let mut text = format!("{one} beside {other}: both deny {both} {keys}, only the first {only_one}, only the second {only_other}\n");
    if !versus.changes.is_empty() {
        let rows = versus.changes.iter().map(|(key, requests, [first, second])| {
            [report.key(*key), count(*requests), count(*first), count(*second)]
        });
        let header =
            ["denied differently".to_owned(), "requests".to_owned(), one.to_owned(), other.to_owned()];
        text.push('\n');
        text.push_str(&aligned([header].into_iter().chain(rows).collect()));
    }
    text
}

/// Returns lines with the first column to the left, and the others to the right.
fn aligned<const N: usize>(rows: Vec<[String; N]>) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    rows.iter().fold(String::new(), |mut text, row| {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ =
                if column == 0 { write!(text, "{cell:width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text + "\n"
    })
}
