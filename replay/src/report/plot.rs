//! Pictures of the report, as SVG. Their colours are variables of the page, so that they follow its light or dark scheme.

use std::fmt::Write;

use super::words::{count, time};
use super::Report;
use crate::replay::Replayed;

const BELOW: f64 = 30.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 84.0;
/// Between the names of two lines.
const LINE: f64 = 15.0;

/// Returns the capacities over the rates, a line for each part of the keys, in a picture of this width.
#[must_use]
pub fn capacities(report: &Report, width: f64) -> String {
    let (rows, suggestion) = (&report.table.rows, report.suggestion.as_ref());
    let (top, bottom) = (28.0, (width * 0.6).clamp(250.0, 340.0) - BELOW);
    let most = rows.iter().flat_map(|row| &row.capacities).max().copied().unwrap_or(1).max(2) as f64;
    let step = (width - LEFT - RIGHT) / (rows.len().max(2) - 1) as f64;
    let x = |place: usize| LEFT + place as f64 * step;
    let y = |capacity: i64| bottom - (capacity.max(1) as f64).ln() / most.ln() * (bottom - top);

    let mut svg = begin(
        width,
        bottom + BELOW,
        "The least capacity that would have denied a part of the clients, for each rate",
    );
    let digits: &[i64] = if most < 1e5 { &[1, 3] } else { &[1] };
    let powers = (0..13).flat_map(|power| digits.iter().map(move |digit| digit * 10i64.pow(power)));
    for capacity in powers.filter(|capacity| *capacity as f64 <= most * 1.05) {
        line(&mut svg, "grid", LEFT, y(capacity), width - RIGHT, y(capacity));
        label(&mut svg, "end", LEFT - 8.0, y(capacity) + 4.0, &short(capacity));
    }
    label(&mut svg, "start", 4.0, 12.0, "capacity");
    label(&mut svg, "end", width - 4.0, bottom + 20.0, "rate");
    let every = (52.0 / step).ceil().max(1.0) as usize;
    for (place, row) in rows.iter().enumerate().step_by(every) {
        label(&mut svg, "middle", x(place), bottom + 20.0, &row.rate.name);
    }
    let mut names = Vec::new();
    for (column, (_, words)) in report.table.denied.iter().enumerate().rev() {
        let heights: Vec<f64> =
            rows.iter().filter_map(|row| row.capacities.get(column)).map(|at| y(*at)).collect();
        let points = heights
            .iter()
            .enumerate()
            .fold(String::new(), |points, (place, y)| format!("{points}{:.1},{y:.1} ", x(place)));
        let _ = write!(svg, r#"<polyline class="line c{column}" points="{points}"/>"#);
        for ((place, row), y) in rows.iter().enumerate().zip(&heights) {
            let capacity = row.capacities.get(column).copied().unwrap_or(0);
            let _ = write!(
                svg,
                r#"<circle class="dot c{column}" cx="{:.1}" cy="{y:.1}" r="3"><title>{} at {}: denies {words}</title></circle>"#,
                x(place),
                count(capacity),
                row.rate.name
            );
        }
        names.push((heights.last().copied().unwrap_or(bottom), column, *words));
    }
    names.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    // The lowest stays above the bottom, and all others above the next.
    let mut below = bottom + LINE;
    for (height, column, words) in names.into_iter().rev() {
        below = height.min(below - LINE);
        let _ = write!(
            svg,
            r#"<text class="name c{column}" x="{:.1}" y="{:.1}">{words}</text>"#,
            width - RIGHT + 10.0,
            below + 4.0
        );
    }
    let marked =
        suggestion.and_then(|limit| Some((limit, rows.iter().position(|row| row.rate == limit.rate)?)));
    if let Some((limit, place)) = marked {
        let (x, y) = (x(place), y(limit.capacity));
        let _ = write!(svg, r#"<circle class="mark" cx="{x:.1}" cy="{y:.1}" r="7"/>"#);
    }
    svg + "</svg>"
}

/// Returns the requests of each period, and above all the denied ones.
#[must_use]
pub fn periods(all: &Replayed, width: f64) -> String {
    let (top, bottom, right) = (14.0, 130.0, width - 8.0);
    let most = all.periods.iter().map(|(requests, _)| *requests).max().unwrap_or(1).max(1) as f64;
    let step = (right - LEFT) / all.periods.len().max(1) as f64;
    let height = |number: u64| number as f64 / most * (bottom - top);
    let mut svg = begin(width, bottom + BELOW, "Requests over time, and those that are denied");
    for (part, number) in [(0.0, 0), (1.0, most as u64)] {
        let y = bottom - part * (bottom - top);
        line(&mut svg, "grid", LEFT, y, right, y);
        label(&mut svg, "end", LEFT - 8.0, y + 4.0, &count(number));
    }
    for (place, (requests, denied)) in
        all.periods.iter().enumerate().filter(|(_, (requests, _))| *requests > 0)
    {
        let x = LEFT + place as f64 * step;
        let from = time(all.first_period_us + place as i64 * all.period_us);
        let _ = write!(svg, "<g><title>{from}: {} of {} denied</title>", count(*denied), count(*requests));
        for (class, number) in [("all", requests), ("denied", denied)] {
            let (wide, high) = ((step * 0.85).max(1.0), height(*number));
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{x:.1}" y="{:.1}" width="{wide:.1}" height="{high:.1}"/>"#,
                bottom - high
            );
        }
        svg.push_str("</g>");
    }
    let last_us = all.first_period_us + all.periods.len() as i64 * all.period_us;
    for (side, x, us) in [("start", LEFT, all.first_period_us), ("end", right, last_us)] {
        let moment = time(us);
        label(&mut svg, side, x, bottom + 20.0, moment.get(..16).unwrap_or(&moment));
    }
    svg + "</svg>"
}

/// Returns `300`, `10k` or `3M`.
fn short(number: i64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k"), (1, "")];
    let unit = units.into_iter().find(|(unit, _)| number >= *unit);
    unit.map_or_else(String::new, |(unit, name)| format!("{}{name}", number / unit))
}

fn begin(width: f64, height: f64, title: &str) -> String {
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="w{width}" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">"#
    )
}

fn line(svg: &mut String, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
    let _ = write!(svg, r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
}

fn label(svg: &mut String, anchor: &str, x: f64, y: f64, text: &str) {
    let _ = write!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}
