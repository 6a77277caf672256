//! The package for tasks and the package for threads, with one face.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use serde_json::{json, Value};
use tokenbucket_client::{sync, Decision, Error, JointDecision, Limit, Options, ServerOptions};

use crate::{ms, number, Done, Wrong};

#[derive(Clone)]
pub enum Server {
    Tasks(tokenbucket_client::Server),
    Threads(sync::Server),
}

#[derive(Clone)]
pub enum Limiter {
    Tasks(tokenbucket_client::Limiter),
    Threads(sync::Limiter),
}

#[derive(Clone)]
pub enum Joint {
    Tasks(tokenbucket_client::JointLimiter),
    Threads(sync::JointLimiter),
}

pub enum Hold {
    Tasks(tokenbucket_client::Hold),
    Threads(sync::Hold),
}

/// A hold, and the limits that it is of, in the order of the call.
pub struct Held {
    pub hold: Hold,
    pub of: Vec<String>,
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Server {
    pub fn single(is_sync: bool, url: &str, options: ServerOptions) -> Result<Self, String> {
        if is_sync {
            return sync::Server::connect_with(url, options).map(Self::Threads).map_err(text);
        }
        tokenbucket_client::Server::connect_with(url, options).map(Self::Tasks).map_err(text)
    }

    pub fn cluster(is_sync: bool, urls: Vec<String>, options: ServerOptions) -> Result<Self, String> {
        if is_sync {
            return sync::Server::cluster_with(urls, options).map(Self::Threads).map_err(text);
        }
        tokenbucket_client::Server::cluster_with(urls, options).map(Self::Tasks).map_err(text)
    }

    pub fn degraded_count(&self) -> u64 {
        match self {
            Self::Tasks(server) => server.degraded_count(),
            Self::Threads(server) => server.degraded_count(),
        }
    }
}

/// Each call of threads has a thread, as it has in a program that uses them.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("a thread")
}

/// Drops the call when its caller's deadline is over.
pub async fn within<T>(
    deadline: Option<Duration>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match deadline {
        None => call.await,
        Some(deadline) => tokio::time::timeout(deadline, call).await.unwrap_or(Err(Error::DeadlinePassed)),
    }
}

impl Limiter {
    pub fn new(server: &Server, limit: Limit, options: Options) -> Self {
        match server {
            Server::Tasks(server) => {
                Self::Tasks(tokenbucket_client::Limiter::with_options(server, limit, options))
            }
            Server::Threads(server) => Self::Threads(sync::Limiter::with_options(server, limit, options)),
        }
    }

    /// As it is asked to wait in the server: without a time, takes and holds do not.
    pub fn waiting(&self, request: &Value) -> Result<Self, Error> {
        let max_wait = ms(request, "max_wait_ms").unwrap_or_default();
        let waiting = match self {
            Self::Tasks(limiter) => Self::Tasks(limiter.with_max_wait(max_wait)),
            Self::Threads(limiter) => Self::Threads(limiter.with_max_wait(max_wait)),
        };
        let Some(tenant) = request["share"].as_str() else { return Ok(waiting) };
        let weight = request["weight"].as_f64().unwrap_or(1.0);
        Ok(match waiting {
            Self::Tasks(limiter) => Self::Tasks(limiter.with_share(tenant, weight)?),
            Self::Threads(limiter) => Self::Threads(limiter.with_share(tenant, weight)?),
        })
    }

    /// For a caller with a deadline, which ends the calls of a thread too.
    pub fn within(&self, deadline: Option<Duration>) -> Self {
        match (self, deadline) {
            (Self::Threads(limiter), Some(deadline)) => Self::Threads(limiter.within(deadline)),
            _ => self.clone(),
        }
    }

    /// One call; a hold is let go at once.
    pub async fn decide(
        &self,
        operation: &str,
        name: &str,
        request: &Value,
        deadline: Option<Duration>,
    ) -> Result<Decision, Error> {
        let amount = match operation {
            "take_up_to" => number(request, "most"),
            "charge" | "give" => number(request, "amount"),
            "hold" => request["amount"].as_f64().unwrap_or(number(request, "cost")),
            _ => number(request, "cost"),
        };
        let max_wait = ms(request, "max_wait_ms").unwrap_or(Duration::from_secs(100_000));
        let ttl = ms(request, "ttl_ms").unwrap_or(Duration::from_secs(60));
        match self.waiting(request)?.within(deadline) {
            Self::Tasks(limiter) => {
                let call = async {
                    match operation {
                        "peek" => limiter.peek(name, amount).await,
                        "take_up_to" => limiter.take_up_to(name, amount as u64).await,
                        "charge" => limiter.charge(name, amount).await,
                        "give" => limiter.give(name, amount).await,
                        "reserve" => limiter.reserve(name, amount, max_wait).await,
                        "wait" => limiter.wait(name, amount, max_wait).await,
                        "reset" => limiter.reset(name).await.map(|()| Decision::default()),
                        "hold" => limiter.hold(name, amount, ttl).await.map(|hold| hold.decision().binding),
                        _ => limiter.take(name, amount).await,
                    }
                };
                within(deadline, call).await
            }
            Self::Threads(limiter) => {
                let (operation, name) = (operation.to_owned(), name.to_owned());
                on_a_thread(move || match operation.as_str() {
                    "peek" => limiter.peek(&name, amount),
                    "take_up_to" => limiter.take_up_to(&name, amount as u64),
                    "charge" => limiter.charge(&name, amount),
                    "give" => limiter.give(&name, amount),
                    "reserve" => limiter.reserve(&name, amount, max_wait),
                    "wait" => limiter.wait(&name, amount, max_wait),
                    "reset" => limiter.reset(&name).map(|()| Decision::default()),
                    "hold" => limiter.hold(&name, amount, ttl).map(|hold| hold.decision().binding),
                    _ => limiter.take(&name, amount),
                })
                .await
            }
        }
    }

    pub async fn call(
        &self,
        operation: &str,
        name: &str,
        request: &Value,
        deadline: Option<Duration>,
    ) -> Done {
        const KNOWN: [&str; 8] = ["take", "peek", "take_up_to", "charge", "give", "reserve", "wait", "reset"];
        if !KNOWN.contains(&operation) {
            return Err(Wrong("Unsupported", format!("there is no {operation:?}")));
        }
        Ok(fields(&self.decide(operation, name, request, deadline).await?))
    }

    pub async fn hold(&self, name: &str, amount: f64, ttl: Duration) -> Result<Hold, Error> {
        match self {
            Self::Tasks(limiter) => limiter.hold(name, amount, ttl).await.map(Hold::Tasks),
            Self::Threads(limiter) => {
                let (limiter, name) = (limiter.clone(), name.to_owned());
                on_a_thread(move || limiter.hold(&name, amount, ttl).map(Hold::Threads)).await
            }
        }
    }

    /// Tasks that hold, and end together in the middle of their work.
    pub async fn hold_cancelled(
        &self,
        name: &str,
        amount: f64,
        ttl: Duration,
        count: u64,
    ) -> Result<(), Error> {
        let (begun, mut begins) = tokio::sync::mpsc::channel(1);
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let (limiter, name, begun) = (self.clone(), name.to_owned(), begun.clone());
                tokio::spawn(async move {
                    let hold = limiter.hold(&name, amount, ttl).await;
                    let _ = begun.send(hold.as_ref().err().cloned()).await;
                    std::future::pending::<()>().await;
                })
            })
            .collect();
        for _ in 0..count {
            if let Some(error) = begins.recv().await.flatten() {
                return Err(error);
            }
        }
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            let _ = task.await;
        }
        Ok(())
    }

    pub async fn close(&self) -> Result<(), Error> {
        match self {
            Self::Tasks(limiter) => limiter.close().await,
            Self::Threads(limiter) => {
                let limiter = limiter.clone();
                on_a_thread(move || limiter.close()).await
            }
        }
    }
}

impl Joint {
    pub fn new(server: &Server, limits: Vec<(String, Limit)>, options: Options) -> Self {
        match server {
            Server::Tasks(server) => {
                Self::Tasks(tokenbucket_client::JointLimiter::with_options(server, limits, options))
            }
            Server::Threads(server) => {
                Self::Threads(sync::JointLimiter::with_options(server, limits, options))
            }
        }
    }

    /// As [`Limiter::waiting`].
    pub fn waiting(&self, request: &Value) -> Self {
        let max_wait = ms(request, "max_wait_ms").unwrap_or_default();
        match self {
            Self::Tasks(limiter) => Self::Tasks(limiter.with_max_wait(max_wait)),
            Self::Threads(limiter) => Self::Threads(limiter.with_max_wait(max_wait)),
        }
    }

    pub async fn take_all(&self, name: &str, costs: HashMap<String, f64>) -> Result<Value, Error> {
        let which: Vec<String> = costs.keys().cloned().collect();
        let costs: Vec<(&str, f64)> = costs.iter().map(|(which, cost)| (which.as_str(), *cost)).collect();
        let decision = match self {
            Self::Tasks(limiter) => limiter.take_all(name, &costs).await?,
            Self::Threads(limiter) => tokio::task::block_in_place(|| limiter.take_all(name, &costs))?,
        };
        let each = which.into_iter().zip(decision.each.iter().map(fields));
        let mut all = fields(&decision.binding);
        all["each"] = Value::Object(each.collect());
        Ok(all)
    }

    pub async fn hold(
        &self,
        name: &str,
        amounts: HashMap<String, f64>,
        ttl: Duration,
    ) -> Result<Held, Error> {
        let of = amounts.keys().cloned().collect();
        let amounts: Vec<(&str, f64)> =
            amounts.iter().map(|(which, amount)| (which.as_str(), *amount)).collect();
        let hold = match self {
            Self::Tasks(limiter) => limiter.hold(name, &amounts, ttl).await.map(Hold::Tasks),
            Self::Threads(limiter) => {
                tokio::task::block_in_place(|| limiter.hold(name, &amounts, ttl)).map(Hold::Threads)
            }
        };
        Ok(Held { hold: hold?, of })
    }
}

impl Hold {
    pub fn decision(&self) -> Value {
        joint_fields(&match self {
            Self::Tasks(hold) => hold.decision(),
            Self::Threads(hold) => hold.decision(),
        })
    }

    fn set_used_of(&self, place: usize, used: f64) -> Result<(), Error> {
        match self {
            Self::Tasks(hold) => hold.set_used_of(place, used),
            Self::Threads(hold) => hold.set_used_of(place, used),
        }
    }
}

impl Held {
    /// `used` is a number, or one for each limit.
    pub async fn settle(&self, used: &Value) -> Result<Value, Error> {
        if let Some(used) = used.as_f64() {
            self.hold.set_used_of(0, used)?;
        }
        for (place, which) in self.of.iter().enumerate() {
            if let Some(used) = used[which].as_f64() {
                self.hold.set_used_of(place, used)?;
            }
        }
        Ok(joint_fields(&match &self.hold {
            Hold::Tasks(hold) => hold.settle().await?,
            Hold::Threads(hold) => tokio::task::block_in_place(|| hold.settle())?,
        }))
    }
}

fn joint_fields(decision: &JointDecision) -> Value {
    fields(&decision.binding)
}

fn fields(decision: &Decision) -> Value {
    json!({
        "allowed": decision.allowed,
        "granted": decision.granted,
        "remaining": decision.remaining,
        "retry_after_ms": decision.retry_after_ms,
        "reset_after_ms": decision.reset_after_ms,
        "degraded": decision.degraded,
        "lost": decision.lost,
    })
}
