//! Writes the logs of docs/how-to/limit-from-a-log.md into a folder: `cargo run --example logs -- FOLDER`. They are the same
//! every time.

use std::fmt::Write;
use std::path::Path;

use fastrand::Rng;
use jiff::Timestamp;

/// Monday, 2 March 2026, 00:00 UTC, in milliseconds.
const MONDAY_MS: i64 = 1_772_409_600_000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    write_all(Path::new(&folder))
}

/// Writes all logs.
pub fn write_all(folder: &Path) -> std::io::Result<()> {
    std::fs::write(folder.join("api.jsonl"), api())?;
    std::fs::write(folder.join("access.log"), logins())?;
    std::fs::write(folder.join("gateway.jsonl"), gateway())
}

/// Three days of an API with 240 customers. One of them retries in a loop for an hour.
fn api() -> String {
    let mut rng = Rng::with_seed(1);
    let mut requests = Vec::new();
    for customer in 0..240 {
        let pages = 4 + 160 / (customer + 1) + rng.i64(0..12);
        for _ in 0..pages {
            let mut at_ms = working_hours(&mut rng, 3);
            for _ in 0..rng.u32(3..14) {
                at_ms += rng.i64(30..700);
                requests.push((at_ms, format!("key-{customer:03}")));
            }
        }
    }
    let loop_ms = MONDAY_MS + DAY_MS + 13 * HOUR_MS;
    requests.extend((0..9000).map(|place| (loop_ms + 400 * place, "key-117".to_owned())));
    lines(requests, |text, at_ms, key| {
        writeln!(text, r#"{{"time":"{}","api_key":"{key}","path":"/v1/items","status":200}}"#, rfc3339(at_ms))
    })
}

/// A week of a site where 1,500 people log in, some at the third try. Two addresses guess passwords.
fn logins() -> String {
    let mut rng = Rng::with_seed(2);
    let mut requests = Vec::new();
    for person in 0..1500 {
        let address = format!("198.51.{}.{}", 100 + person / 250, person % 250 + 1);
        for _ in 0..rng.u32(1..5) {
            let mut at_ms = working_hours(&mut rng, 7);
            let tries = *rng.choice(&[1, 1, 1, 1, 1, 1, 2, 2, 3, 5]).unwrap_or(&1);
            for _ in 0..tries {
                requests.push((at_ms, address.clone()));
                at_ms += rng.i64(4_000..40_000);
            }
        }
    }
    let (fast_ms, slow_ms) = (MONDAY_MS + 3 * DAY_MS + 2 * HOUR_MS, MONDAY_MS + DAY_MS);
    requests.extend((0..2400).map(|place| (fast_ms + 900 * place, "203.0.113.66".to_owned())));
    requests.extend((0..1900).map(|place| (slow_ms + 180_000 * place, "203.0.113.9".to_owned())));
    lines(requests, |text, at_ms, address| {
        let time = Timestamp::from_millisecond(at_ms).unwrap_or_default().strftime("%d/%b/%Y:%H:%M:%S +0000");
        writeln!(text, r#"{address} - - [{time}] "POST /login HTTP/1.1" 200 512 "-" "Mozilla/5.0""#)
    })
}

/// Two days of a gateway before language models. An organisation summarises documents at night.
fn gateway() -> String {
    let mut rng = Rng::with_seed(3);
    let mut requests = Vec::new();
    for org in 0..30 {
        for _ in 0..200 / (org / 3 + 1) {
            let mut at_ms = working_hours(&mut rng, 2);
            for _ in 0..rng.u32(1..9) {
                requests.push((at_ms, format!("org-{org:02} {}", rng.u32(200..6_000))));
                at_ms += rng.i64(3_000..50_000);
            }
        }
    }
    let night_ms = MONDAY_MS + DAY_MS + HOUR_MS;
    requests.extend(
        (0..1200).map(|place| (night_ms + 3_000 * place, format!("org-12 {}", 9_000 + place % 7 * 1000))),
    );
    lines(requests, |text, at_ms, request| {
        let (org, tokens) = request.split_once(' ').unwrap_or_default();
        let ts = at_ms as f64 / 1e3;
        writeln!(
            text,
            r#"{{"ts":{ts:.3},"request":{{"org":"{org}","model":"large"}},"usage":{{"total_tokens":{tokens}}}}}"#
        )
    })
}

fn working_hours(rng: &mut Rng, days: i64) -> i64 {
    MONDAY_MS + rng.i64(0..days) * DAY_MS + 7 * HOUR_MS + rng.i64(0..11 * HOUR_MS)
}

fn rfc3339(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

fn lines(
    mut requests: Vec<(i64, String)>,
    line: impl Fn(&mut String, i64, &str) -> std::fmt::Result,
) -> String {
    requests.sort();
    let mut text = String::new();
    for (at_ms, request) in requests {
        let _ = line(&mut text, at_ms, &request);
    }
    text
}
