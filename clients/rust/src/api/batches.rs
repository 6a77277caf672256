//! Tokens fetched in batches and spent here, so that most takes need no server.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;
use redis::{FromRedisValue, Value};
use tokio::sync::Notify;

use crate::transport::calls::{Answer, How};
use crate::transport::locked::locked;
use crate::transport::node::Node;
use crate::transport::Transport;
use crate::values::decision::Decision;
use crate::values::error::Error;
use crate::values::limit::Limit;
use crate::values::request::Request;

const MOST_BATCHES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// More than a bucket ever holds is no number of tokens to a server.
const MOST_TOKENS: u64 = 1_000_000_000_000;

pub(crate) struct Batches {
    pub(crate) size: u64,
    of_names: Mutex<LruCache<(String, Limit), Arc<Batch>>>,
}

/// The tokens of one name that are here, and what the last fetch said.
pub(crate) struct Batch {
    transport: Transport,
    key: String,
    limit: Limit,
    state: Mutex<State>,
    fetched: Notify,
}

#[derive(Default)]
struct State {
    tokens: u64,
    fetched_at: Duration,
    /// When an empty bucket would be full: then the tokens here are too many.
    stale_at: Duration,
    reply: Decision,
    /// What callers that wait for a fetch want together.
    wanted: u64,
    is_fetching: bool,
    /// The number of fetches that have begun.
    begun: u64,
    /// The number of the last that is over, and what came of it.
    last: u64,
    outcome: Option<Result<Outcome, Error>>,
    /// No new caller finds it any longer: what is left goes back.
    is_closed: bool,
}

#[derive(Clone)]
enum Outcome {
    /// As many as were asked for.
    Full,
    /// All that the bucket had. A take of 1 would find this, when the server was asked.
    Emptied(Decision, Duration),
    Away(Arc<Node>),
}

pub(crate) enum Verdict {
    Granted(Decision),
    /// And when the server was asked.
    Denied(Decision, Duration),
    Away(Arc<Node>),
}

/// A caller that waits for a fetch.
struct Waiting<'a> {
    batch: &'a Batch,
    cost: u64,
}

impl Batches {
    pub(crate) fn new(size: u64) -> Option<Self> {
        (size > 1).then(|| Self { size, of_names: Mutex::new(LruCache::new(MOST_BATCHES)) })
    }

    /// The batch of a name, and how its key is made if it is new.
    pub(crate) fn of(
        &self,
        transport: &Transport,
        name: &str,
        limit: &Limit,
        key: impl FnOnce() -> String,
    ) -> Arc<Batch> {
        let mut batches = locked(&self.of_names);
        let place = (name.to_owned(), limit.clone());
        if let Some(batch) = batches.get(&place) {
            return batch.clone();
        }
        let batch = Arc::new(Batch {
            transport: transport.clone(),
            key: key(),
            limit: limit.clone(),
            state: Mutex::default(),
            fetched: Notify::new(),
        });
        let evicted = batches.push(place, batch.clone());
        drop(batches);
        if let Some((_, evicted)) = evicted {
            transport.send_all(evicted.close().into_iter().collect());
        }
        batch
    }

    /// Closes all, and returns what gives their tokens back.
    pub(crate) fn close(&self) -> Vec<Request> {
        let mut batches = locked(&self.of_names);
        std::iter::from_fn(|| batches.pop_lru()).filter_map(|(_, batch)| batch.close()).collect()
    }

    /// Drops the tokens of a name: its bucket is full.
    pub(crate) fn forget(&self, name: &str, limit: &Limit) {
        locked(&self.of_names).pop(&(name.to_owned(), limit.clone()));
    }
}

impl Batch {
    /// Spends tokens that are here, unless callers that came before want them. None if they do not suffice.
    pub(crate) fn spend(&self, cost: u64, now: Duration) -> Option<Decision> {
        let mut state = locked(&self.state);
        (state.left(now) >= state.wanted.saturating_add(cost)).then(|| state.spend(cost, now))
    }

    /// Waits for the next fetch, which begins now unless it is under way: then for the one after it.
    pub(crate) async fn fetched(self: &Arc<Self>, cost: u64, size: u64) -> Result<Verdict, Error> {
        let begun = {
            let mut state = locked(&self.state);
            state.wanted = state.wanted.saturating_add(cost);
            state.begun
        };
        let _waiting = Waiting { batch: self, cost };
        loop {
            let fetched = self.fetched.notified();
            let begins = {
                let mut state = locked(&self.state);
                if let Some(verdict) = state.verdict(&self.limit, cost, begun, self.transport.clock().now()) {
                    return verdict;
                }
                !std::mem::replace(&mut state.is_fetching, true)
            };
            if begins {
                // In the background: a caller that leaves, or is busy, must not keep the others waiting.
                self.transport.spawn(self.clone().fetch(size));
            }
            fetched.await;
        }
    }

    async fn fetch(self: Arc<Self>, size: u64) {
        let asked_at = self.transport.clock().now();
        let most = {
            let mut state = locked(&self.state);
            state.begun += 1;
            // Some of them may have their tokens here, and have not looked yet.
            let lacking = state.wanted.saturating_sub(state.left(asked_at));
            lacking.clamp(size, MOST_TOKENS.max(size))
        };
        let request = Request::fetch(self.key.clone(), &self.limit, most);
        let answer = self.transport.ask(&request, How::default()).await;
        let mut state = locked(&self.state);
        let outcome = answer.and_then(|answer| match answer {
            Answer::Replies(replies) => {
                let read = |place| Decision::from_redis_value_ref(replies.get(place).unwrap_or(&Value::Nil));
                let (fetched, peeked) = (read(0)?, read(1)?);
                state.add(&self.limit, fetched, asked_at);
                let is_full = fetched.granted >= most;
                Ok(if is_full { Outcome::Full } else { Outcome::Emptied(peeked, asked_at) })
            }
            Answer::Away(node, _) | Answer::Lost(node) => Ok(Outcome::Away(node)),
        });
        (state.outcome, state.last, state.is_fetching) = (Some(outcome), state.begun, false);
        drop(state);
        self.fetched.notify_waiters();
        self.give_back_if_closed();
    }

    fn close(&self) -> Option<Request> {
        let mut state = locked(&self.state);
        state.is_closed = true;
        let left = state.left(self.transport.clock().now());
        state.tokens = 0;
        (left > 0).then(|| {
            let words = [Some(left.into()), None];
            Request::one("TB.GIVE", self.key.clone(), &self.limit, words)
        })
    }

    fn give_back_if_closed(&self) {
        let is_over = {
            let state = locked(&self.state);
            state.is_closed && state.wanted == 0
        };
        if is_over {
            self.transport.send_all(self.close().into_iter().collect());
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.batch.state);
        state.wanted = state.wanted.saturating_sub(self.cost);
        drop(state);
        self.batch.give_back_if_closed();
    }
}

impl State {
    /// The tokens that may be spent.
    fn left(&mut self, now: Duration) -> u64 {
        if now >= self.stale_at {
            self.tokens = 0;
        }
        self.tokens
    }

    fn add(&mut self, limit: &Limit, reply: Decision, asked_at: Duration) {
        self.tokens = self.left(asked_at) + reply.granted;
        (self.fetched_at, self.reply) = (asked_at, reply);
        self.stale_at = asked_at + fills_in(limit, reply);
    }

    fn spend(&mut self, cost: u64, now: Duration) -> Decision {
        self.tokens -= cost;
        let reply = self.reply.later(now.saturating_sub(self.fetched_at), 0);
        // The tokens of this process and of the bucket, as of the last fetch.
        let remaining = reply.remaining.saturating_add_unsigned(self.tokens);
        Decision { allowed: true, granted: 1, retry_after_ms: 0, remaining, ..reply }
    }

    /// Decides by a fetch that began after the caller came. None if another is needed.
    fn verdict(
        &mut self,
        limit: &Limit,
        cost: u64,
        begun: u64,
        now: Duration,
    ) -> Option<Result<Verdict, Error>> {
        let outcome = self.outcome.clone().filter(|_| self.last > begun)?;
        if self.tokens >= cost {
            return Some(Ok(Verdict::Granted(self.spend(cost, now))));
        }
        Some(match outcome {
            Ok(Outcome::Full) => return None,
            Ok(Outcome::Emptied(peeked, asked_at)) => {
                Ok(Verdict::Denied(denial(limit, peeked, cost, self.tokens), asked_at))
            }
            Ok(Outcome::Away(node)) => Ok(Verdict::Away(node)),
            Err(error) => Err(error),
        })
    }
}

/// In what time a bucket fills: so long it would keep the tokens that were fetched.
fn fills_in(limit: &Limit, reply: Decision) -> Duration {
    if limit.is_calendar() {
        // At a boundary.
        return Duration::from_millis(reply.reset_after_ms.try_into().unwrap_or(0));
    }
    let us = limit.lasts_us(limit.capacity_micro()).unwrap_or(0);
    Duration::from_micros(us)
}

/// The denial of a cost above the `tokens` that are here, when the bucket is empty but for what `peeked` says.
fn denial(limit: &Limit, peeked: Decision, cost: u64, tokens: u64) -> Decision {
    let remaining = peeked.remaining.saturating_add_unsigned(tokens);
    let more = micro(cost.saturating_sub(tokens).saturating_sub(1));
    let retry_after_ms = if micro(cost) > limit.capacity_micro() {
        -1
    } else if limit.is_calendar() || more == 0 {
        peeked.retry_after_ms
    } else {
        let more_ms =
            limit.lasts_us(more).map_or(-1, |us| i64::try_from(us.div_ceil(1000)).unwrap_or(i64::MAX));
        peeked.retry_after_ms.max(0).saturating_add(more_ms)
    };
    // They may have flowed in since.
    let retry_after_ms = if retry_after_ms == 0 { 1 } else { retry_after_ms };
    Decision { allowed: false, granted: 0, retry_after_ms, remaining, ..peeked }
}

fn micro(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}
