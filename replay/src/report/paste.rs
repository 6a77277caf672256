//! Limits as they are written where they are used.

use serde_json::json;
use tokenbucket_core::number::MICRO_PER_TOKEN;

use super::{last_name, Report};
use crate::options::NamedLimit;

/// Returns the places, and what to paste there.
#[must_use]
pub fn paste(report: &Report, limits: &[NamedLimit]) -> Vec<(&'static str, String)> {
    let cost = report.options.cost.as_ref().map(|name| format!("<{}>", last_name(name)));
    let names: Vec<_> = report.options.by.iter().map(|name| last_name(name)).collect();
    let (by, name) =
        (names.join(":"), names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(":"));
    let each = |line: &dyn Fn(&NamedLimit) -> String| limits.iter().map(line).collect::<Vec<_>>().join("\n");
    let redis = match limits {
        [limit] => format!("TB.TAKE {by}:{name} {limit} {}", cost.unwrap_or_default()),
        _ => {
            let cost = cost.unwrap_or_else(|| "1".to_owned());
            let groups = limits
                .iter()
                .zip(1..)
                .map(|(limit, place)| format!(" {{{by}:{name}}}:{place} {limit} {cost}"));
            format!("TB.MTAKE {}{}", limits.len(), groups.collect::<String>())
        }
    };
    let mut places = vec![
        ("redis-cli", redis.trim_end().to_owned()),
        ("Python", each(&|limit| format!("tokenbucket.Limit({}, \"{}\")", limit.capacity, limit.rate))),
        ("Node", each(&|limit| format!("{{ capacity: {}, rate: \"{}\" }}", limit.capacity, limit.rate))),
        (
            "Go",
            each(&|limit| {
                format!("tokenbucket.Limit{{Capacity: {}, Rate: \"{}\"}}", limit.capacity, limit.rate)
            }),
        ),
        ("Rust", each(&|limit| format!("Limit::new({}, \"{}\")?", limit.capacity, limit.rate))),
    ];
    // The gate refuses a limit that never lets a request pass.
    if limits.iter().all(|limit| limit.limit.capacity_micro() >= MICRO_PER_TOKEN) {
        places.push(("the gate", gate(&names, limits)));
    }
    places
}

/// Returns a file of limits for the gate, in which each limit has a descriptor of its own.
fn gate(names: &[&str], limits: &[NamedLimit]) -> String {
    let name = if names == ["ip"] { "remote_address".to_owned() } else { names.join("_") };
    let key = |place: usize| if place == 0 { name.clone() } else { format!("{name}_{}", place + 1) };
    let descriptors = limits.iter().enumerate().map(|(place, NamedLimit { capacity, rate, .. })| {
        let key = key(place);
        // Any string of JSON is one of YAML.
        let is_plain = key.starts_with(char::is_alphabetic)
            && key.chars().all(|char| char.is_alphanumeric() || "_-".contains(char));
        let key = if is_plain { key } else { json!(key).to_string() };
        format!("\n  - key: {key}\n    rate_limit: {{rate: {rate}, capacity: {capacity}}}")
    });
    format!("domain: edge\ndescriptors:{}", descriptors.collect::<String>())
}
