//! What a take costs beside a command of the bare client.

use std::thread;
use std::time::Instant;

use redis::{cmd, Client, Value as Reply};
use serde_json::{json, Value};

use crate::client::Limiter;

const NAME: &str = "user";

/// So many calls in loops without anything else.
pub async fn cost(limiter: &Limiter, url: &str, request: &Value) -> Value {
    let words = request["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<String> = words.map(str::to_owned).collect();
    let is_bare = request["bare"].as_bool().unwrap_or_default();
    let callers = request["concurrency"].as_u64().unwrap_or(1);
    let each = request["count"].as_u64().unwrap_or(1) / callers;
    let client = Client::open(url).expect("a URL");
    let took = match limiter {
        Limiter::Tasks(limiter) => {
            let connection = client.get_multiplexed_async_connection().await.expect("a connection");
            let began = Instant::now();
            let tasks: Vec<_> = (0..callers)
                .map(|_| {
                    let (limiter, words, mut connection) =
                        (limiter.clone(), words.clone(), connection.clone());
                    tokio::spawn(async move {
                        for _ in 0..each {
                            if is_bare {
                                cmd(&words[0])
                                    .arg(&words[1..])
                                    .query_async::<Reply>(&mut connection)
                                    .await
                                    .expect("a reply");
                            } else {
                                limiter.take(NAME, 1).await.expect("a decision");
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("a task");
            }
            began.elapsed()
        }
        Limiter::Threads(limiter) => {
            let connections: Vec<_> =
                (0..callers).map(|_| client.get_connection().expect("a connection")).collect();
            let began = Instant::now();
            tokio::task::block_in_place(|| {
                thread::scope(|scope| {
                    for mut connection in connections {
                        let words = &words;
                        scope.spawn(move || {
                            for _ in 0..each {
                                if is_bare {
                                    cmd(&words[0])
                                        .arg(&words[1..])
                                        .query::<Reply>(&mut connection)
                                        .expect("a reply");
                                } else {
                                    limiter.take(NAME, 1).expect("a decision");
                                }
                            }
                        });
                    }
                });
            });
            began.elapsed()
        }
    };
    json!({"per_call_us": took.as_secs_f64() * 1e6 / (each * callers) as f64})
}
