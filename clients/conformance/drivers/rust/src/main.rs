//! Does with this package what the conformance suite says: one JSON object per line in, one per line out.

mod bare;
mod client;
mod forks;
mod load;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{json, Value};
use tokenbucket_client::tower::RateLimitLayer;
use tokenbucket_client::{Error, Limit, OnError, Options};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use client::{fields, on_a_thread, strings, within, Held, Joint, Limiter, Server};

#[derive(Default)]
struct State {
    servers: Mutex<HashMap<String, Server>>,
    limiters: Mutex<HashMap<String, Joint>>,
    holds: Mutex<HashMap<String, Arc<Held>>>,
}

/// What went wrong: its kind is one word in all languages.
struct Wrong(&'static str, String);

type Done = Result<Value, Wrong>;

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::ServerAway(_) => "ServerAway",
            Error::ModuleMissing { .. } => "ModuleMissing",
            Error::CrossSlot => "CrossSlot",
            Error::Denied(_) => "Denied",
            Error::ReplyLost(_) => "ReplyLost",
            Error::BadArgument(_) => "BadArgument",
            Error::DeadlinePassed => "Cancelled",
            _ => "Other",
        };
        Self(kind, error.to_string())
    }
}

fn bad(text: impl ToString) -> Wrong {
    Wrong("BadArgument", text.to_string())
}

#[tokio::main]
async fn main() {
    println!("{}", json!({"ready": true, "clients": ["redis-rs", "redis-rs-sync"]}));
    let state = Arc::new(State::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).expect("a JSON object");
        let state = state.clone();
        tokio::spawn(async move {
            let id = request["id"].clone();
            let reply = match state.run(&request).await {
                Ok(ok) => json!({"id": id, "ok": ok}),
                Err(Wrong(kind, text)) => json!({"id": id, "error": {"kind": kind, "text": text}}),
            };
            println!("{reply}");
        });
    }
}

fn ms(request: &Value, field: &str) -> Option<Duration> {
    request[field].as_f64().map(|ms| Duration::from_secs_f64(ms / 1000.0))
}

fn text<'a>(request: &'a Value, field: &str) -> &'a str {
    request[field].as_str().unwrap_or_default()
}

fn number(request: &Value, field: &str) -> f64 {
    request[field].as_f64().unwrap_or(1.0)
}

fn limit(capacity: &Value, rate: &Value) -> Result<Limit, Wrong> {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Limit::new(word(capacity), word(rate)).map_err(bad)
}

fn options(request: &Value) -> Result<Options, Wrong> {
    let on_error = match request["on_error"].as_str() {
        None | Some("local") => OnError::Local,
        Some("open") => OnError::Open,
        Some("closed") => OnError::Closed,
        Some("raise") => OnError::Error,
        Some(other) => return Err(bad(format!("on_error: {other:?}"))),
    };
    Ok(Options::new()
        .prefix(request["prefix"].as_str().unwrap_or("tb:"))
        .on_error(on_error)
        .shadow(request["shadow"].as_bool().unwrap_or(false))
        .batch(request["batch"].as_u64().unwrap_or(0))
        .remember_denials(request["remember_denials"].as_u64().unwrap_or(0) as usize))
}

fn found<T: Clone>(all: &Mutex<HashMap<String, T>>, name: &str) -> Result<T, Error> {
    let missing = || Error::BadArgument(format!("there is no {name:?}"));
    all.lock().unwrap().get(name).cloned().ok_or_else(missing)
}

fn keep<T>(all: &Mutex<HashMap<String, T>>, name: &str, value: T) -> Value {
    all.lock().unwrap().insert(name.to_owned(), value);
    json!({})
}

impl State {
    async fn run(&self, request: &Value) -> Done {
        let joint = || found(&self.limiters, text(request, "on"));
        let hold = || found(&self.holds, text(request, "hold"));
        let server = || found(&self.servers, text(request, "server"));
        match text(request, "do") {
            "server" => self.server(request),
            "limiter" => self.limiter(request, limit(&request["capacity"], &request["rate"])?),
            // Each of its parts has a limit of its own.
            "joint" => self.limiter(request, limit(&json!(1), &json!(1))?),
            "take_all" => {
                let joint = self.waiting(request)?;
                let taking = joint.take_all(text(request, "name"), &request["costs"]);
                Ok(within(request, taking).await?)
            }
            "take_any" => Ok(joint()?.take_any(text(request, "name"), &request["alternatives"]).await?),
            "hold" | "hold_any" => self.hold(request).await,
            "settle" => Ok(hold()?.settle(&request["used"]).await?),
            "lost" => {
                let held = hold()?;
                let granted = held.hold.decision().binding.granted;
                Ok(json!({"lost": held.hold.is_lost(), "granted": granted}))
            }
            "hold_cancelled" => self.hold_cancelled(request).await,
            "many" => Ok(load::many(&joint()?.limiter, request).await),
            "cost" => Ok(bare::cost(&joint()?.limiter, &server()?.url, request).await),
            "fork" => {
                let (limiter, request) = (joint()?.limiter, request.clone());
                // Not on a thread of this runtime: the children run their own.
                Ok(on_a_thread(move || forks::fork(&limiter, &request)).await)
            }
            "http" => self.http(request).await,
            "degraded" => Ok(json!({"count": server()?.inner.degraded_count()})),
            "memory" => {
                // SAFETY: only looks.
                let heap = unsafe { libc::mallinfo2() };
                Ok(json!({"bytes": heap.uordblks + heap.hblkhd}))
            }
            "close" => {
                let name = text(request, "name");
                let limiter = self.limiters.lock().unwrap().remove(name);
                if let Some(limiter) = limiter {
                    limiter.limiter.close().await?;
                }
                self.servers.lock().unwrap().remove(name);
                Ok(json!({}))
            }
            "reset" => {
                joint()?.limiter.reset(text(request, "name")).await?;
                Ok(json!({}))
            }
            operation => {
                let decided = joint()?.limiter.decide(operation, text(request, "name"), request).await;
                Ok(fields(&decided?))
            }
        }
    }

    fn server(&self, request: &Value) -> Done {
        let url = text(request, "url").to_owned();
        let inner = if request["sentinel"].is_object() {
            let nodes = strings(&request["sentinel"]["nodes"]);
            let master = format!("redis://{}", text(&request["sentinel"], "master"));
            tokenbucket_client::Server::sentinel(master, nodes.iter().map(|node| format!("redis://{node}")))
        } else if request["cluster"].is_array() {
            tokenbucket_client::Server::cluster(strings(&request["cluster"]))
        } else {
            tokenbucket_client::Server::connect(url.as_str())
        };
        let mut inner = inner.map_err(bad)?;
        if let Some(timeout) = ms(request, "timeout_ms") {
            inner = inner.with_timeout(timeout);
        }
        if let Some(retry_every) = ms(request, "retry_every_ms") {
            inner = inner.with_retry_every(retry_every);
        }
        if request["by"] == "script" {
            inner = inner.by_script();
        }
        let server = Server { inner, is_sync: text(request, "client") == "redis-rs-sync", url };
        Ok(keep(&self.servers, text(request, "name"), server))
    }

    fn limiter(&self, request: &Value, limit: Limit) -> Done {
        let server = found(&self.servers, text(request, "server"))?;
        let limits = request["limits"].as_object().into_iter().flatten();
        let limits = limits.map(|(which, pair)| Ok((which.clone(), self::limit(&pair[0], &pair[1])?)));
        let limits = limits.collect::<Result<_, Wrong>>()?;
        let limiter = Limiter::new(&server, limit, options(request)?);
        Ok(keep(&self.limiters, text(request, "name"), Joint { limiter, limits }))
    }

    /// The limiter of a request, as it waits.
    fn waiting(&self, request: &Value) -> Result<Joint, Error> {
        let Joint { limiter, limits } = found(&self.limiters, text(request, "on"))?;
        Ok(Joint { limiter: limiter.waiting(request)?, limits })
    }

    /// A denied hold is a decision.
    async fn hold(&self, request: &Value) -> Done {
        let hold = match self.held(request).await {
            Err(Error::Denied(denied)) => return Ok(fields(&denied.binding)),
            held => held?,
        };
        let decision = hold.fields();
        keep(&self.holds, text(request, "as"), Arc::new(hold));
        Ok(decision)
    }

    async fn held(&self, request: &Value) -> Result<Held, Error> {
        let (name, ttl) = (text(request, "name"), ms(request, "ttl_ms").unwrap_or_default());
        let waiting = self.waiting(request)?;
        if text(request, "do") == "hold_any" {
            return within(request, waiting.hold_any(name, &request["alternatives"], ttl)).await;
        }
        if request["amount"].is_object() {
            return within(request, waiting.hold(name, &request["amount"], ttl)).await;
        }
        within(request, waiting.limiter.hold(name, number(request, "amount"), ttl)).await
    }

    /// Tasks that hold, and end together in the middle of their work.
    async fn hold_cancelled(&self, request: &Value) -> Done {
        let mut tasks = JoinSet::new();
        for _ in 0..request["count"].as_u64().unwrap_or(1) {
            let hold = self.held(request).await?;
            tasks.spawn(async move {
                let _held = hold;
                std::future::pending::<()>().await;
            });
        }
        tasks.shutdown().await;
        Ok(json!({}))
    }

    async fn http(&self, request: &Value) -> Done {
        let Joint { limiter, .. } = found(&self.limiters, text(request, "on"))?;
        let Limiter::Tasks(limiter) = limiter else {
            return Err(Wrong("Unsupported", "the layer is for tasks".to_owned()));
        };
        let name = text(request, "name").to_owned();
        let layer = RateLimitLayer::new(limiter, move |_| name.clone());
        let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello\n" })).layer(layer);
        let socket = tokio::net::TcpSocket::new_v4().map_err(bad)?;
        socket.bind("127.0.0.1:0".parse().map_err(bad)?).map_err(bad)?;
        let listener = socket.listen(4096).map_err(bad)?;
        let port = listener.local_addr().map_err(bad)?.port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(json!({"port": port}))
    }
}
