//! Replies as tests compare them.

use redis::Value;
pub use tokenbucket_core::bucket::Decision;

/// A decision as its four integers.
pub fn decided([allowed, remaining, retry_after_ms, reset_after_ms]: [i64; 4]) -> Decision {
    Decision { allowed, remaining, retry_after_ms, reset_after_ms }
}

pub fn decision(reply: &Value) -> Decision {
    let fields: [i64; 4] = integers(reply).try_into().unwrap_or_else(|_| panic!("no decision: {reply:?}"));
    decided(fields)
}

/// Reads the reply of `TB.MTAKE`: the binding decision, and each bucket's own.
pub fn multi_decision(reply: &Value) -> (Decision, Vec<Decision>) {
    let Value::Array(elements) = reply else { panic!("no array: {reply:?}") };
    let [binding @ .., Value::Array(own)] = elements.as_slice() else { panic!("no inner array: {reply:?}") };
    (decision(&Value::Array(binding.to_vec())), own.iter().map(decision).collect())
}

/// The elements of an array or a set.
pub fn array(reply: Value) -> Vec<Value> {
    match reply {
        Value::Array(elements) | Value::Set(elements) => elements,
        other => panic!("no array: {other:?}"),
    }
}

pub fn texts(reply: Value) -> Vec<String> {
    array(reply).iter().map(text).collect()
}

pub fn integer(reply: &Value) -> i64 {
    match reply {
        Value::Int(integer) => *integer,
        other => panic!("no integer: {other:?}"),
    }
}

pub fn integers(reply: &Value) -> Vec<i64> {
    array(reply.clone()).iter().map(integer).collect()
}

/// Reads the reply of `TIME`, in Unix microseconds.
pub fn unix_us(reply: &Value) -> i64 {
    let parts: Vec<i64> = texts(reply.clone()).iter().map(|part| part.parse().unwrap()).collect();
    parts[0] * 1_000_000 + parts[1]
}

/// Reads a string, simple, bulk or verbatim; an integer or nil in words.
pub fn text(reply: &Value) -> String {
    match reply {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(string) => string.clone(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Int(integer) => integer.to_string(),
        Value::Nil => "nil".to_owned(),
        other => panic!("no text: {other:?}"),
    }
}

/// A reply in one line, in which an integer, a `"string"`, `nil`, an `[array]` and an error differ.
pub fn shown(reply: &Value) -> String {
    match reply {
        Value::Int(integer) => integer.to_string(),
        Value::Nil => "nil".to_owned(),
        Value::Okay => "+OK".to_owned(),
        Value::BulkString(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Array(elements) => format!("[{}]", elements.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::ServerError(error) => format!("{} {}", error.code(), error.details().unwrap_or_default()),
        other => format!("{other:?}"),
    }
}

/// A reply, as [`shown`], or an error.
pub fn tell(reply: Result<Value, String>) -> String {
    reply.map_or_else(|error| error, |reply| shown(&reply))
}

/// Reads the reply of `TB.STATE`: level and refill time in Unix microseconds, or `None` for a full bucket. Tenants that wait may
/// follow.
pub fn state(reply: &Value) -> Option<(String, i64)> {
    if *reply == Value::Nil {
        return None;
    }
    match array(reply.clone()).as_slice() {
        [level, Value::Int(refilled_at_us), ..] => Some((text(level), *refilled_at_us)),
        other => panic!("no state: {other:?}"),
    }
}
