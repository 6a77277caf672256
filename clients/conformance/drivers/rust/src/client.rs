//! The package for tasks and the package for threads, with one face.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use redis::RedisResult;
use serde_json::{json, Value};
use tokenbucket_client::{sync, Decision, Error, JointDecision, Limit, Options, ServerOptions};
use tokio::task::block_in_place;

use crate::{ms, number, Wrong};

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

/// What either package answers to the same call.
macro_rules! either {
    ($kind:ident, $this:expr, $one:ident => $call:expr) => {
        match $this {
            $kind::Tasks($one) => $call,
            $kind::Threads($one) => $call,
        }
    };
}

/// What either package makes of itself by the same call.
macro_rules! made {
    ($kind:ident, $this:expr, $one:ident => $call:expr) => {
        match $this {
            $kind::Tasks($one) => $kind::Tasks($call),
            $kind::Threads($one) => $kind::Threads($call),
        }
    };
}

impl Server {
    pub fn single(is_sync: bool, url: &str, options: ServerOptions) -> RedisResult<Self> {
        if is_sync {
            return sync::Server::connect_with(url, options).map(Self::Threads);
        }
        tokenbucket_client::Server::connect_with(url, options).map(Self::Tasks)
    }

    pub fn cluster(is_sync: bool, urls: Vec<String>, options: ServerOptions) -> RedisResult<Self> {
        if is_sync {
            return sync::Server::cluster_with(urls, options).map(Self::Threads);
        }
        tokenbucket_client::Server::cluster_with(urls, options).map(Self::Tasks)
    }

    pub fn sentinel(
        is_sync: bool,
        master: &str,
        nodes: Vec<String>,
        options: ServerOptions,
    ) -> RedisResult<Self> {
        if is_sync {
            return sync::Server::sentinel_with(master, nodes, options).map(Self::Threads);
        }
        tokenbucket_client::Server::sentinel_with(master, nodes, options).map(Self::Tasks)
    }

    pub fn degraded_count(&self) -> u64 {
        either!(Server, self, server => server.degraded_count())
    }
}

/// Each call of threads has a thread, as it has in a program that uses them.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(work()));
    is_done.await.expect("a thread")
}

/// Drops the call when its caller's deadline is over.
pub async fn within<T, E: From<Error>>(
    deadline: Option<Duration>,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match deadline {
        None => call.await,
        Some(deadline) => {
            tokio::time::timeout(deadline, call).await.unwrap_or(Err(Error::DeadlinePassed.into()))
        }
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
        let waiting = made!(Limiter, self, limiter => limiter.with_max_wait(max_wait));
        let Some(tenant) = request["share"].as_str() else { return Ok(waiting) };
        let weight = number(request, "weight");
        Ok(made!(Limiter, waiting, limiter => limiter.with_share(tenant, weight)?))
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
    ) -> Result<Decision, Wrong> {
        let (cost, amount) = (number(request, "cost"), number(request, "amount"));
        let [max_wait, ttl] = ["max_wait_ms", "ttl_ms"].map(|field| ms(request, field).unwrap_or_default());
        macro_rules! call {
            ($limiter:ident, $operation:expr, $name:expr $(, $wait:tt)?) => {
                match $operation {
                    "take" => $limiter.take($name, cost)$(.$wait)?,
                    "take_up_to" => $limiter.take_up_to($name, amount as u64)$(.$wait)?,
                    "charge" => $limiter.charge($name, amount)$(.$wait)?,
                    "give" => $limiter.give($name, amount)$(.$wait)?,
                    "wait" => $limiter.wait($name, cost, max_wait)$(.$wait)?,
                    "hold" => $limiter.hold($name, amount, ttl)$(.$wait)?.map(|hold| hold.decision().binding),
                    other => return Err(Wrong("Unsupported", format!("there is no {other:?}"))),
                }
            };
        }
        match self.waiting(request)?.within(deadline) {
            Self::Tasks(limiter) => {
                let call = async { Ok(call!(limiter, operation, name, await)?) };
                within(deadline, call).await
            }
            Self::Threads(limiter) => {
                let (operation, name) = (operation.to_owned(), name.to_owned());
                on_a_thread(move || Ok(call!(limiter, operation.as_str(), &name)?)).await
            }
        }
    }

    pub async fn hold(&self, name: &str, amount: f64, ttl: Duration) -> Result<Hold, Error> {
        match self {
            Self::Tasks(limiter) => limiter.hold(name, amount, ttl).await.map(Hold::Tasks),
            Self::Threads(limiter) => block_in_place(|| limiter.hold(name, amount, ttl)).map(Hold::Threads),
        }
    }

    pub async fn close(&self) -> Result<(), Error> {
        match self {
            Self::Tasks(limiter) => limiter.close().await,
            Self::Threads(limiter) => block_in_place(|| limiter.close()),
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
        made!(Joint, self, limiter => limiter.with_max_wait(max_wait))
    }

    pub async fn take_all(&self, name: &str, costs: HashMap<String, f64>) -> Result<Value, Error> {
        let words: Vec<(&str, f64)> = costs.iter().map(|(which, cost)| (which.as_str(), *cost)).collect();
        let decision = match self {
            Self::Tasks(limiter) => limiter.take_all(name, &words).await?,
            Self::Threads(limiter) => block_in_place(|| limiter.take_all(name, &words))?,
        };
        let mut all = fields(&decision.binding);
        for ((which, _), own) in words.iter().zip(&decision.each) {
            all["each"][which] = fields(own);
        }
        Ok(all)
    }

    pub async fn hold(
        &self,
        name: &str,
        amounts: HashMap<String, f64>,
        ttl: Duration,
    ) -> Result<Held, Error> {
        let words: Vec<(&str, f64)> =
            amounts.iter().map(|(which, amount)| (which.as_str(), *amount)).collect();
        let hold = match self {
            Self::Tasks(limiter) => limiter.hold(name, &words, ttl).await.map(Hold::Tasks),
            Self::Threads(limiter) => block_in_place(|| limiter.hold(name, &words, ttl)).map(Hold::Threads),
        };
        Ok(Held { hold: hold?, of: amounts.into_keys().collect() })
    }
}

impl Held {
    pub fn decision(&self) -> Value {
        joint_fields(&either!(Hold, &self.hold, hold => hold.decision()))
    }

    pub fn is_lost(&self) -> bool {
        either!(Hold, &self.hold, hold => hold.is_lost())
    }

    /// `used` is a number, or one for each limit.
    pub async fn settle(&self, used: &Value) -> Result<Value, Error> {
        if let Some(used) = used.as_f64() {
            either!(Hold, &self.hold, hold => hold.set_used_of(0, used))?;
        }
        for (place, which) in self.of.iter().enumerate() {
            if let Some(used) = used[which].as_f64() {
                either!(Hold, &self.hold, hold => hold.set_used_of(place, used))?;
            }
        }
        Ok(joint_fields(&match &self.hold {
            Hold::Tasks(hold) => hold.settle().await?,
            Hold::Threads(hold) => block_in_place(|| hold.settle())?,
        }))
    }
}

fn joint_fields(decision: &JointDecision) -> Value {
    fields(&decision.binding)
}

pub fn fields(decision: &Decision) -> Value {
    json!({
        "allowed": decision.allowed,
        "granted": decision.granted,
        "remaining": decision.remaining,
        "retry_after_ms": decision.retry_after_ms,
        "degraded": decision.degraded,
        "lost": decision.lost,
        "shadowed": decision.shadowed,
    })
}
