//! Requests and replies of `/json`, as proto3 JSON.

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{json, Value as Json};

use crate::messages::{
    CurrentLimit, Descriptor, Duration, Entry, HeaderValue, Override, Request, Response, Status, Struct,
    Value,
};

/// Reads a request. Names are in lowerCamelCase or as in the .proto file; an unknown one is a mistake.
///
/// # Errors
///
/// What is wrong, in one line.
pub(super) fn request(body: &[u8]) -> Result<Request, String> {
    let json = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let mut request = Request::default();
    for (name, value) in fields(json, "the request")? {
        match name.as_str() {
            "domain" => request.domain = text(value, &name)?,
            "descriptors" => request.descriptors = list(value, &name, descriptor)?,
            "hitsAddend" | "hits_addend" => request.hits_addend = number(&value, &name)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(request)
}

fn descriptor(json: Json) -> Result<Descriptor, String> {
    let mut descriptor = Descriptor::default();
    for (name, value) in fields(json, "a descriptor")? {
        match name.as_str() {
            "entries" => descriptor.entries = list(value, &name, entry)?,
            "limit" => descriptor.limit = Some(limit(value)?),
            "hitsAddend" | "hits_addend" => {
                descriptor.hits_addend = Some(UInt64Value { value: number(&value, &name)? });
            }
            "isNegativeHits" | "is_negative_hits" => {
                descriptor.is_negative_hits =
                    value.as_bool().ok_or_else(|| must_be(&name, "true or false"))?;
            }
            _ => return Err(unknown(&name)),
        }
    }
    Ok(descriptor)
}

fn entry(json: Json) -> Result<Entry, String> {
    let mut entry = Entry::default();
    for (name, value) in fields(json, "an entry")? {
        match name.as_str() {
            "key" => entry.key = text(value, &name)?,
            "value" => entry.value = text(value, &name)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(entry)
}

fn limit(json: Json) -> Result<Override, String> {
    let mut limit = Override::default();
    for (name, value) in fields(json, "a limit")? {
        match name.as_str() {
            "requestsPerUnit" | "requests_per_unit" => limit.requests_per_unit = number(&value, &name)?,
            "unit" => limit.unit = unit(&value)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(limit)
}

/// Reads the unit of a limit in a descriptor: `envoy.type.v3.RateLimitUnit`.
fn unit(json: &Json) -> Result<i32, String> {
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;

    if let Some(name) = json.as_str() {
        let unit = RateLimitUnit::from_str_name(name);
        return unit.map(i32::from).ok_or_else(|| format!("there is no unit {name:?}"));
    }
    let unit = json.as_i64().and_then(|number| i32::try_from(number).ok());
    unit.ok_or_else(|| must_be("unit", "a name or a number"))
}

/// Reads `null` as missing.
fn fields(json: Json, what: &str) -> Result<impl Iterator<Item = (String, Json)>, String> {
    match json {
        Json::Object(fields) => Ok(fields.into_iter().filter(|(_, value)| !value.is_null())),
        _ => Err(must_be(what, "an object")),
    }
}

fn list<T>(json: Json, name: &str, read: impl Fn(Json) -> Result<T, String>) -> Result<Vec<T>, String> {
    match json {
        Json::Array(items) => items.into_iter().map(read).collect(),
        _ => Err(must_be(name, "a list")),
    }
}

fn text(json: Json, name: &str) -> Result<String, String> {
    match json {
        Json::String(text) => Ok(text),
        _ => Err(must_be(name, "a string")),
    }
}

/// Reads a number, which may be a string, and may have a point even if it is whole.
fn number<T: TryFrom<u64>>(json: &Json, name: &str) -> Result<T, String> {
    let number = match json {
        Json::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
        Json::String(text) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
        _ => None,
    };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| must_be(name, "a whole number in its range"))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // it is whole and in the range
fn whole(number: f64) -> Option<u64> {
    // Beyond 2^53 a float may differ from the written number.
    let is_whole = number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&number);
    is_whole.then_some(number as u64)
}

fn unknown(name: &str) -> String {
    format!("unknown field {name:?}")
}

fn must_be(name: &str, what: &str) -> String {
    format!("{name} must be {what}")
}

pub(super) fn response(response: &Response) -> Json {
    let headers = |headers: &[HeaderValue]| -> Json {
        let header = |one: &HeaderValue| object([("key", json!(one.key)), ("value", json!(one.value))]);
        headers.iter().map(header).collect()
    };
    object([
        ("overallCode", json!(response.overall_code().as_str_name())),
        ("statuses", response.statuses.iter().map(status).collect()),
        ("responseHeadersToAdd", headers(&response.response_headers_to_add)),
        ("requestHeadersToAdd", headers(&response.request_headers_to_add)),
        ("dynamicMetadata", response.dynamic_metadata.as_ref().map(of_struct).into()),
    ])
}

fn status(status: &Status) -> Json {
    object([
        ("code", json!(status.code().as_str_name())),
        ("currentLimit", status.current_limit.as_ref().map(current_limit).into()),
        ("limitRemaining", json!(status.limit_remaining)),
        ("durationUntilReset", status.duration_until_reset.as_ref().map(of_duration).into()),
    ])
}

fn current_limit(limit: &CurrentLimit) -> Json {
    object([
        ("name", json!(limit.name)),
        ("requestsPerUnit", json!(limit.requests_per_unit)),
        ("unit", json!(limit.unit().as_str_name())),
    ])
}

/// Leaves out fields that are missing or have their default.
fn object<const N: usize>(fields: [(&str, Json); N]) -> Json {
    let is_default = |value: &Json| match value {
        Json::Null => true,
        Json::String(text) => text.is_empty() || text == "UNKNOWN",
        Json::Number(number) => number.as_u64() == Some(0),
        Json::Array(items) => items.is_empty(),
        Json::Bool(_) | Json::Object(_) => false,
    };
    let fields = fields.into_iter().filter(|(_, value)| !is_default(value));
    Json::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Seconds with 0, 3, 6 or 9 digits after the point.
fn of_duration(duration: &Duration) -> String {
    let (seconds, nanos) = (duration.seconds, duration.nanos);
    match nanos {
        0 => format!("{seconds}s"),
        nanos if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!("{seconds}.{:06}s", nanos / 1_000),
        nanos => format!("{seconds}.{nanos:09}s"),
    }
}

fn of_struct(of: &Struct) -> Json {
    Json::Object(of.fields.iter().map(|(name, value)| (name.clone(), of_value(value))).collect())
}

fn of_value(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(number)) => of_number(*number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::StructValue(fields)) => of_struct(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(of_value).collect(),
    }
}

/// Returns a whole number without a point.
#[allow(clippy::cast_possible_truncation)] // it is whole and in the range
fn of_number(number: f64) -> Json {
    if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
        json!(number as i64)
    } else {
        json!(number)
    }
}
