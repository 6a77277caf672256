//! Does with this package what the conformance suite says: one JSON object per line in, one per line out.

mod bare;
mod client;
mod forks;
mod heap;
mod load;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::request::Parts;
use serde_json::{json, Value};
use tokenbucket_client::tower::{name_of_address, RateLimitLayer};
use tokenbucket_client::{Error, Fallback, JointDecision, Limit, OnError, Options, ServerOptions};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use client::{fields, within, Held, Joint, Limiter, Server};

#[derive(Default)]
struct State {
    servers: Mutex<HashMap<String, Server>>,
    urls: Mutex<HashMap<String, String>>,
    limiters: Mutex<HashMap<String, Limiter>>,
    joints: Mutex<HashMap<String, Joint>>,
    holds: Mutex<HashMap<String, Arc<Held>>>,
}

/// What went wrong: its kind is one word in all languages.
struct Wrong(&'static str, String);

type Done = Result<Value, Wrong>;

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::ServerAway(_) => "ServerAway",
            Error::ModuleMissing(_) => "ModuleMissing",
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
    let options = Options::new()
        .on_error(on_error)
        .shadow(request["shadow"].as_bool().unwrap_or(false))
        .batch(request["batch"].as_u64().unwrap_or(0))
        .remember_denials(request["remember_denials"].as_u64().unwrap_or(0) as usize);
    Ok(match request["prefix"].as_str() {
        Some(prefix) => options.prefix(prefix),
        None => options,
    })
}

fn found<T: Clone>(all: &Mutex<HashMap<String, T>>, name: &str) -> Result<T, Wrong> {
    all.lock().unwrap().get(name).cloned().ok_or_else(|| bad(format!("there is no {name:?}")))
}

impl State {
    async fn run(&self, request: &Value) -> Done {
        let on = text(request, "on");
        match text(request, "do") {
            "server" => self.server(request),
            "limiter" => {
                let server = found(&self.servers, text(request, "server"))?;
                let limit = limit(&request["capacity"], &request["rate"])?;
                let limiter = Limiter::new(&server, limit, options(request)?);
                self.limiters.lock().unwrap().insert(text(request, "name").to_owned(), limiter);
                Ok(json!({}))
            }
            "joint" => self.joint(request),
            "take_all" => {
                let costs: HashMap<String, f64> = amounts(&request["costs"]);
                let joint = found(&self.joints, on)?.waiting(request);
                Ok(within(load::deadline(request), joint.take_all(text(request, "name"), costs)).await?)
            }
            "hold" => self.hold(request).await,
            "settle" => {
                let hold = found(&self.holds, text(request, "hold"))?;
                Ok(hold.settle(&request["used"]).await?)
            }
            "lost" => Ok(json!({"lost": found(&self.holds, text(request, "hold"))?.is_lost()})),
            "settle_inside" => {
                let hold = self.held(request).await?.map_err(Error::Denied)?;
                let first = hold.settle(&request["used"]).await?;
                hold.settle(&request["used"]).await?;
                tokio::task::block_in_place(|| drop(hold));
                Ok(first)
            }
            "hold_cancelled" => {
                self.hold_cancelled(request).await?;
                Ok(json!({}))
            }
            "many" => Ok(load::many(&found(&self.limiters, on)?, request).await),
            "cost" => {
                let url = found(&self.urls, text(request, "server"))?;
                Ok(bare::cost(&found(&self.limiters, on)?, &url, request).await)
            }
            "second_runtime" => {
                let (limiter, request) = (found(&self.limiters, on)?, request.clone());
                let second = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.expect("a runtime").block_on(load::many(&limiter, &request))
                });
                let joined = tokio::task::spawn_blocking(move || second.join()).await;
                Ok(joined.expect("a task").expect("a runtime that ended"))
            }
            "fork" => {
                let (limiter, request) = (found(&self.limiters, on)?, request.clone());
                // Not on a thread of this runtime: the children run their own.
                let forking = std::thread::spawn(move || forks::fork(&limiter, &request));
                let joined = tokio::task::spawn_blocking(move || forking.join()).await;
                Ok(joined.expect("a task").expect("a thread that ended"))
            }
            "http" => self.http(request).await,
            "degraded" => {
                Ok(json!({"count": found(&self.servers, text(request, "server"))?.degraded_count()}))
            }
            "memory" => Ok(json!({"bytes": heap::in_use()})),
            "close" => {
                let name = text(request, "name");
                let limiter = self.limiters.lock().unwrap().remove(name);
                if let Some(limiter) = limiter {
                    limiter.close().await?;
                }
                self.servers.lock().unwrap().remove(name);
                Ok(json!({}))
            }
            operation => {
                let (limiter, name) = (found(&self.limiters, on)?, text(request, "name"));
                Ok(fields(&limiter.decide(operation, name, request, load::deadline(request)).await?))
            }
        }
    }

    fn server(&self, request: &Value) -> Done {
        let mut options = ServerOptions::new();
        if let Some(timeout) = ms(request, "timeout_ms") {
            options = options.timeout(timeout);
        }
        if let Some(retry_every) = ms(request, "retry_every_ms") {
            options = options.retry_every(retry_every);
        }
        if request["fallback"] == "script" {
            options = options.fallback(Fallback::Script);
        }
        let is_sync = text(request, "client") == "redis-rs-sync";
        let server = if let Some(sentinel) = request["sentinel"].as_object() {
            let nodes = sentinel["nodes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let nodes: Vec<String> = nodes.map(|node| format!("redis://{node}")).collect();
            let master = sentinel["master"].as_str().unwrap_or_default();
            Server::sentinel(is_sync, &format!("redis://{master}"), nodes, options)
        } else if let Some(urls) = request["cluster"].as_array() {
            let urls = urls.iter().filter_map(Value::as_str);
            Server::cluster(is_sync, urls.map(str::to_owned).collect(), options)
        } else if let Some(url) = request["url"].as_str() {
            self.urls.lock().unwrap().insert(text(request, "name").to_owned(), url.to_owned());
            Server::single(is_sync, url, options)
        } else {
            return Err(Wrong("Unsupported", "no such server".to_owned()));
        };
        self.servers.lock().unwrap().insert(text(request, "name").to_owned(), server.map_err(bad)?);
        Ok(json!({}))
    }

    fn joint(&self, request: &Value) -> Done {
        let server = found(&self.servers, text(request, "server"))?;
        let limits = request["limits"].as_object().into_iter().flatten();
        let limits = limits.map(|(which, pair)| Ok((which.clone(), limit(&pair[0], &pair[1])?)));
        let limits = limits.collect::<Result<Vec<_>, Wrong>>()?;
        let joint = Joint::new(&server, limits, options(request)?);
        self.joints.lock().unwrap().insert(text(request, "name").to_owned(), joint);
        Ok(json!({}))
    }

    async fn hold(&self, request: &Value) -> Done {
        let hold = match self.held(request).await? {
            Ok(hold) => hold,
            Err(denied) => return Ok(fields(&denied.binding)),
        };
        let decision = hold.decision();
        self.holds.lock().unwrap().insert(text(request, "as").to_owned(), Arc::new(hold));
        Ok(decision)
    }

    async fn held(&self, request: &Value) -> Result<Result<Held, JointDecision>, Wrong> {
        let (on, name) = (text(request, "on"), text(request, "name"));
        let ttl = ms(request, "ttl_ms").unwrap_or_default();
        let deadline = load::deadline(request);
        if request["amount"].is_object() {
            let joint = found(&self.joints, on)?.waiting(request);
            return or_denied(within(deadline, joint.hold(name, amounts(&request["amount"]), ttl)).await);
        }
        let limiter = found(&self.limiters, on)?.waiting(request)?.within(deadline);
        let hold = within(deadline, limiter.hold(name, number(request, "amount"), ttl)).await;
        or_denied(hold.map(|hold| Held { hold, of: Vec::new() }))
    }

    /// Tasks that hold, and end together in the middle of their work.
    async fn hold_cancelled(&self, request: &Value) -> Result<(), Wrong> {
        let mut tasks = JoinSet::new();
        for _ in 0..request["count"].as_u64().unwrap_or(1) {
            let hold = self.held(request).await?.map_err(Error::Denied)?;
            tasks.spawn(async move {
                let _held = hold;
                std::future::pending::<()>().await;
            });
        }
        tasks.shutdown().await;
        Ok(())
    }

    async fn http(&self, request: &Value) -> Done {
        let limiter = found(&self.limiters, text(request, "on"))?;
        let Limiter::Tasks(limiter) = limiter else {
            return Err(Wrong("Unsupported", "the layer is for tasks".to_owned()));
        };
        let name = request["name"].as_str().map(str::to_owned);
        let layer = RateLimitLayer::new(limiter, move |parts| name.clone().unwrap_or_else(|| caller(parts)));
        let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello\n" })).layer(layer);
        let socket = tokio::net::TcpSocket::new_v4().map_err(bad)?;
        socket.bind("127.0.0.1:0".parse().map_err(bad)?).map_err(bad)?;
        let listener = socket.listen(4096).map_err(bad)?;
        let port = listener.local_addr().map_err(bad)?.port();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(json!({"port": port}))
    }
}

/// A denied hold is a decision.
fn or_denied(held: Result<Held, Error>) -> Result<Result<Held, JointDecision>, Wrong> {
    match held {
        Err(Error::Denied(denied)) => Ok(Err(denied)),
        held => Ok(Ok(held?)),
    }
}

/// By the address that the proxy on this machine tells.
fn caller(parts: &Parts) -> String {
    let told = parts.headers.get("x-forwarded-for").and_then(|address| address.to_str().ok()?.parse().ok());
    name_of_address(told.expect("an address"))
}

fn amounts(object: &Value) -> HashMap<String, f64> {
    let object = object.as_object().into_iter().flatten();
    object.map(|(which, amount)| (which.clone(), amount.as_f64().unwrap_or(1.0))).collect()
}
