//! Tokens fetched in batches and spent here, so that most takes ask nobody.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use redis::{FromRedisValue, Value};
use tokio::sync::oneshot;

use crate::api::server::Server;
use crate::transport::calls::{Answer, How};
use crate::transport::node::Node;
use crate::values::decision::Decision;
use crate::values::error::Error;
use crate::values::limit::Limit;
use crate::values::request::{Request, Word};

const MOST_BATCHES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// More than a bucket ever holds is no number of tokens to a server.
const MOST_TOKENS: u64 = 1_000_000_000_000;

pub(crate) struct Batches {
    pub(crate) size: u64,
    of_names: Mutex<LruCache<(String, Limit), Arc<Batch>>>,
}

/// The tokens of one name that are here, and the callers who wait for more.
pub(crate) struct Batch {
    server: Server,
    key: String,
    limit: Limit,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tokens: u64,
    fetched_at: Duration,
    /// When an empty bucket would be full: then the tokens here are too many.
    stale_at: Duration,
    reply: Decision,
    waiting: Vec<Waiter>,
    is_fetching: bool,
    /// Nobody finds it any longer: what comes now goes back.
    is_closed: bool,
}

struct Waiter {
    cost: u64,
    verdict: oneshot::Sender<Result<Verdict, Error>>,
}

pub(crate) enum Verdict {
    Granted(Grant),
    /// And when the server was asked.
    Denied(Decision, Duration),
    Away(Arc<Node>),
}

/// Tokens on their way to a caller. If he is gone, they go back into the batch.
pub(crate) struct Grant {
    batch: Arc<Batch>,
    cost: u64,
    decision: Decision,
}

impl Batches {
    pub(crate) fn new(size: u64) -> Option<Self> {
        (size > 1).then(|| Self { size, of_names: Mutex::new(LruCache::new(MOST_BATCHES)) })
    }

    fn locked(&self) -> MutexGuard<'_, LruCache<(String, Limit), Arc<Batch>>> {
        self.of_names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batch of a name, and how its key is made if it is new.
    pub(crate) fn of(
        &self,
        server: &Server,
        name: &str,
        limit: &Limit,
        key: impl FnOnce() -> String,
    ) -> Arc<Batch> {
        let mut batches = self.locked();
        let place = (name.to_owned(), limit.clone());
        if let Some(batch) = batches.get(&place) {
            return batch.clone();
        }
        let batch = Arc::new(Batch {
            server: server.clone(),
            key: key(),
            limit: limit.clone(),
            state: Mutex::default(),
        });
        let evicted = batches.push(place, batch.clone());
        drop(batches);
        if let Some((_, evicted)) = evicted {
            server.send_all(evicted.close().into_iter().collect());
        }
        batch
    }

    /// Closes all, and returns what gives their tokens back.
    pub(crate) fn close(&self) -> Vec<Request> {
        let mut batches = self.locked();
        std::iter::from_fn(|| batches.pop_lru()).filter_map(|(_, batch)| batch.close()).collect()
    }

    /// Drops the tokens of a name: its bucket is full.
    pub(crate) fn forget(&self, name: &str, limit: &Limit) {
        self.locked().pop(&(name.to_owned(), limit.clone()));
    }
}

impl Batch {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spends tokens that are here. None if they do not suffice.
    pub(crate) fn spend(self: &Arc<Self>, cost: u64, now: Duration) -> Option<Decision> {
        let mut state = self.locked();
        (state.left(now) >= cost).then(|| state.spend(cost, now))
    }

    /// Waits for the next fetch, which begins now unless it is under way.
    pub(crate) async fn fetched(self: &Arc<Self>, cost: u64, size: u64) -> Result<Verdict, Error> {
        loop {
            let (verdict, hears) = oneshot::channel();
            let begins = {
                let mut state = self.locked();
                state.waiting.push(Waiter { cost, verdict });
                !std::mem::replace(&mut state.is_fetching, true)
            };
            if begins {
                let fetch = Fetch { batch: self.clone(), is_over: false };
                self.server.spawn(async move { fetch.run(size).await });
            }
            // It ends without a word only with its runtime.
            if let Ok(verdict) = hears.await {
                return verdict;
            }
        }
    }

    fn close(&self) -> Option<Request> {
        let mut state = self.locked();
        state.is_closed = true;
        let left = state.left(self.server.now());
        state.tokens = 0;
        (left > 0).then(|| self.giving(left))
    }

    fn giving(&self, tokens: u64) -> Request {
        Request::one("TB.GIVE", self.key.clone(), &self.limit, [Some(Word::Number(tokens)), None])
    }

    fn put_back(&self, tokens: u64) {
        let mut state = self.locked();
        if !state.is_closed {
            state.tokens += tokens;
            return;
        }
        drop(state);
        self.server.send_all(vec![self.giving(tokens)]);
    }

    /// Decides on all who wait, by what the server replied. Whether some came too late to be asked for.
    fn serve(self: &Arc<Self>, answer: Result<Answer, Error>, most: u64, asked_at: Duration) -> bool {
        let mut state = self.locked();
        let replies = match answer {
            Ok(Answer::Replies(replies)) => read(&replies),
            Ok(Answer::Away(node, _) | Answer::Lost(node)) => {
                state.tell_all(|_| Ok(Verdict::Away(node.clone())));
                return false;
            }
            Err(error) => Err(error),
        };
        let (fetched, peeked) = match replies {
            Ok(replies) => replies,
            Err(error) => {
                state.tell_all(|_| Err(error.clone()));
                return false;
            }
        };
        state.add(&self.limit, fetched, asked_at);
        let now = self.server.now();
        let mut lacking = Vec::new();
        let mut granted = Vec::new();
        for waiter in std::mem::take(&mut state.waiting) {
            if waiter.verdict.is_closed() {
            } else if state.tokens >= waiter.cost {
                let decision = state.spend(waiter.cost, now);
                let grant = Grant { batch: self.clone(), cost: waiter.cost, decision };
                granted.push((waiter.verdict, grant));
            } else {
                lacking.push(waiter);
            }
        }
        state.waiting = lacking;
        let is_empty = fetched.granted < most;
        if is_empty {
            let tokens = state.tokens;
            state.tell_all(|cost| Ok(Verdict::Denied(denial(&self.limit, peeked, cost, tokens), asked_at)));
        }
        let goes_on = !state.waiting.is_empty();
        drop(state);
        for (verdict, grant) in granted {
            // Who is gone lets it fall, and so back into the batch.
            let _ = verdict.send(Ok(Verdict::Granted(grant)));
        }
        self.give_back_if_closed();
        goes_on
    }

    fn give_back_if_closed(&self) {
        let mut state = self.locked();
        if state.is_closed && state.tokens > 0 {
            let left = std::mem::take(&mut state.tokens);
            drop(state);
            self.server.send_all(vec![self.giving(left)]);
        }
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

    fn tell_all(&mut self, verdict: impl Fn(u64) -> Result<Verdict, Error>) {
        for waiter in self.waiting.drain(..) {
            let _ = waiter.verdict.send(verdict(waiter.cost));
        }
    }
}

/// A fetch under way. If it ends with its runtime, the next caller begins another.
struct Fetch {
    batch: Arc<Batch>,
    is_over: bool,
}

impl Fetch {
    async fn run(mut self, size: u64) {
        let batch = self.batch.clone();
        loop {
            let most = {
                let state = batch.locked();
                let wanted = state.waiting.iter().fold(0_u64, |sum, waiter| sum.saturating_add(waiter.cost));
                wanted.clamp(size, MOST_TOKENS.max(size))
            };
            let asked_at = batch.server.now();
            let request = Request::fetch(batch.key.clone(), &batch.limit, most);
            let answer = batch.server.ask(&request, How::default(), asked_at).await;
            if !batch.serve(answer, most, asked_at) {
                let mut state = batch.locked();
                // Some may have come since.
                if state.waiting.is_empty() {
                    state.is_fetching = false;
                    self.is_over = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.batch.locked();
        state.is_fetching = false;
        // They try again.
        state.waiting.clear();
    }
}

impl Grant {
    pub(crate) fn claim(mut self) -> Decision {
        self.cost = 0;
        self.decision
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.cost > 0 {
            self.batch.put_back(self.cost);
        }
    }
}

/// What was fetched, and what a take of 1 would find then.
fn read(replies: &[Value]) -> Result<(Decision, Decision), Error> {
    let one = |place: usize| {
        let reply = replies.get(place).unwrap_or(&Value::Nil);
        Decision::from_redis_value_ref(reply)
            .map_err(|error| Error::Refused { server: "the server".to_owned(), error: error.into() })
    };
    Ok((one(0)?, one(1)?))
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
