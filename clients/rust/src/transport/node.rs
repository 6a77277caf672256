//! One server, and what is known about it.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Client, ConnectionInfo, RedisResult, Value};

#[cfg(feature = "fake")]
use crate::local::fake::Fake;
use crate::transport::background::timeout;
use crate::transport::clock::Clock;
use crate::transport::connections::{Connections, Target};
use crate::transport::locked::locked;
use crate::transport::sentinel::Sentinels;
use crate::values::error::Failure;

/// The log target of servers, named after the public type: users filter by it.
pub(crate) const LOG: &str = "tokenbucket_client::server";
const BETWEEN_LOOKS_FOR_THE_MODULE: Duration = Duration::from_secs(60);
const BETWEEN_REFUSALS_LOGGED: Duration = Duration::from_secs(60);
/// A node that does not say in this time where the slots are is passed over.
const SLOTS_WITHIN: Duration = Duration::from_secs(1);

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
    /// One at a time finds out whether it is back.
    is_probing: bool,
    next_probe: Duration,
    /// Why it is away.
    failure: String,
    next_refusal_logged: Option<Duration>,
    lacks_module: bool,
    /// Until when the script decides without the module being looked for.
    script_until: Duration,
    /// On which connection that was found.
    script_since: u64,
}

/// The right to find out whether a node is back. Dropped, it goes to the next call.
pub(crate) struct Probe(Option<Arc<Node>>);

impl Node {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Arc<Self>> {
        let name = info.addr().to_string();
        Ok(Self::with(name, Target::Server(Client::open(info)?)))
    }

    /// The master, wherever it is.
    pub(crate) fn master_of(sentinels: Sentinels) -> Arc<Self> {
        Self::with(format!("master {}", sentinels.master), Target::MasterOf(sentinels))
    }

    #[cfg(feature = "fake")]
    pub(crate) fn fake(fake: &Fake) -> Arc<Self> {
        Self::with("the fake".to_owned(), Target::Fake(fake.clone()))
    }

    fn with(name: String, target: Target) -> Arc<Self> {
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

    /// The reply to CLUSTER SLOTS, an error of the server too; None if there is none in time.
    pub(crate) async fn ask_for_slots(&self) -> Option<Value> {
        let asking = async {
            let mut connection = self.connections.connect(|_| {}).await.ok()?;
            connection.send_one(redis::cmd("CLUSTER").arg("SLOTS")).await.ok()
        };
        timeout(SLOTS_WITHIN, asking).await.ok().flatten()
    }

    /// Lets a call through. While the node is away, only one that probes it in each `retry_every`, and those that `always` go.
    pub(crate) fn admit(
        self: &Arc<Self>,
        now: Duration,
        retry_every: Duration,
        always: bool,
    ) -> Option<Probe> {
        let mut circuit = locked(&self.circuit);
        let is_probe = !circuit.is_probing && now >= circuit.next_probe;
        if is_probe {
            circuit.is_probing = true;
            // A probe that only waits for a connection does not report that the node is away still.
            circuit.next_probe = now + retry_every;
        }
        (is_probe || always).then(|| Probe(is_probe.then(|| self.clone())))
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

    pub(crate) fn refusing(&self, clock: &Clock, failure: &Failure) {
        self.answers();
        let now = clock.now();
        let mut circuit = locked(&self.circuit);
        circuit.failure = failure.to_string();
        if circuit.next_refusal_logged.is_none_or(|at| now >= at) {
            circuit.next_refusal_logged = Some(now + BETWEEN_REFUSALS_LOGGED);
            log::warn!(target: LOG, "{} refuses calls, which are not limited by it: {failure}", self.name);
        }
    }

    pub(crate) fn script_decides(&self, clock: &Clock) -> bool {
        let (now, connection) = (clock.now(), self.connections.number());
        let circuit = locked(&self.circuit);
        circuit.lacks_module && now < circuit.script_until && connection == circuit.script_since
    }

    pub(crate) fn let_script_decide(&self, clock: &Clock) {
        let (now, connection) = (clock.now(), self.connections.number());
        let mut circuit = locked(&self.circuit);
        circuit.script_until = now + BETWEEN_LOOKS_FOR_THE_MODULE;
        circuit.script_since = connection;
        if !std::mem::replace(&mut circuit.lacks_module, true) {
            log::warn!(target: LOG, "{} has no tokenbucket module: the script decides until it has", self.name);
        }
    }

    pub(crate) fn has_module(&self) {
        if std::mem::take(&mut locked(&self.circuit).lacks_module) {
            log::warn!(target: LOG, "{} has the tokenbucket module: the script decides no longer", self.name);
        }
    }
}

impl Probe {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn is_one(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(node) = &self.0 {
            locked(&node.circuit).is_probing = false;
        }
    }
}
