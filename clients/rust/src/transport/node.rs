//! One server, and what is known about it.

use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::{MultiplexedConnection as Connection, SendError};
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, PushInfo, PushKind, RedisResult};
use tokio::sync::oneshot;

use crate::transport::address::{timed_out, without_password};
use crate::transport::background::{connecting, timeout, warn};
use crate::transport::link::Link;
use crate::transport::locked::locked;
use crate::transport::sentinel::Sentinels;
use crate::values::{Failure, Fault};

/// The log target of servers, named after the public type: users filter by it.
pub(crate) const LOG: &str = "tokenbucket_client::server";
/// Commands that wait to be written. Callers in a queue would wait for each other's turns to run.
const MOST_IN_A_QUEUE: usize = 100_000;
const BETWEEN_REFUSALS_LOGGED: Duration = Duration::from_secs(60);
/// A tenth of the shortest timeout.
const HEARD_EVERY_US: u64 = 100;

/// One server, and what is known about it. Times are the clock's, in microseconds. An outage is one number, so that nothing
/// can get stuck.
pub(crate) struct Node {
    /// `host:port`, or the name of the master.
    pub(crate) name: Arc<str>,
    target: Target,
    link: ArcSwap<Link>,
    heard_us: AtomicU64,
    /// Until when no call asks it; 0 while it answers.
    away_until_us: AtomicU64,
    next_refusal_us: AtomicU64,
    /// When a call that finds a replica may connect again: it may be elsewhere.
    pub(super) next_move_us: AtomicU64,
    /// When a call whose caller left may look again whether it is there.
    pub(super) next_look_us: AtomicU64,
    /// Set once the log says that it is away.
    is_logged: AtomicBool,
    /// Set once a runtime of callers did not read: only the background thread carries connections then.
    pub(super) is_far: AtomicBool,
    /// Why it did not decide on a call, the last time.
    failure: Mutex<String>,
}

/// What is connected to.
enum Target {
    Server(Client),
    /// Asked each time, and now and then: the master may be another.
    MasterOf(Sentinels),
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Arc<Self>> {
        let name = info.addr().to_string();
        Ok(Self::with(&name, Target::Server(Client::open(info)?)))
    }

    /// The master, wherever it is.
    pub(crate) fn master_of(sentinels: Sentinels) -> Arc<Self> {
        Self::with(&format!("master {}", sentinels.master), Target::MasterOf(sentinels))
    }

    fn with(name: &str, target: Target) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            target,
            link: ArcSwap::new(Link::new()),
            heard_us: AtomicU64::new(0),
            away_until_us: AtomicU64::new(0),
            next_refusal_us: AtomicU64::new(0),
            next_move_us: AtomicU64::new(0),
            next_look_us: AtomicU64::new(0),
            is_logged: AtomicBool::new(false),
            is_far: AtomicBool::new(false),
            failure: Mutex::new("no answer in time".to_owned()),
        })
    }

    /// Returns how to connect to it now. If the master is not that of the link, the next call connects anew.
    pub(super) async fn client(&self, link: &Arc<Link>) -> RedisResult<Client> {
        match &self.target {
            Target::Server(client) => Ok(client.clone()),
            Target::MasterOf(sentinels) => {
                let client = sentinels.find().await?;
                if link.is_elsewhere(client.get_connection_info().addr()) {
                    self.forget(link);
                }
                Ok(client)
            }
        }
    }

    /// Returns the sentinels to ask for the master, if there are any.
    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.target {
            Target::Server(_) => None,
            Target::MasterOf(sentinels) => Some(sentinels),
        }
    }

    /// Connects for all calls, or for one that waits, in the runtime that it runs in. What the server closes is not used again.
    pub(super) async fn connect(
        self: Arc<Self>,
        link: Arc<Link>,
        is_shared: bool,
        within: Duration,
    ) -> RedisResult<Connection> {
        let (node, of_link) = (Arc::downgrade(&self), Arc::downgrade(&link));
        let config = AsyncConnectionConfig::new()
            // Its timers would be those of the runtime. Silence is judged for all calls together.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MOST_IN_A_QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if let (PushKind::Disconnection, Some(node), Some(link)) =
                    (push.kind, node.upgrade(), of_link.upgrade())
                {
                    if is_shared {
                        node.forget(&link);
                    } else {
                        drop(take(&mut *locked(&link.waiters)));
                    }
                }
                Ok::<_, SendError>(())
            });
        let made = async {
            let client = connecting(async move { self.client(&link).await }).await?;
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(without_password)
        };
        timeout(within, made).await.unwrap_or_else(|| Err(timed_out()))
    }

    pub(super) fn link(&self) -> Arc<Link> {
        self.link.load_full()
    }

    /// Connects again for the next call, unless another has begun to.
    pub(super) fn forget(&self, gone: &Arc<Link>) {
        self.link.compare_and_swap(gone, Link::new());
    }

    pub(super) fn hear(&self, now: Duration) {
        let us = us(now);
        // Threads share it: most replies only look at it.
        if us.saturating_sub(self.heard_us.load(Ordering::Acquire)) > HEARD_EVERY_US {
            self.heard_us.fetch_max(us, Ordering::AcqRel);
        }
    }

    /// When something last came from it.
    pub(super) fn heard(&self) -> Duration {
        Duration::from_micros(self.heard_us.load(Ordering::Acquire))
    }

    pub(super) fn is_away(&self) -> bool {
        self.away_until_us.load(Ordering::Acquire) != 0
    }

    /// Returns whether to ask it. While it is away, the first call after that moment does, and moves the moment forward.
    pub(super) fn admits(&self, now: Duration, between: Duration) -> bool {
        let until = self.away_until_us.load(Ordering::Acquire);
        let next = us(now.saturating_add(between));
        let claim =
            || self.away_until_us.compare_exchange(until, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        until == 0 || us(now) >= until && claim()
    }

    /// Notes what a failure says about it: whether it is away for that time, or answers. Returns what ends once that is logged.
    pub(super) fn note(
        &self,
        failure: &Failure,
        now: Duration,
        away_for: Duration,
    ) -> Option<oneshot::Receiver<()>> {
        if matches!(failure, Failure::NotSent) {
            return None;
        }
        let why = failure.to_string();
        // The driver writes several about what is no reply.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        locked(&self.failure).clone_from(&why);
        if failure.is_away() || failure.code() == Some("READONLY") {
            if let Some(sentinels) = self.sentinels() {
                sentinels.doubt();
            }
        }
        match failure.fault() {
            Fault::Away => {
                self.away_until_us.store(us(now.saturating_add(away_for)), Ordering::Release);
                if !self.is_logged.swap(true, Ordering::AcqRel) {
                    return warn(LOG, format!("cannot ask Redis for limits: {}: {why}", self.name));
                }
            }
            Fault::Refusing => {
                self.answers();
                if is_due(&self.next_refusal_us, now, BETWEEN_REFUSALS_LOGGED) {
                    let name = &self.name;
                    return warn(LOG, format!("{name} refuses calls, which are not limited by it: {why}"));
                }
            }
            Fault::Callers if failure.is_reply() => self.answers(),
            Fault::Callers | Fault::OneCall => {}
        }
        None
    }

    /// Notes that it answers, if only by a refusal.
    pub(super) fn answers(&self) {
        if self.is_away() {
            self.away_until_us.store(0, Ordering::Release);
        }
    }

    /// Notes that it decided on a call.
    pub(super) fn decides(&self) {
        self.answers();
        if self.is_logged.load(Ordering::Acquire) && self.is_logged.swap(false, Ordering::AcqRel) {
            warn(LOG, format!("Redis is back, limiting again: {}", self.name));
        }
    }

    /// Notes a new connection: the next call finds out whether the server is back.
    pub(super) fn connected(&self, now: Duration) {
        self.hear(now);
        let at_once = |us| (us > 1).then_some(1);
        let _ = self.away_until_us.fetch_update(Ordering::AcqRel, Ordering::Acquire, at_once);
    }

    /// Why it does not decide, and where it is.
    pub(crate) fn failure(&self) -> String {
        format!("{}: {}", self.name, locked(&self.failure))
    }
}

/// Returns whether this call is due, and sets when the next one is. Only one of several concurrent calls is due.
pub(super) fn is_due(next_us: &AtomicU64, now: Duration, between: Duration) -> bool {
    let anew = |at| (us(now) >= at).then(|| us(now.saturating_add(between)));
    next_us.fetch_update(Ordering::AcqRel, Ordering::Acquire, anew).is_ok()
}

/// Never 0.
fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}
