//! Limiters for threads.
//!
//! ```
//! use std::time::Duration;
//! use tokenbucket_client::{sync::Limiter, Limit, Server};
//!
//! let server = Server::connect(std::env::var("TOKENBUCKET_URL")?)?; // redis://127.0.0.1:6379
//! let limiter = Limiter::new(&server, Limit::new(500, "200/s")?);
//! if limiter.within(Duration::from_millis(500)).take("alice", 1)?.allowed {
//!     println!("go on");
//! }
//! let hold = limiter.hold("alice", 50, Duration::from_secs(30))?;
//! hold.set_used(12)?;
//! hold.settle()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A thread whose call is alone reads its own reply. A thread of this package reads those of the others.

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use scopeguard::defer;

use crate::transport::background::{is_here, may_wait, timeout, Role, ROLE};
use crate::{Amount, Decision, Error, JointDecision, Limit, Options, Part, Server};

/// Runs a call on this thread, which sleeps meanwhile. The thread may also run a task of a runtime. If it is the one that
/// carries the connections, the policy decides: while it slept, nothing that it waits for could come.
fn block_on<T>(role: Role, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let before = ROLE.replace(if is_here() { Role::CallHere } else { role });
    defer!(ROLE.set(before));
    // In a task of another runtime it has no budget to keep to: nothing would poll it again.
    let call = pin!(tokio::task::unconstrained(call));
    if may_wait() {
        return pollster::block_on(call);
    }
    match call.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decided) => decided,
        Poll::Pending => Err(Error::DeadlinePassed),
    }
}

/// Methods that block on those of the same name.
macro_rules! blocking {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty;)*) => {$(
        #[doc = concat!("See [`crate::Limiter::", stringify!($name), "`].")]
        ///
        /// # Errors
        ///
        /// Returns the same, and [`Error::DeadlinePassed`]: see [`within`](Self::within).
        pub fn $name(&self, $($argument: $type),*) -> Result<$value, Error> {
            self.block_on(self.inner.$name($($argument),*)).map(<$value>::from)
        }
    )*};
}

/// One limit for many names, for threads. Its methods are those of [`crate::Limiter`], which says more of each.
#[derive(Clone, Debug)]
#[must_use]
pub struct Limiter {
    inner: crate::Limiter,
    within: Option<Duration>,
}

impl Limiter {
    /// Makes a limiter whose options have their defaults.
    pub fn new(server: &Server, limit: Limit) -> Self {
        Self::with_options(server, limit, Options::new())
    }

    /// Makes a limiter with these options.
    pub fn with_options(server: &Server, limit: Limit, options: Options) -> Self {
        Self { inner: crate::Limiter::with_options(server, limit, options), within: None }
    }

    /// See [`crate::Limiter::with_limit`].
    pub fn with_limit(&self, limit: Limit) -> Self {
        Self { inner: self.inner.with_limit(limit), within: self.within }
    }

    /// See [`crate::Limiter::with_max_wait`].
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { inner: self.inner.with_max_wait(max_wait), within: self.within }
    }

    /// See [`crate::Limiter::with_share`].
    ///
    /// # Errors
    ///
    /// Returns the same.
    pub fn with_share(&self, tenant: impl Into<String>, weight: impl Into<f64>) -> Result<Self, Error> {
        Ok(Self { inner: self.inner.with_share(tenant, weight)?, within: self.within })
    }

    /// Returns this limiter for a caller that waits for at most `time`: a call that takes longer is an
    /// [`Error::DeadlinePassed`]. That says nothing about the server. The call may have been counted: its tokens are lost.
    pub fn within(&self, time: Duration) -> Self {
        Self { inner: self.inner.clone(), within: Some(time) }
    }

    /// Returns the limit that it was made with.
    pub fn limit(&self) -> &Limit {
        self.inner.limit()
    }

    /// See [`crate::Limiter::remembered`].
    pub fn remembered(&self, name: &str, cost: impl Into<Amount>) -> Option<Decision> {
        self.inner.remembered(name, cost)
    }

    blocking! {
        take(name: &str, cost: impl Into<Amount>) -> Decision;
        peek(name: &str, cost: impl Into<Amount>) -> Decision;
        take_up_to(name: &str, most: u64) -> Decision;
        reserve(name: &str, cost: impl Into<Amount>, max_wait: Duration) -> Decision;
        wait(name: &str, cost: impl Into<Amount>, max_wait: Duration) -> Decision;
        charge(name: &str, amount: impl Into<Amount>) -> Decision;
        give(name: &str, amount: impl Into<Amount>) -> Decision;
        reset(name: &str) -> ();
        take_all(parts: &[Part]) -> JointDecision;
        take_any(alternatives: &[Vec<Part>]) -> JointDecision;
        hold(name: &str, amount: impl Into<Amount>, ttl: Duration) -> Hold;
        hold_all(parts: &[Part], ttl: Duration) -> Hold;
        hold_any(alternatives: &[Vec<Part>], ttl: Duration) -> Hold;
        hold_as(id: &str, parts: &[Part], ttl: Duration) -> JointDecision;
        settle_as(id: &str, parts: &[Part]) -> JointDecision;
        close() -> ();
    }

    fn block_on<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        match self.within {
            None => block_on(Role::Call, call),
            Some(time) => block_on(Role::HurriedCall, async {
                timeout(time, call).await.unwrap_or(Err(Error::DeadlinePassed))
            }),
        }
    }
}

/// Tokens that are reserved for a piece of work, and renewed in the background: a [`crate::Hold`] whose settlement blocks.
///
/// Dropping it settles it, and waits for the reply.
#[must_use = "it is settled when it is dropped"]
pub struct Hold(crate::Hold);

impl From<crate::Hold> for Hold {
    fn from(hold: crate::Hold) -> Self {
        Self(hold)
    }
}

/// Lends the methods that do not block.
impl Deref for Hold {
    type Target = crate::Hold;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Hold {
    /// See [`crate::Hold::settle`].
    ///
    /// # Errors
    ///
    /// Returns the same.
    pub fn settle(&self) -> Result<JointDecision, Error> {
        block_on(Role::Call, self.0.settle())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            log::warn!(target: "tokenbucket_client::sync", "a hold was not settled: {error}");
        }
    }
}
