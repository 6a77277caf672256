//! The connections to a server.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use redis::aio::MultiplexedConnection as Connection;
use redis::{ConnectionAddr, RedisResult};
use tokio::runtime;
use tokio::sync::{OnceCell, Semaphore};

use crate::transport::background::close_dropped;
use crate::transport::locked::locked;

/// Connections beyond these are closed when their calls no longer wait.
const MOST_IDLE_WAITERS: usize = 64;
/// More at once would take longer than each may.
const MOST_CONNECTING: usize = 32;

/// The connections to a server until one of them fails. Then another link takes its place.
pub(crate) struct Link {
    /// The connection that all calls share, once one of them has made it.
    pub(super) shared: OnceCell<RedisResult<Connection>>,
    /// The connection that a runtime of callers carries itself. Replies wake their callers on the spot, instead of from
    /// another thread.
    pub(super) near: OnceLock<(runtime::Id, Connection)>,
    /// When a call whose caller left may look again whether that connection is forgotten.
    pub(super) next_near_look_us: AtomicU64,
    /// How many calls by runtimes came before there was one.
    pub(super) calls: AtomicU32,
    /// Those of calls that have waited, the last used at the end.
    pub(super) waiters: Mutex<Vec<Connection>>,
    /// Bounds how many calls that wait connect at a time.
    pub(super) connecting: Semaphore,
    /// Where the sentinels say that the master is.
    master: OnceLock<String>,
    /// Set once no call may wait on it any longer: the master is elsewhere, or it is forgotten on the way.
    pub(super) is_left: AtomicBool,
    /// When a call that waits may look again at a link that was replaced.
    pub(super) next_look_us: AtomicU64,
}

impl Link {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            shared: OnceCell::new(),
            near: OnceLock::new(),
            next_near_look_us: AtomicU64::new(0),
            calls: AtomicU32::new(0),
            waiters: Mutex::default(),
            connecting: Semaphore::new(MOST_CONNECTING),
            master: OnceLock::new(),
            is_left: AtomicBool::new(false),
            next_look_us: AtomicU64::new(0),
        })
    }

    /// Notes where the master is. Returns whether the link leads elsewhere.
    pub(super) fn is_elsewhere(&self, master: &ConnectionAddr) -> bool {
        let master = master.to_string();
        let is_elsewhere = *self.master.get_or_init(|| master.clone()) != master;
        self.is_left.fetch_or(is_elsewhere, Ordering::Relaxed);
        is_elsewhere
    }

    /// Returns whether the link that took its place leads to another master.
    pub(super) fn is_behind(&self, next: &Self) -> bool {
        self.master.get().zip(next.master.get()).is_some_and(|(own, next)| own != next)
    }

    /// Keeps a connection for the next call that waits.
    pub(super) fn keep(&self, waiter: Connection) {
        let mut waiters = locked(&self.waiters);
        if waiters.len() < MOST_IDLE_WAITERS {
            waiters.push(waiter);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some((runtime, connection)) = self.near.take() {
            drop(connection);
            close_dropped(runtime);
        }
    }
}
