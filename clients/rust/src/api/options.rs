//! Options of servers and limiters.

use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::values::rules::{RETRY_EVERY, TIMEOUT};
use crate::{Decision, Limit};

/// The longest time that a timer runs. Longer options count as this.
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What decides while the server is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// This process enforces the same limit in memory, for at most 10,000 names.
    #[default]
    Local,
    /// Every call is allowed.
    Open,
    /// Every call is denied.
    Closed,
    /// Every call is an [`Error::ServerAway`](crate::Error::ServerAway).
    Error,
}

/// What decides if the server has not loaded the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: each call is an error.
    #[default]
    None,
    /// A Lua script, on keys of its own that end in `:script`. It has no holds, no calendar rates and at most 10⁹ tokens a
    /// bucket. The package looks for the module after a reconnect and every minute; when it appears, buckets start full.
    Script,
}

/// Options of a server or a cluster, each with a default.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::{Fallback, Server, ServerOptions};
///
/// let options = ServerOptions::new().timeout(Duration::from_millis(50)).fallback(Fallback::Script);
/// let server = Server::connect_with("redis://127.0.0.1:6379", options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    pub(crate) timeout: Duration,
    pub(crate) retry_every: Duration,
    pub(crate) fallback: Fallback,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { timeout: TIMEOUT, retry_every: RETRY_EVERY, fallback: Fallback::None }
    }
}

impl ServerOptions {
    /// Makes options with their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The server is away once it was silent for this time while a call waited; 100 ms by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        // No time at all would be over before anything could arrive.
        Self { timeout: timeout.clamp(Duration::from_millis(1), YEAR), ..self }
    }

    /// Sets how often one call tries a server that is away; 500 ms by default. `OnError` decides the others at once.
    #[must_use]
    pub fn retry_every(self, retry_every: Duration) -> Self {
        Self { retry_every: retry_every.min(YEAR), ..self }
    }

    /// Sets what decides if the server has not loaded the module; [`Fallback::None`] by default.
    #[must_use]
    pub fn fallback(self, fallback: Fallback) -> Self {
        Self { fallback, ..self }
    }
}

/// Options of a limiter, each with a default.
///
/// ```
/// use tokenbucket_client::{OnError, Options};
///
/// let options = Options::new().prefix("search:").on_error(OnError::Closed).batch(100);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) prefix: Arc<str>,
    pub(crate) on_error: OnError,
    pub(crate) remember_denials: usize,
    pub(crate) remember_denials_for: Duration,
    pub(crate) batch: u64,
    pub(crate) shadow: bool,
    pub(crate) hook: Option<Hook>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "tb:".into(),
            on_error: OnError::default(),
            remember_denials: 0,
            remember_denials_for: Duration::MAX,
            batch: 0,
            shadow: false,
            hook: None,
        }
    }
}

impl Options {
    /// Makes options with their defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what every key begins with; `tb:` by default.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<Arc<str>>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Sets what decides while the server is away; [`OnError::Local`] by default.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, sync::Limiter, Limit, OnError, Options};
    ///
    /// let fake = Fake::new();
    /// let options = Options::new().on_error(OnError::Closed);
    /// let logins = Limiter::with_options(&fake.server(), Limit::new(5, "5/15m")?, options);
    /// fake.set_away(true);
    /// let decision = logins.take("ada", 1)?;
    /// assert!(decision.degraded && !decision.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// Refuses denied names in this process until their time has come, and remembers the last `names` of them; 0, the
    /// default, asks every time.
    ///
    /// No call is refused for longer than the server said. A denial counts for the same cost and larger ones, and refuses
    /// every [`Limiter::take_all`](crate::Limiter::take_all) that it is a part of. Tokens that others give back meanwhile are
    /// noticed when that time is over, or that of [`remember_denials_for`](Self::remember_denials_for).
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, sync::Limiter, Limit, Options};
    ///
    /// let options = Options::new().remember_denials(1000);
    /// let limiter = Limiter::with_options(&Fake::new().server(), Limit::new(1, "1/h")?, options);
    /// limiter.take("user:42", 1)?;
    /// limiter.take("user:42", 1)?; // denied by the server
    /// assert!(limiter.take("user:42", 1)?.remembered); // denied here
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn remember_denials(self, names: usize) -> Self {
        Self { remember_denials: names, ..self }
    }

    /// Remembers a denial no longer than this, even if the server said to wait longer; no bound by default. Bounds how long a
    /// name stays denied whose bucket others refund or delete.
    #[must_use]
    pub fn remember_denials_for(self, longest: Duration) -> Self {
        Self { remember_denials_for: longest, ..self }
    }

    /// Fetches this number of tokens at a time, and spends them here: most takes of whole tokens need no server. 0 and 1, the
    /// default, ask every time.
    ///
    /// No more is granted than the server granted. Each process keeps up to `tokens - 1` unused tokens per name, which others
    /// are denied meanwhile. It drops them after the time in which an empty bucket fills, and remembers at most
    /// 10,000 names. [`close`](crate::Limiter::close) gives them back.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, sync::Limiter, Limit, Options};
    ///
    /// let options = Options::new().batch(10);
    /// let limiter = Limiter::with_options(&Fake::new().server(), Limit::new(100, "100/s")?, options);
    /// for _ in 0..10 {
    ///     assert!(limiter.take("user:42", 1)?.allowed); // one call of the server
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn batch(self, tokens: u64) -> Self {
        Self { batch: tokens, ..self }
    }

    /// Lets every call pass, at once; false by default. The server decides and counts as always, and a decision that was a
    /// denial is [shadowed](Decision::shadowed): so you see whom a limit would deny.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, sync::Limiter, Limit, Options};
    ///
    /// let options = Options::new().shadow(true);
    /// let limiter = Limiter::with_options(&Fake::new().server(), Limit::new(1, "1/h")?, options);
    /// assert!(!limiter.take("user:42", 1)?.shadowed);
    /// let decision = limiter.take("user:42", 1)?;
    /// assert!(decision.allowed && decision.shadowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shadow(self, shadow: bool) -> Self {
        Self { shadow, ..self }
    }

    /// Is called with each name, limit, decision and how long it took: for metrics and traces.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, sync::Limiter, Decision, Limit, Options};
    ///
    /// let count = |name: &str, _: &Limit, decision: &Decision, took: Duration| {
    ///     println!("{name}: {} in {took:?}", decision.allowed);
    /// };
    /// let limiter = Limiter::with_options(&Fake::new().server(), Limit::new(10, "5/s")?, Options::new().on_decision(count));
    /// limiter.take("user:42", 1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_decision(
        self,
        hook: impl Fn(&str, &Limit, &Decision, Duration) + Send + Sync + 'static,
    ) -> Self {
        Self { hook: Some(Hook(Arc::new(hook))), ..self }
    }
}

/// Called with each decision.
#[derive(Clone)]
pub(crate) struct Hook(pub(crate) Arc<HookFn>);

type HookFn = dyn Fn(&str, &Limit, &Decision, Duration) + Send + Sync;

impl Hook {
    /// Calls it. A panic of it is logged, and changes nothing.
    pub(crate) fn call(&self, name: &str, limit: &Limit, decision: &Decision, took: Duration) {
        let call = AssertUnwindSafe(|| (self.0)(name, limit, decision, took));
        if catch_unwind(call).is_err() {
            log::error!(target: "tokenbucket_client::limiter", "on_decision panicked");
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
