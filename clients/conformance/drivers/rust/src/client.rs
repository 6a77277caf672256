//! The package for tasks and the package for threads, with one face.

use std::collections::HashMap;
use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use serde_json::{json, Value};
use tokenbucket_client::{sync, Decision, Error, JointDecision, Limit, Options, Part};
use tokio::task::block_in_place;

use crate::{limit, ms, number, Wrong};

#[derive(Clone)]
pub struct Server {
    pub inner: tokenbucket_client::Server,
    pub is_sync: bool,
    pub url: String,
}

#[derive(Clone)]
pub enum Limiter {
    Tasks(tokenbucket_client::Limiter),
    Threads(sync::Limiter),
}

/// A limiter, and the limits that joint calls of it name.
#[derive(Clone)]
pub struct Joint {
    pub limiter: Limiter,
    pub limits: HashMap<String, Limit>,
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

/// What either package makes of itself by the same call.
macro_rules! made {
    ($this:expr, $one:ident => $call:expr) => {
        match $this {
            Self::Tasks($one) => Self::Tasks($call),
            Self::Threads($one) => Self::Threads($call),
        }
    };
}

/// What either package decides in the end: a task waits for it, and a thread sleeps.
macro_rules! decided {
    ($kind:ident, $this:expr, $one:ident => $call:expr $(, $made:ident)?) => {
        match $this {
            $kind::Tasks($one) => $call.await$(.map($made::Tasks))?,
            $kind::Threads($one) => block_in_place(|| $call)$(.map($made::Threads))?,
        }
    };
}

/// Each call of threads has a thread, as it has in a program that uses them.
pub async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(work()));
    is_done.await.expect("a thread")
}

fn deadline(request: &Value) -> Option<Duration> {
    request["deadline_us"].as_f64().map(|us| Duration::from_secs_f64(us / 1e6))
}

/// Drops the call when its caller's deadline is over.
pub async fn within<T, E: From<Error>>(
    request: &Value,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let Some(deadline) = deadline(request) else { return call.await };
    tokio::time::timeout(deadline, call).await.unwrap_or(Err(Error::DeadlinePassed.into()))
}

impl Limiter {
    pub fn new(server: &Server, limit: Limit, options: Options) -> Self {
        if server.is_sync {
            return Self::Threads(sync::Limiter::with_options(&server.inner, limit, options));
        }
        Self::Tasks(tokenbucket_client::Limiter::with_options(&server.inner, limit, options))
    }

    /// As it is asked to wait in the server, and as its caller's deadline ends the calls of a thread.
    pub fn waiting(&self, request: &Value) -> Result<Self, Error> {
        let max_wait = ms(request, "max_wait_ms").unwrap_or_default();
        let mut waiting = made!(self, limiter => limiter.with_max_wait(max_wait));
        if let Some(tenant) = request["share"].as_str() {
            waiting = made!(waiting, limiter => limiter.with_share(tenant, number(request, "weight"))?);
        }
        Ok(match (waiting, deadline(request)) {
            (Self::Threads(limiter), Some(deadline)) => Self::Threads(limiter.within(deadline)),
            (waiting, _) => waiting,
        })
    }

    /// One call; a hold is let go at once.
    pub async fn decide(&self, operation: &str, name: &str, request: &Value) -> Result<Decision, Wrong> {
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
        let mut waiting = self.waiting(request)?;
        if let Some([capacity, rate]) = request["limit"].as_array().map(Vec::as_slice) {
            let limit = limit(capacity, rate)?;
            waiting = made!(waiting, limiter => limiter.with_limit(limit));
        }
        match waiting {
            Self::Tasks(limiter) => {
                within(request, async { Ok(call!(limiter, operation, name, await)?) }).await
            }
            Self::Threads(limiter) => {
                let (operation, name) = (operation.to_owned(), name.to_owned());
                on_a_thread(move || Ok(call!(limiter, operation.as_str(), &name)?)).await
            }
        }
    }

    pub async fn hold(&self, name: &str, amount: f64, ttl: Duration) -> Result<Held, Error> {
        let hold = decided!(Limiter, self, limiter => limiter.hold(name, amount, ttl), Hold);
        Ok(Held { hold: hold?, of: Vec::new() })
    }

    pub async fn reset(&self, name: &str) -> Result<(), Error> {
        decided!(Limiter, self, limiter => limiter.reset(name))
    }

    pub async fn close(&self) -> Result<(), Error> {
        decided!(Limiter, self, limiter => limiter.close())
    }
}

impl Joint {
    fn parts(&self, name: &str, amounts: &Value) -> Vec<Part> {
        let amounts = amounts.as_object().into_iter().flatten();
        let part = |(which, amount): (&String, &Value)| {
            Part::tagged(name, which, &self.limits[which], amount.as_f64().unwrap_or(1.0))
        };
        amounts.map(part).collect()
    }

    pub async fn take_all(&self, name: &str, costs: &Value) -> Result<Value, Error> {
        let parts = self.parts(name, costs);
        let decision = decided!(Limiter, &self.limiter, limiter => limiter.take_all(&parts))?;
        Ok(joint_fields(&decision, &names(costs)))
    }

    pub async fn take_any(&self, name: &str, alternatives: &Value) -> Result<Value, Error> {
        let parts = self.alternatives(name, alternatives);
        let decision = decided!(Limiter, &self.limiter, limiter => limiter.take_any(&parts))?;
        Ok(joint_fields(&decision, &names(granted(alternatives, &decision.binding))))
    }

    pub async fn hold(&self, name: &str, amounts: &Value, ttl: Duration) -> Result<Held, Error> {
        let parts = self.parts(name, amounts);
        let hold = decided!(Limiter, &self.limiter, limiter => limiter.hold_all(&parts, ttl), Hold);
        Ok(Held { hold: hold?, of: names(amounts) })
    }

    pub async fn hold_any(&self, name: &str, alternatives: &Value, ttl: Duration) -> Result<Held, Error> {
        let parts = self.alternatives(name, alternatives);
        let hold = decided!(Limiter, &self.limiter, limiter => limiter.hold_any(&parts, ttl), Hold)?;
        let of = names(granted(alternatives, &hold.decision().binding));
        Ok(Held { hold, of })
    }

    fn alternatives(&self, name: &str, alternatives: &Value) -> Vec<Vec<Part>> {
        alternatives.as_array().into_iter().flatten().map(|amounts| self.parts(name, amounts)).collect()
    }
}

fn granted<'a>(alternatives: &'a Value, decision: &Decision) -> &'a Value {
    &alternatives[(decision.granted as usize).wrapping_sub(1)]
}

fn names(amounts: &Value) -> Vec<String> {
    amounts.as_object().into_iter().flatten().map(|(which, _)| which.clone()).collect()
}

fn joint_fields(decision: &JointDecision, of: &[String]) -> Value {
    let mut all = fields(&decision.binding);
    for (which, own) in of.iter().zip(&decision.each) {
        all["each"][which] = fields(own);
    }
    all
}

/// The strings of a list.
pub fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Deref for Hold {
    type Target = tokenbucket_client::Hold;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Tasks(hold) => hold,
            Self::Threads(hold) => hold,
        }
    }
}

impl Held {
    pub fn fields(&self) -> Value {
        joint_fields(&self.hold.decision(), &self.of)
    }

    /// `used` is a number, or one for each limit.
    pub async fn settle(&self, used: &Value) -> Result<Value, Error> {
        if let Some(used) = used.as_f64() {
            self.hold.set_used(used)?;
        }
        for (place, which) in self.of.iter().enumerate() {
            if let Some(used) = used[which].as_f64() {
                self.hold.set_used_of(place, used)?;
            }
        }
        let decision = decided!(Hold, &self.hold, hold => hold.settle())?;
        Ok(fields(&decision.binding))
    }
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
