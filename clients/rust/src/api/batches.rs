//! Tokens fetched in batches and spent here, so that most takes need no server.

use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;
use redis::FromRedisValue;
use tokio::sync::OnceCell;

use crate::api::caller::Caller;
use crate::transport::ask::Answer;
use crate::transport::background::timeout;
use crate::transport::locked::locked;
use crate::transport::node::Node;
use crate::values::{Decision, Error, Limit, Part, Request};

const MOST_BATCHES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

pub(crate) struct Batches {
    pub(crate) size: u64,
    of_names: Mutex<LruCache<(String, Limit), Arc<Batch>>>,
}

/// The tokens of one name that are here, and what the last fetch said.
pub(crate) struct Batch {
    caller: Arc<Caller>,
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
    /// The next fetch, or the one under way. If the call that began it is dropped, a waiting one begins it again.
    fetch: Arc<Fetch>,
    /// No new caller finds it any longer: what is left goes back.
    is_closed: bool,
}

type Fetch = OnceCell<Result<Outcome, Error>>;

#[derive(Clone)]
enum Outcome {
    /// As many as were asked for.
    Full,
    /// All that the bucket had.
    Emptied(Decision),
    Away(Arc<Node>),
}

impl Batches {
    pub(crate) fn new(size: u64) -> Option<Self> {
        (size > 1).then(|| Self { size, of_names: Mutex::new(LruCache::new(MOST_BATCHES)) })
    }

    /// The batch of a name.
    pub(crate) fn of(&self, caller: &Arc<Caller>, part: &Part) -> Arc<Batch> {
        let mut batches = locked(&self.of_names);
        let place = part.place();
        if let Some(batch) = batches.get(&place) {
            return batch.clone();
        }
        let batch = Arc::new(Batch {
            caller: caller.clone(),
            key: caller.key(&part.name),
            limit: part.limit.clone(),
            state: Mutex::default(),
        });
        let evicted = batches.push(place, batch.clone());
        drop(batches);
        if let Some((_, evicted)) = evicted {
            caller.server.transport.send_once(evicted.close(), || ());
        }
        batch
    }

    /// Closes all, and returns what gives their tokens back.
    pub(crate) fn close(&self) -> Vec<Request> {
        let mut batches = locked(&self.of_names);
        std::iter::from_fn(|| batches.pop_lru()).filter_map(|(_, batch)| batch.close()).collect()
    }

    /// Drops the tokens of a name under all limits: its bucket is full.
    pub(crate) fn forget(&self, name: &str) {
        let mut batches = locked(&self.of_names);
        let places: Vec<_> =
            batches.iter().map(|(place, _)| place).filter(|(of, _)| of == name).cloned().collect();
        places.iter().for_each(|place| _ = batches.pop(place));
    }
}

impl Batch {
    /// Spends tokens that are here. None if they do not suffice.
    pub(crate) fn spend(&self, cost: u64, now: Duration) -> Option<Decision> {
        let mut state = locked(&self.state);
        (state.left(now) >= cost).then(|| state.spend(cost, now))
    }

    /// Spends tokens of the fetch that is under way, or begins one. None if other calls were faster: then the call takes what it
    /// needs from the server.
    pub(crate) async fn fetched(&self, cost: u64, size: u64) -> Result<Option<Decision>, Error> {
        for is_last in [false, true] {
            let fetch = locked(&self.state).fetch.clone();
            let mut own = None;
            let Some(outcome) = self.outcome_of(&fetch, cost, size, &mut own).await else {
                locked(&self.state).leave(&fetch);
                continue;
            };
            let outcome = outcome?;
            if let Some(decision) = own.or_else(|| self.spend(cost, self.caller.server.now())) {
                return Ok(Some(decision));
            }
            match outcome {
                Outcome::Away(node) => return self.without_server(&node, cost).map(Some),
                // The first may have begun before tokens came back that this call may count on.
                Outcome::Emptied(fetched) if is_last => return self.denied(fetched, cost).await.map(Some),
                Outcome::Full | Outcome::Emptied(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns what the fetch brings, which this call begins unless it is under way. None if the task that began it is not run: its
    /// thread blocks, or its owner keeps it aside.
    async fn outcome_of(
        &self,
        fetch: &Arc<Fetch>,
        cost: u64,
        size: u64,
        own: &mut Option<Decision>,
    ) -> Option<Result<Outcome, Error>> {
        let (server, is_own) = (&self.caller.server, AtomicBool::new(false));
        let began = server.now();
        let mut outcome = pin!(fetch.get_or_init(|| {
            is_own.store(true, Ordering::Relaxed);
            self.fetch(fetch, cost, size, began, own)
        }));
        if server.transport.clock().is_real() {
            let patience = server.transport.options.timeout.saturating_mul(3);
            match timeout(patience, outcome.as_mut()).await {
                Some(outcome) => return Some(outcome.clone()),
                None if !is_own.load(Ordering::Relaxed) => return None,
                None => {}
            }
        }
        Some(outcome.await.clone())
    }

    async fn fetch(
        &self,
        fetch: &Arc<Fetch>,
        cost: u64,
        size: u64,
        began: Duration,
        own: &mut Option<Decision>,
    ) -> Result<Outcome, Error> {
        let most = size - locked(&self.state).left(began).min(size - 1);
        let request = Request::one("TB.TAKEUPTO", self.key.clone(), &self.limit, most);
        let answer = self.caller.server.transport.ask(&request, Duration::ZERO).await;
        let (fetched, is_closed) = {
            let mut state = locked(&self.state);
            state.leave(fetch);
            let fetched = match answer? {
                Answer::Reply(reply) => Decision::from_redis_value(reply)?,
                Answer::Away(node) => return Ok(Outcome::Away(node)),
                Answer::Lost(_) => unreachable!("a fetch may be repeated"),
            };
            state.add(&self.limit, fetched, began);
            *own = (state.tokens >= cost).then(|| state.spend(cost, began));
            state.tokens = state.tokens.min(size - 1);
            (fetched, state.is_closed)
        };
        if own.is_none() && fetched.granted < most {
            *own = Some(self.denied(fetched, cost).await?);
        }
        if is_closed {
            self.caller.server.transport.send_once(self.close(), || ());
        }
        Ok(if fetched.granted < most { Outcome::Emptied(fetched) } else { Outcome::Full })
    }

    /// Denies a cost above the tokens that are here, when a fetch has emptied the bucket. The server knows when there will be more.
    async fn denied(&self, fetched: Decision, cost: u64) -> Result<Decision, Error> {
        let tokens = locked(&self.state).tokens;
        let lacking = cost.saturating_sub(tokens);
        let mut lacks = fetched;
        // A fetch that got nothing was told when there will be one.
        if lacking > 1 || fetched.granted > 0 {
            let request = Request::one("TB.PEEK", self.key.clone(), &self.limit, lacking);
            lacks = match self.caller.server.transport.ask(&request, Duration::ZERO).await? {
                Answer::Reply(reply) => Decision::from_redis_value(reply)?,
                Answer::Away(node) | Answer::Lost(node) => return self.without_server(&node, cost),
            };
        }
        // They may have flowed in since.
        let retry_after_ms = if lacks.retry_after_ms == 0 { 1 } else { lacks.retry_after_ms };
        let remaining = lacks.remaining.saturating_add_unsigned(tokens);
        Ok(Decision { allowed: false, granted: 0, retry_after_ms, remaining, ..lacks })
    }

    fn without_server(&self, node: &Node, cost: u64) -> Result<Decision, Error> {
        let take = Request::one("TB.MTAKE", self.key.clone(), &self.limit, cost);
        Ok(self.caller.without_server(node, &take)?.binding)
    }

    fn close(&self) -> Option<Request> {
        let mut state = locked(&self.state);
        state.is_closed = true;
        let left = state.left(self.caller.server.now());
        state.tokens = 0;
        (left > 0).then(|| Request::one("TB.GIVE", self.key.clone(), &self.limit, left))
    }
}

impl State {
    /// Lets the next call fetch anew, unless one has begun that.
    fn leave(&mut self, fetch: &Arc<Fetch>) {
        if Arc::ptr_eq(&self.fetch, fetch) {
            self.fetch = Arc::default();
        }
    }

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
        // In the time in which it fills, an empty bucket would keep what was fetched.
        let fills_in = if limit.is_calendar() {
            Duration::from_millis(reply.reset_after_ms.try_into().unwrap_or(0))
        } else {
            Duration::from_micros(limit.fills_in_us().unwrap_or(0))
        };
        self.stale_at = asked_at + fills_in;
    }

    fn spend(&mut self, cost: u64, now: Duration) -> Decision {
        self.tokens -= cost;
        let reply = self.reply.later(now.saturating_sub(self.fetched_at), 0);
        // The tokens of this process and of the bucket, as of the last fetch.
        let remaining = reply.remaining.saturating_add_unsigned(self.tokens);
        Decision { allowed: true, granted: 1, retry_after_ms: 0, remaining, ..reply }
    }
}
