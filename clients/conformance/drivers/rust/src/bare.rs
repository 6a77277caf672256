//! What a take costs beside a command of the bare client.

use std::time::Instant;

use redis::{cmd, Client, Cmd};
use serde_json::{json, Value};
use tokio::task::JoinSet;

use crate::client::{strings, Limiter};

const NAME: &str = "user";

/// So many calls in loops without anything else.
pub async fn cost(limiter: &Limiter, url: &str, request: &Value) -> Value {
    let words = strings(&request["command"]);
    let is_bare = request["bare"].as_bool().unwrap_or_default();
    let callers = request["concurrency"].as_u64().unwrap_or(1);
    let each = request["count"].as_u64().unwrap_or(1) / callers;
    let client = Client::open(url).expect("a URL");
    let shared = client.get_multiplexed_async_connection().await.expect("a connection");
    let of_threads: Vec<_> = (0..callers).map(|_| client.get_connection().expect("a connection")).collect();
    let (began, mut running) = (Instant::now(), JoinSet::new());
    for mut own in of_threads {
        let (words, mut shared) = (words.clone(), shared.clone());
        match limiter.clone() {
            Limiter::Tasks(limiter) => running.spawn(async move {
                for _ in 0..each {
                    if is_bare {
                        command(&words).exec_async(&mut shared).await.expect("a reply");
                    } else {
                        limiter.take(NAME, 1).await.expect("a decision");
                    }
                }
            }),
            Limiter::Threads(limiter) => running.spawn_blocking(move || {
                for _ in 0..each {
                    if is_bare {
                        command(&words).exec(&mut own).expect("a reply");
                    } else {
                        limiter.take(NAME, 1).expect("a decision");
                    }
                }
            }),
        };
    }
    running.join_all().await;
    json!({"per_call_us": began.elapsed().as_secs_f64() * 1e6 / (each * callers) as f64})
}

fn command(words: &[String]) -> Cmd {
    cmd(&words[0]).arg(&words[1..]).take()
}
