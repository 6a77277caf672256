//! One server, and what is known about it.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Client, ConnectionInfo, RedisResult};

use crate::transport::connections::{Connections, Target};
use crate::transport::locked::locked;
use crate::transport::sentinel::Sentinels;
use crate::values::error::Failure;

/// The log target of servers, named after the public type: users filter by it.
pub(crate) const LOG: &str = "tokenbucket_client::server";
const BETWEEN_LOOKS_FOR_THE_MODULE: Duration = Duration::from_secs(60);
const BETWEEN_REFUSALS_LOGGED: Duration = Duration::from_secs(60);

/// A tenth of the shortest timeout.
const HEARD_EVERY_US: u64 = 100;

/// The node decides on calls.
const DECIDES: u8 = 0;
const AWAY: u8 = 1;
/// It was away, answers, and has not decided since: it may want a password, or lack the module.
const ANSWERS: u8 = 2;

/// One server, and what is known about it. Times are the clock's.
pub(crate) struct Node {
    /// `host:port`, or the name of the master.
    pub(crate) name: Arc<str>,
    pub(crate) connections: Arc<Connections>,
    /// In microseconds.
    heard_us: AtomicU64,
    state: AtomicU8,
    circuit: Mutex<Circuit>,
}

#[derive(Default)]
struct Circuit {
    /// When a call finds out whether it is back.
    next_probe: Duration,
    /// Why it is away.
    failure: String,
    next_refusal_logged: Duration,
    /// Until when the script decides without the module being looked for. None if the module is there.
    script_until: Option<Duration>,
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
        let (heard_us, state) = (AtomicU64::new(0), AtomicU8::new(DECIDES));
        let connections = Arc::new(Connections::new(target));
        Arc::new(Self { name: name.into(), connections, heard_us, state, circuit: Mutex::default() })
    }

    pub(crate) fn hear(&self, now: Duration) {
        let us = now.as_micros().try_into().unwrap_or(u64::MAX);
        // Threads share it: most replies only look at it.
        if us.saturating_sub(self.heard_us.load(Ordering::Acquire)) > HEARD_EVERY_US {
            self.heard_us.fetch_max(us, Ordering::AcqRel);
        }
    }

    /// When something last came from it.
    pub(crate) fn heard(&self) -> Duration {
        Duration::from_micros(self.heard_us.load(Ordering::Acquire))
    }

    pub(crate) fn is_away(&self) -> bool {
        self.state.load(Ordering::Acquire) == AWAY
    }

    /// Why it does not decide, and where it is.
    pub(crate) fn failure(&self) -> String {
        let failure = locked(&self.circuit).failure.clone();
        let why = if failure.is_empty() { "connecting takes longer than the timeout" } else { &failure };
        format!("{}: {why}", self.name)
    }

    /// Lets a call through. While the node is away, only one in each `probe_every`, which
    /// finds out whether it is back.
    pub(crate) fn admits(&self, now: Duration, probe_every: Duration) -> bool {
        if !self.is_away() {
            return true;
        }
        let mut circuit = locked(&self.circuit);
        let is_probe = now >= circuit.next_probe;
        if is_probe {
            // When it has failed, the time is set anew; if its caller leaves before, it is this.
            circuit.next_probe = now + probe_every;
        }
        is_probe
    }

    pub(crate) fn away(&self, next_probe: Duration, failure: &Failure) {
        let mut circuit = locked(&self.circuit);
        circuit.next_probe = next_probe;
        circuit.failure = failure.to_string();
        drop(circuit);
        if self.state.swap(AWAY, Ordering::AcqRel) != AWAY {
            log::warn!(target: LOG, "cannot ask Redis for limits: {}: {failure}", self.name);
        }
    }

    /// Notes that it answers, be it by a refusal: calls are sent to it again.
    pub(crate) fn answers(&self) {
        if self.is_away() {
            let _ = self.state.compare_exchange(AWAY, ANSWERS, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Notes that it decided on a call.
    pub(crate) fn decides(&self) {
        if self.state.load(Ordering::Acquire) != DECIDES
            && self.state.swap(DECIDES, Ordering::AcqRel) != DECIDES
        {
            log::warn!(target: LOG, "Redis is back, limiting again: {}", self.name);
        }
    }

    pub(crate) fn refuses(&self, now: Duration, failure: &Failure) {
        self.answers();
        let mut circuit = locked(&self.circuit);
        circuit.failure = failure.to_string();
        if now >= circuit.next_refusal_logged {
            circuit.next_refusal_logged = now + BETWEEN_REFUSALS_LOGGED;
            log::warn!(target: LOG, "{} refuses calls, which are not limited by it: {failure}", self.name);
        }
    }

    pub(crate) fn script_decides(&self, now: Duration) -> bool {
        locked(&self.circuit).script_until.is_some_and(|until| now < until)
    }

    pub(crate) fn let_script_decide(&self, now: Duration) {
        let until = now + BETWEEN_LOOKS_FOR_THE_MODULE;
        if locked(&self.circuit).script_until.replace(until).is_none() {
            log::warn!(target: LOG, "{} has no tokenbucket module: the script decides until it has", self.name);
        }
    }

    /// Looks for the module at the next call: the server may be another.
    pub(crate) fn look_for_module(&self) {
        if let Some(until) = &mut locked(&self.circuit).script_until {
            *until = Duration::ZERO;
        }
    }

    pub(crate) fn has_module(&self) {
        if locked(&self.circuit).script_until.take().is_some() {
            log::warn!(target: LOG, "{} has the tokenbucket module: the script decides no longer", self.name);
        }
    }
}
