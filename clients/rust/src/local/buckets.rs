//! Buckets in this process: what limits while the server is away, and what the fake decides with.
//!
//! The arithmetic is the module's own.

use std::num::NonZeroUsize;

use lru::LruCache;
use redis::{Arg, Cmd, RedisError, RedisResult, Value};
use tokenbucket_core::bucket::{Bucket, Change, Decision};
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::{Holds, Plan};
use tokenbucket_core::request::{self, Request};

const MOST_NAMES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The commands that limiters send, as their errors show them.
const SYNTAX: [&str; 11] = [
    "TB.TAKE key capacity rate [cost]",
    "TB.PEEK key capacity rate [cost]",
    "TB.TAKEUPTO key capacity rate max",
    "TB.RESERVE key capacity rate cost max_wait_ms",
    "TB.CHARGE key capacity rate amount",
    "TB.GIVE key capacity rate amount",
    "TB.HOLD key capacity rate amount ttl_ms id",
    "TB.SETTLE key capacity rate id used",
    "TB.MTAKE numkeys key capacity rate cost [key capacity rate cost ...]",
    "TB.MHOLD numkeys ttl_ms id key capacity rate amount [key capacity rate amount ...]",
    "TB.MSETTLE numkeys id key capacity rate used [key capacity rate used ...]",
];

/// The words of a command.
type Words<'a> = [&'a [u8]];

/// The buckets that are not full, by key.
pub(crate) struct Buckets {
    /// Since 1970.
    pub(crate) now_us: i64,
    of_keys: LruCache<Vec<u8>, Stored>,
}

struct Stored {
    bucket: Bucket,
    holds: Holds,
    /// When it is full under each limit that it had: from then on under every limit. In Unix milliseconds.
    expires_at_ms: i64,
}

impl Buckets {
    /// At most 10,000: the least recently used go first.
    pub(crate) fn bounded() -> Self {
        Self { now_us: 0, of_keys: LruCache::new(MOST_NAMES) }
    }

    pub(crate) fn unbounded() -> Self {
        Self { now_us: 0, of_keys: LruCache::unbounded() }
    }

    /// Runs a command as a server does.
    pub(crate) fn run(&mut self, command: &Cmd) -> RedisResult<Value> {
        let words = command.args_iter().map(|word| match word {
            Arg::Simple(bytes) => bytes,
            _ => &[],
        });
        let words: Vec<&[u8]> = words.collect();
        let (name, arguments) = words.split_first().ok_or_else(|| refused("ERR no command"))?;
        let name = String::from_utf8_lossy(name);
        if name == "DEL" {
            let gone = arguments.iter().filter(|key| self.of_keys.pop(**key).is_some()).count();
            return Ok(Value::Int(gone as i64));
        }
        let syntax = SYNTAX.iter().find(|syntax| syntax.split(' ').next() == Some(&*name));
        let syntax = syntax.ok_or_else(|| refused(&format!("ERR unknown command '{name}'")))?;
        self.call(&name, arguments).map_err(|refusal| refused(&refusal.line(syntax, arguments)))
    }

    fn call(&mut self, name: &str, words: &Words) -> Result<Value, Refusal> {
        let request = match name {
            "TB.MTAKE" => return self.decide(&request::multi_take(words)?).map(joint),
            "TB.MHOLD" => return self.decide(&request::multi_hold(words)?).map(joint),
            "TB.MSETTLE" => return self.decide(&request::multi_settle(words)?).map(joint),
            "TB.PEEK" => {
                let request = request::peek(words)?;
                let Plan::Outcome(outcome) = self.plan(&request)? else { unreachable!("it names no hold") };
                return Ok(Value::Array(fields(outcome.decision)));
            }
            "TB.TAKEUPTO" => request::take_up_to(words)?,
            "TB.RESERVE" => request::reserve(words)?,
            "TB.CHARGE" => request::charge(words)?,
            "TB.GIVE" => request::give(words)?,
            "TB.HOLD" => request::hold(words)?,
            "TB.SETTLE" => request::settle(words)?,
            _ => request::take(words)?,
        };
        let plan = self.plan(&request)?;
        Ok(Value::Array(fields(self.apply(&request, plan))))
    }

    /// Changes all buckets as requested, or none.
    fn decide(&mut self, requests: &[Request<&[u8]>]) -> Result<Vec<Decision>, Refusal> {
        let numbered = requests.iter().enumerate();
        let plans = numbered.map(|(place, one)| self.plan(one).map_err(|error| error.at(place)));
        let mut plans = plans.collect::<Result<Vec<_>, _>>()?;
        let is_denied = |(request, plan): (&Request<_>, &Plan)| request.is_denied(plan);
        if requests.iter().zip(&plans).any(is_denied) {
            for (request, plan) in requests.iter().zip(&mut plans) {
                if !request.is_denied(plan) {
                    *plan = self.denied_by_another(request);
                }
            }
        }
        Ok(requests.iter().zip(plans).map(|(request, plan)| self.apply(request, plan)).collect())
    }

    fn plan(&mut self, request: &Request<&[u8]>) -> Result<Plan, Error> {
        let now_us = self.now_us;
        if self.of_keys.peek(request.key).is_some_and(|stored| stored.expires_at_ms < now_us / 1000) {
            self.of_keys.pop(request.key);
        }
        self.look(request.key, |bucket, holds| request.plan(bucket, Some(holds), usize::MAX, now_us))
    }

    fn denied_by_another(&mut self, request: &Request<&[u8]>) -> Plan {
        let now_us = self.now_us;
        self.look(request.key, |bucket, holds| {
            Plan::Outcome(request.limit.denied_by_another(bucket, &*holds, now_us))
        })
    }

    /// What is stored; no bucket is a full one.
    fn look<T>(&mut self, key: &[u8], see: impl FnOnce(Option<Bucket>, &mut Holds) -> T) -> T {
        match self.of_keys.get_mut(key) {
            Some(Stored { bucket, holds, .. }) => see(Some(*bucket), holds),
            None => see(None, &mut Holds::default()),
        }
    }

    fn apply(&mut self, request: &Request<&[u8]>, plan: Plan) -> Decision {
        let now_us = self.now_us;
        let outcome = match plan {
            Plan::Outcome(outcome) => outcome,
            Plan::Hold { bucket, taken_micro, amount_micro } => {
                let holds = &mut self.store(request.key, bucket).holds;
                request.change_hold(holds, bucket, taken_micro, amount_micro, now_us)
            }
        };
        match outcome.change {
            Change::Keep => (),
            Change::Store { bucket, full_at_us } => {
                let window = ExpiryWindow::new(full_at_us, now_us);
                let stored = self.store(request.key, bucket);
                if !window.accepts(stored.expires_at_ms) {
                    stored.expires_at_ms = window.latest_ms;
                }
            }
            Change::Clear => drop(self.of_keys.pop(request.key)),
        }
        outcome.decision
    }

    /// What has ended of the holds is in the level.
    fn store(&mut self, key: &[u8], bucket: Bucket) -> &mut Stored {
        let now_us = self.now_us;
        let new = || Stored { bucket, holds: Holds::default(), expires_at_ms: 0 };
        let stored = self.of_keys.get_or_insert_mut(key.to_vec(), new);
        stored.bucket = bucket;
        stored.holds.drop_ended(now_us);
        stored
    }
}

/// The binding decision, then each bucket's own.
fn joint(each: Vec<Decision>) -> Value {
    let mut reply = fields(Decision::binding(each.iter().copied()));
    reply.push(Value::Array(each.into_iter().map(|one| Value::Array(fields(one))).collect()));
    Value::Array(reply)
}

fn fields(decision: Decision) -> Vec<Value> {
    let Decision { allowed, remaining, retry_after_ms, reset_after_ms } = decision;
    [allowed, remaining, retry_after_ms, reset_after_ms].map(Value::Int).to_vec()
}

/// Returns the error that the driver makes of a server's line.
fn refused(line: &str) -> RedisError {
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
    reply.and_then(Value::extract_error).expect_err("an error")
}
