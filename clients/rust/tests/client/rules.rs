//! The rules and constants that all packages share are those of this one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{json, Value};
use tokenbucket_client::{Error, Limiter, OnError, Options, Server};

use crate::limit;
use crate::replies::{serve, Reply};

#[path = "../../src/values/rules.rs"]
mod ours;

fn rules() -> Value {
    serde_json::from_str(include_str!("../../../conformance/rules.json")).unwrap()
}

#[test]
fn constants_and_bounds_are_those_of_all() {
    let mut all = rules();
    // Closed connections are noticed at once, by RESP3.
    all["constants"].as_object_mut().unwrap().remove("looked_at_if_idle_for_ms");
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap();
    let constants = json!({
        "timeout_ms": ms(ours::TIMEOUT),
        "retry_every_ms": ms(ours::RETRY_EVERY),
        "connect_within_ms": ms(ours::CONNECT_WITHIN),
        "pulse_of_a_wait_ms": ms(ours::PULSE),
        "settled_again_after_ms": ms(ours::SETTLED_AGAIN_AFTER),
        "most_unsettled_holds": ours::MOST_UNSETTLED,
        "most_redirections": ours::MOST_REDIRECTIONS,
        "tries_of_a_split_slot": ours::TRIES_OF_A_SPLIT_SLOT,
    });
    assert_eq!(all["constants"], constants);
    assert_eq!(all["longest_ms"], json!({"wait": ms(ours::LONGEST), "hold": ms(ours::LONGEST)}));
    let [least, most] = [ours::WEIGHTS.start(), ours::WEIGHTS.end()].map(f64::to_string);
    let shares = json!({"most_bytes": ours::MOST_TENANT_BYTES, "least_weight": least, "most_weight": most});
    assert_eq!(all["shares"], shares);
}

#[tokio::test]
async fn an_error_means_what_it_means_to_all() {
    for (line, fault) in rules()["errors"].as_object().unwrap() {
        let asked = Arc::new(AtomicUsize::new(0));
        let (error, counts) = (format!("-{line}\r\n"), asked.clone());
        let url = serve(move |_, command| {
            if !command.starts_with("TB.") {
                return Reply::Text("+OK\r\n".to_owned());
            }
            counts.fetch_add(1, Ordering::Relaxed);
            Reply::Text(error.clone())
        })
        .await;
        let server = Server::connect(url).unwrap();
        let server = server.with_timeout(Duration::from_secs(1)).with_retry_every(Duration::MAX);
        let limiter = Limiter::with_options(&server, limit(1, "1/h"), Options::new().on_error(OnError::Open));
        let first = limiter.take("a", 1).await;
        let before = asked.load(Ordering::Relaxed);
        // Some refusals may be over a moment later, or on another connection.
        assert!(before == 1 || fault == "refusing", "{line}: sent {before} times");
        let second = limiter.take("a", 1).await.map(|decision| decision.degraded);
        let is_asked_again = asked.load(Ordering::Relaxed) > before;
        let ours = match (first.map(|decision| decision.degraded), is_asked_again) {
            (Ok(true), false) => "away",
            (Ok(true), true) => "refusing",
            (Err(Error::Refused { .. } | Error::CrossSlot), true) => "caller",
            other => panic!("{other:?} {second:?}"),
        };
        assert_eq!(fault, ours);
    }
}
