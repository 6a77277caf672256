//! Writes the headers and the dynamic metadata of a reply.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::ListValue;

use super::outcome::Outcome;
use crate::messages::{Descriptor, Request, Status, Struct, Value};

/// Returns the headers of the limit nearest to its end: the last plain one that is over, else the first with the least left.
pub(super) fn headers(
    names: &[&str; 3],
    statuses: &[Status],
    outcomes: &[Option<Outcome<'_>>],
    is_over: bool,
) -> Vec<HeaderValue> {
    let is_known = |outcome: &Option<Outcome<'_>>| outcome.as_ref().is_some_and(|one| !one.decision.degraded);
    let limited = || statuses.iter().zip(outcomes).filter(|(_, outcome)| is_known(outcome));
    let is_plain_over = |outcome: &Option<Outcome<'_>>| {
        outcome.as_ref().is_some_and(|one| one.denies() && !one.asked.is_quota)
    };
    let nearest = limited()
        .rfind(|(_, outcome)| is_plain_over(outcome))
        .or_else(|| limited().min_by_key(|(status, _)| status.limit_remaining));
    let mut headers = Vec::new();
    if let Some((status, _)) = nearest {
        let limit = status.current_limit.as_ref().map(|limit| limit.requests_per_unit.to_string());
        let reset_s = status.duration_until_reset.as_ref().map_or(0, |duration| duration.seconds);
        let values = [limit, Some(status.limit_remaining.to_string()), Some(reset_s.to_string())];
        headers.extend(names.iter().zip(values).filter_map(|(name, value)| Some(header(name, value?))));
    }
    if let Some(wait_s) = is_over.then(|| retry_after_s(outcomes)).flatten() {
        headers.push(header("retry-after", wait_s.to_string()));
    }
    headers
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() }
}

/// Returns when the same request passes: all plain limits must allow it, and one of the quotas. None if it never will.
fn retry_after_s(outcomes: &[Option<Outcome<'_>>]) -> Option<i64> {
    let over = || outcomes.iter().flatten().filter(|outcome| outcome.denies());
    let wait_ms = |outcome: &Outcome<'_>| Some(outcome.decision.retry_after_ms).filter(|ms| *ms >= 0);
    let plain: Vec<_> = over().filter(|outcome| !outcome.asked.is_quota).collect();
    let ms = if plain.is_empty() {
        over().filter_map(wait_ms).min()
    } else {
        plain.into_iter().map(wait_ms).collect::<Option<Vec<i64>>>()?.into_iter().max()
    };
    Some(ms?.saturating_add(999) / 1000)
}

/// Returns what the proxy may use later: the request, and the `metadata` of the limits that it passed.
pub(super) fn metadata(request: &Request, outcomes: &[Option<Outcome<'_>>]) -> Struct {
    let descriptors = request.descriptors.iter().map(|one| value(Kind::StructValue(describe(one))));
    let mut all = Struct::default();
    set(&mut all, "domain", Kind::StringValue(request.domain.clone()));
    set(&mut all, "descriptors", Kind::ListValue(ListValue { values: descriptors.collect() }));
    if request.hits_addend != 0 {
        set(&mut all, "hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    let mut passed = Struct::default();
    for outcome in outcomes.iter().flatten().filter(|outcome| !outcome.denies()) {
        if let Some(metadata) = &outcome.asked.rule.metadata {
            merge(&mut passed, metadata);
        }
    }
    if !passed.fields.is_empty() {
        set(&mut all, "metadata", Kind::StructValue(passed));
    }
    all
}

fn describe(descriptor: &Descriptor) -> Struct {
    let entries = descriptor
        .entries
        .iter()
        .map(|entry| value(Kind::StringValue(format!("{}={}", entry.key, entry.value))));
    let mut one = Struct::default();
    set(&mut one, "entries", Kind::ListValue(ListValue { values: entries.collect() }));
    if let Some(limit) = &descriptor.limit {
        let text =
            format!("requests_per_unit:{} unit:{}", limit.requests_per_unit, limit.unit().as_str_name());
        set(&mut one, "limit", Kind::StringValue(text));
    }
    if let Some(hits) = &descriptor.hits_addend {
        set(&mut one, "hitsAddend", Kind::NumberValue(hits.value as f64));
    }
    one
}

/// Adds fields. The first value of a key stays; structs are merged.
fn merge(into: &mut Struct, from: &Struct) {
    for (key, value) in &from.fields {
        let Some(first) = into.fields.get_mut(key) else {
            into.fields.insert(key.clone(), value.clone());
            continue;
        };
        if let (Some(Kind::StructValue(first)), Some(Kind::StructValue(second))) =
            (&mut first.kind, &value.kind)
        {
            merge(first, second);
        }
    }
}

fn set(fields: &mut Struct, key: &str, kind: Kind) {
    fields.fields.insert(key.to_owned(), value(kind));
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}
