//! Options of limiters.

use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use tokenbucket_core::number::MAX_TOKENS;

use crate::transport::background::{is_here, run_blocking};
use crate::{Decision, Limit};

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

/// Options of a limiter, each with a default.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::{fake::Fake, sync::Limiter, Decision, Limit, OnError, Options};
///
/// let fake = Fake::new();
/// let count = |name: &str, _: &Limit, decision: &Decision, took: Duration| {
///     println!("{name}: {} in {took:?}", decision.allowed);
/// };
/// let options = Options::new().prefix("login:").on_error(OnError::Closed).on_decision(count);
/// let options = options.remember_denials(1000).remember_denials_for(Duration::from_secs(60));
/// let logins = Limiter::with_options(&fake.server(), Limit::new(1, "1/h")?, options);
/// assert!(logins.take("ada", 1)?.allowed);
/// assert!(!logins.take("ada", 1)?.allowed); // denied by the server
/// assert!(logins.take("ada", 1)?.remembered); // denied here
///
/// let pages = Limiter::with_options(&fake.server(), Limit::new(100, "50/s")?, Options::new().batch(20));
/// assert!(pages.take("ada", 1)?.allowed); // fetches 20
/// pages.close()?; // gives 19 back
/// assert_eq!(pages.peek("ada", 0)?.remaining, 99);
///
/// fake.set_away(true);
/// let decision = logins.take("bob", 1)?;
/// assert!(decision.degraded && !decision.allowed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
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
    pub fn prefix(self, prefix: impl Into<Arc<str>>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Sets what decides while the server is away; [`OnError::Local`] by default.
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// Refuses denied names in this process until their time has come, and remembers the last `names` of them; 0, the
    /// default, asks every time.
    ///
    /// No call is refused for longer than the server said. A denial counts for the same cost and larger ones, and refuses
    /// every [`Limiter::take_all`](crate::Limiter::take_all) that it is a part of. Tokens that others give back meanwhile are
    /// noticed when that time is over, or that of [`remember_denials_for`](Self::remember_denials_for).
    pub fn remember_denials(self, names: usize) -> Self {
        Self { remember_denials: names, ..self }
    }

    /// Remembers a denial no longer than this, even if the server said to wait longer; no bound by default. Bounds how long a
    /// name stays denied whose bucket others refund or delete.
    pub fn remember_denials_for(self, longest: Duration) -> Self {
        Self { remember_denials_for: longest, ..self }
    }

    /// Fetches this number of tokens at a time, and spends them here: most takes of whole tokens need no server. 0 and 1, the
    /// default, ask every time. More than 10¹² count as 10¹²: no bucket holds more.
    ///
    /// No more is granted than the server granted. Each process keeps up to `tokens - 1` unused tokens per name, which others
    /// are denied meanwhile. It drops them after the time in which an empty bucket fills, and remembers at most
    /// 10,000 names. [`close`](crate::Limiter::close) gives them back.
    pub fn batch(self, tokens: u64) -> Self {
        Self { batch: tokens.min(MAX_TOKENS.unsigned_abs()), ..self }
    }

    /// Lets every call pass, at once; false by default. The server decides and counts as always, and a decision that was a
    /// denial is [shadowed](Decision::shadowed): so you see whom a limit would deny.
    pub fn shadow(self, shadow: bool) -> Self {
        Self { shadow, ..self }
    }

    /// Is called with each name, limit, decision and how long it took: for metrics and traces.
    pub fn on_decision(
        self,
        hook: impl Fn(&str, &Limit, &Decision, Duration) + Send + Sync + 'static,
    ) -> Self {
        Self { hook: Some(Hook(Some(Arc::new(hook)))), ..self }
    }
}

/// Called with each decision.
#[derive(Clone)]
pub(crate) struct Hook(Option<Arc<HookFn>>);

type HookFn = dyn Fn(&str, &Limit, &Decision, Duration) + Send + Sync;

impl Hook {
    /// Calls it. A panic of it is logged, and changes nothing.
    pub(crate) fn call(&self, name: &str, limit: &Limit, decision: &Decision, took: Duration) {
        let Some(hook) = &self.0 else { return };
        let call = AssertUnwindSafe(|| hook(name, limit, decision, took));
        if catch_unwind(call).is_err() {
            log::error!(target: "tokenbucket_client::limiter", "on_decision panicked");
        }
    }
}

impl Drop for Hook {
    /// What it captured may ask a limiter when it is dropped: that needs a thread that may wait.
    fn drop(&mut self) {
        if is_here() {
            let hook = self.0.take();
            run_blocking(move || drop(hook));
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
