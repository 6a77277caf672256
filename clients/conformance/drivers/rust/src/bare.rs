//! What a take costs beside a command of the bare client.

use std::thread;
use std::time::Instant;

use redis::{cmd, Client, Cmd};
use serde_json::{json, Value};
use tokio::task::{block_in_place, JoinSet};

use crate::client::{strings, Limiter};

const NAME: &str = "user";

/// So many calls in loops without anything else.
pub async fn cost(limiter: &Limiter, url: &str, request: &Value) -> Value {
    let words = strings(&request["command"]);
    let is_bare = request["bare"].as_bool().unwrap_or_default();
    let callers = request["concurrency"].as_u64().unwrap_or(1);
    let each = request["count"].as_u64().unwrap_or(1) / callers;
    let client = Client::open(url).expect("a URL");
    let took = match limiter {
        Limiter::Tasks(limiter) => {
            let connection = client.get_multiplexed_async_connection().await.expect("a connection");
            let began = Instant::now();
            let mut tasks = JoinSet::new();
            for _ in 0..callers {
                let (limiter, words, mut connection) = (limiter.clone(), words.clone(), connection.clone());
                tasks.spawn(async move {
                    for _ in 0..each {
                        if is_bare {
                            command(&words).exec_async(&mut connection).await.expect("a reply");
                        } else {
                            limiter.take(NAME, 1).await.expect("a decision");
                        }
                    }
                });
            }
            tasks.join_all().await;
            began.elapsed()
        }
        Limiter::Threads(limiter) => {
            let connections: Vec<_> =
                (0..callers).map(|_| client.get_connection().expect("a connection")).collect();
            let began = Instant::now();
            let call = |mut connection| {
                for _ in 0..each {
                    if is_bare {
                        command(&words).exec(&mut connection).expect("a reply");
                    } else {
                        limiter.take(NAME, 1).expect("a decision");
                    }
                }
            };
            block_in_place(|| {
                thread::scope(|scope| {
                    for connection in connections {
                        scope.spawn(|| call(connection));
                    }
                });
            });
            began.elapsed()
        }
    };
    json!({"per_call_us": took.as_secs_f64() * 1e6 / (each * callers) as f64})
}

fn command(words: &[String]) -> Cmd {
    cmd(&words[0]).arg(&words[1..]).take()
}
