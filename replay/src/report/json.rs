//! The report as JSON, from which the text and the page are made too.

use serde_json::{json, Value};
use tokenbucket_core::number::MICRO_PER_TOKEN;

use super::words::moment;
use super::{paste::paste, Report};
use crate::options::NamedLimit;
use crate::replay::Replayed;

/// Returns the whole report. Times are RFC 3339, durations seconds, and costs tokens.
#[must_use]
pub fn json(report: &Report) -> Value {
    let (reading, (first_us, last_us)) = (report.reading, report.log.span_us());
    let first_unread = reading.first_unread.iter().map(|line| {
        let text = (!report.options.anonymize).then(|| String::from_utf8_lossy(&line.text));
        json!({"source": line.source, "line": line.line, "reason": line.reason, "text": text})
    });
    let sources = reading.sources.iter().map(|(name, format)| json!({"name": name, "format": format}));
    let denied = report.table.denied.iter().map(|(keys, part)| json!({"keys": keys, "part": part}));
    let rows = report.table.rows.iter();
    let rows = rows.map(|row| json!({"rate": row.rate.name, "capacities": row.capacities}));
    let suggestion = report.suggestion.as_ref().map(|limit| {
        json!({"capacity": limit.capacity, "rate": limit.rate.name, "denies": limit.denied, "passes": limit.passes, "within": limit.within})
    });
    let versus = report.versus.as_ref().map(|versus| {
        let [both, first, second] = versus.keys;
        let changes = versus.changes.iter().map(|(key, requests, denied)| {
            json!({"key": report.key(*key), "requests": requests, "denied": denied})
        });
        let keys = json!({"both": both, "only_first": first, "only_second": second});
        json!({"keys": keys, "changes": changes.collect::<Value>()})
    });
    let paste = report.replays.last().map(|(limits, _)| paste(report, limits)).unwrap_or_default();
    json!({
        "sources": sources.collect::<Value>(),
        "by": report.options.by,
        "requests": reading.requests,
        "keys": report.log.count_keys(),
        "from": moment(first_us),
        "to": moment(last_us),
        "seconds": (last_us - first_us) as f64 / 1e6,
        "unread": {"lines": reading.unread, "first": first_unread.collect::<Value>()},
        "left_out": reading.left_out,
        "without_key": reading.without_key,
        "without_cost": reading.without_cost,
        "sample": report.options.sample,
        "whole_seconds": report.log.tick_us() == 1_000_000,
        "spread": report.options.spread,
        "table": {"denied": denied.collect::<Value>(), "rows": rows.collect::<Value>()},
        "suggestion": suggestion,
        "replays": report.replays.iter().map(|(limits, all)| replay(report, limits, all)).collect::<Value>(),
        "versus": versus,
        "paste": paste.iter().map(|(place, lines)| json!({"place": place, "lines": lines})).collect::<Value>(),
    })
}

fn replay(report: &Report, limits: &[NamedLimit], all: &Replayed) -> Value {
    let periods = all.periods.iter().zip(0..).map(|((requests, denied), place)| {
        let from = moment(all.first_period_us + place * all.period_us);
        json!({"from": from, "requests": requests, "denied": denied})
    });
    let most_denied = all.most_denied.iter().map(|denied| {
        let (key, first, longest_us) = (report.key(denied.key), moment(denied.first_us), denied.longest_us);
        let longest_s = longest_us.map(|us| us as f64 / 1e6);
        json!({"key": key, "requests": denied.requests, "denied": denied.denied, "first": first, "longest_shut_out_s": longest_s})
    });
    json!({
        "limits": limits.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "denied": all.denied,
        "keys_denied": all.keys,
        "cost": all.cost_micro as f64 / MICRO_PER_TOKEN as f64,
        "cost_passed": all.passed_micro as f64 / MICRO_PER_TOKEN as f64,
        "period": all.period(),
        "periods": periods.collect::<Value>(),
        "most_denied": most_denied.collect::<Value>(),
    })
}
