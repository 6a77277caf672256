//! Reads values like Go, so that the variables of envoyproxy/ratelimit keep their values.

use std::time::Duration;

use log::LevelFilter;
use tokenbucket_client::OnError;

/// Reads the values of Go's `ParseBool`.
pub(super) fn bool_of_go(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Reads the values of Go's `ParseDuration`, except negative ones: `100ms`, `1h30m`, `1.5s`.
pub(super) fn duration_of_go(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a duration such as 100ms, 1.5s or 24h".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total = Duration::ZERO;
    loop {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (amount, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let amount: f64 = amount.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(amount * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = after;
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

/// Returns the levels of envoyproxy/ratelimit; what is above `error` there is `error`.
pub(super) fn level(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "trace" => Ok(LevelFilter::Trace),
        "debug" => Ok(LevelFilter::Debug),
        "info" => Ok(LevelFilter::Info),
        "warn" | "warning" => Ok(LevelFilter::Warn),
        "error" | "fatal" | "panic" => Ok(LevelFilter::Error),
        _ => Err("must be trace, debug, info, warn or error".to_owned()),
    }
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// Returns a time for which the module can hold tokens.
pub(super) fn reservation_ttl(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(1)..=Duration::from_secs(30 * 86_400);
    let ttl = Some(duration_of_go(text)?).filter(|ttl| bounds.contains(ttl));
    ttl.ok_or_else(|| "must be from 1ms to 720h".to_owned())
}

/// The cache allocates its table at the start.
pub(super) fn cache_bytes(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    let bytes: usize = text.parse().map_err(|_| "must be a whole number".to_owned())?;
    Some(bytes).filter(|bytes| *bytes <= MOST).ok_or_else(|| format!("must be at most {MOST}"))
}

pub(super) fn on_error(text: &str) -> Result<OnError, String> {
    match text.to_ascii_lowercase().as_str() {
        "error" => Ok(OnError::Error),
        "allow" => Ok(OnError::Open),
        "deny" => Ok(OnError::Closed),
        _ => Err("must be error, allow or deny".to_owned()),
    }
}
