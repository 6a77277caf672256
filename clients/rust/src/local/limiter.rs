//! The local limiter: what limits while the server is away, and what the fake decides with.
//!
//! The arithmetic is the module's own.

use std::num::NonZeroUsize;

use lru::LruCache;
use redis::{Arg, Cmd, RedisError, RedisResult, Value};
use tokenbucket_core::bucket::{Bucket, Change, Decision};
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::Extension;
use tokenbucket_core::plan::Plan;
use tokenbucket_core::request::{self, OneOf, Request};

const MOST_NAMES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

type Read = for<'a> fn(&[&'a [u8]]) -> Result<Vec<Request<&'a [u8]>>, Refusal>;

/// The commands that limiters send, as their errors show them, and what reads them.
const COMMANDS: [(&str, Read); 11] = [
    ("TB.TAKE key capacity rate [cost]", |words| Ok(vec![request::take(words)?])),
    ("TB.PEEK key capacity rate [cost]", |words| Ok(vec![request::peek(words)?])),
    ("TB.TAKEUPTO key capacity rate max", |words| Ok(vec![request::take_up_to(words)?])),
    ("TB.RESERVE key capacity rate cost max_wait_ms", |words| Ok(vec![request::reserve(words)?])),
    ("TB.CHARGE key capacity rate amount", |words| Ok(vec![request::charge(words)?])),
    ("TB.GIVE key capacity rate amount", |words| Ok(vec![request::give(words)?])),
    ("TB.HOLD key capacity rate amount ttl_ms id", |words| Ok(vec![request::hold(words)?])),
    ("TB.SETTLE key capacity rate id used", |words| Ok(vec![request::settle(words)?])),
    ("TB.MTAKE numkeys key capacity rate cost [key capacity rate cost ...]", |words| {
        request::multi_take(words)
    }),
    ("TB.MHOLD numkeys ttl_ms id key capacity rate amount [key capacity rate amount ...]", |words| {
        request::multi_hold(words)
    }),
    ("TB.MSETTLE numkeys id key capacity rate used [key capacity rate used ...]", |words| {
        request::multi_settle(words)
    }),
];

type ReadAny = for<'a> fn(&[&'a [u8]]) -> Result<OneOf<&'a [u8]>, Refusal>;

/// The commands on alternatives.
const OF_ALTERNATIVES: [(&str, ReadAny); 2] = [
    ("TB.TAKEANY numkeys each key capacity rate cost [key capacity rate cost ...]", |words| {
        request::take_any(words)
    }),
    ("TB.HOLDANY numkeys each ttl_ms id key capacity rate amount [key capacity rate amount ...]", |words| {
        request::hold_any(words)
    }),
];

/// The buckets that are not full, by key.
pub(crate) struct LocalLimiter {
    /// Since 1970.
    pub(crate) now_us: i64,
    of_keys: LruCache<Vec<u8>, Stored>,
}

struct Stored {
    bucket: Bucket,
    extension: Extension,
    /// When it is full under each limit that it had: from then on under every limit. In Unix milliseconds.
    expires_at_ms: i64,
}

impl LocalLimiter {
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
        let is_named = |syntax: &str| syntax.split(' ').next() == Some(&*name);
        if let Some((syntax, read)) = OF_ALTERNATIVES.iter().find(|(syntax, _)| is_named(syntax)) {
            let decided = read(arguments).and_then(|one_of| self.decide_any(&one_of));
            let (binding, each) = decided.map_err(|refusal| refused(&refusal.line(syntax, arguments)))?;
            return Ok(joint(binding, each));
        }
        let command = COMMANDS.iter().find(|(syntax, _)| is_named(syntax));
        let (syntax, read) = command.ok_or_else(|| refused(&format!("ERR unknown command '{name}'")))?;
        let decided = read(arguments).and_then(|requests| self.decide(&requests, name == "TB.PEEK"));
        let each = decided.map_err(|refusal| refused(&refusal.line(syntax, arguments)))?;
        let binding = Decision::binding(each.iter().copied());
        Ok(if each.len() > 1 { joint(binding, each) } else { Value::Array(fields(binding)) })
    }

    /// Changes the buckets of the first alternative that allows it, and returns its number as `allowed`.
    fn decide_any(&mut self, one_of: &OneOf<&[u8]>) -> Result<(Decision, Vec<Decision>), Refusal> {
        let held = one_of.held(|request| self.held_micro(request));
        let mut soonest = None;
        for (number, (first, requests)) in (1..).zip(one_of.alternatives()) {
            if held.is_some_and(|held| held != number) {
                continue;
            }
            let each = self.decide(requests, false).map_err(|refusal| refusal.behind(first))?;
            let binding = Decision::binding(each.iter().copied());
            if binding.allowed > 0 {
                return Ok((Decision { allowed: number, ..binding }, each));
            }
            let length = |one: &Decision| one.retry_after_ms as u64; // -1 is the longest.
            if soonest.as_ref().is_none_or(|(least, _)| length(&binding) < length(least)) {
                soonest = Some((binding, each));
            }
        }
        soonest.ok_or_else(|| Error::NumKeys.into())
    }

    fn held_micro(&self, request: &Request<&[u8]>) -> i64 {
        let held = |id| self.of_keys.peek(request.key)?.extension.holds.outstanding_of(id, self.now_us);
        request.id().and_then(|id| held(id)).map_or(0, |hold| hold.amount_micro)
    }

    /// Changes all buckets as requested, or none.
    fn decide(&mut self, requests: &[Request<&[u8]>], is_peek: bool) -> Result<Vec<Decision>, Refusal> {
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
        let decisions = requests.iter().zip(plans).map(|(request, plan)| match plan {
            Plan::Outcome(outcome) if is_peek => outcome.decision,
            plan => self.apply(request, plan),
        });
        Ok(decisions.collect())
    }

    fn plan(&mut self, request: &Request<&[u8]>) -> Result<Plan, Error> {
        let now_us = self.now_us;
        if self.of_keys.peek(request.key).is_some_and(|stored| stored.expires_at_ms < now_us / 1000) {
            self.of_keys.pop(request.key);
        }
        self.look(request.key, |bucket, extension| request.plan(bucket, Some(extension), usize::MAX, now_us))
    }

    fn denied_by_another(&mut self, request: &Request<&[u8]>) -> Plan {
        let now_us = self.now_us;
        self.look(request.key, |bucket, extension| {
            Plan::Outcome(request.limit.denied_by_another(bucket, &*extension, now_us))
        })
    }

    /// What is stored; no bucket is a full one.
    fn look<T>(&mut self, key: &[u8], see: impl FnOnce(Option<Bucket>, &mut Extension) -> T) -> T {
        match self.of_keys.get_mut(key) {
            Some(Stored { bucket, extension, .. }) => see(Some(*bucket), extension),
            None => see(None, &mut Extension::default()),
        }
    }

    fn apply(&mut self, request: &Request<&[u8]>, plan: Plan) -> Decision {
        let now_us = self.now_us;
        let outcome = match plan {
            Plan::Outcome(outcome) => outcome,
            Plan::Hold { bucket, taken_micro, amount_micro } => {
                let extension = &mut self.store(request.key, bucket).extension;
                request.change_hold(extension, bucket, taken_micro, amount_micro, now_us)
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
        let new = || Stored { bucket, extension: Extension::default(), expires_at_ms: 0 };
        let stored = self.of_keys.get_or_insert_mut(key.to_vec(), new);
        stored.bucket = bucket;
        stored.extension.holds.drop_ended(now_us);
        stored
    }
}

fn joint(binding: Decision, each: Vec<Decision>) -> Value {
    let mut reply = fields(binding);
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
