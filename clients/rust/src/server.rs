//! Asking a server: whether it is worth a try, what to send, how long to listen, and what an error means.

use std::fmt;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult, Script, Value};
use tokio::runtime::Handle;

use crate::cluster::Cluster;
use crate::detached::Detached;
use crate::error::{Error, Failure, Fault};
#[cfg(feature = "fake")]
use crate::fake::Fake;
use crate::link::{broken, settings, Link, Live};
use crate::local::Buckets;
use crate::options::{Fallback, ServerOptions};
use crate::request::{By, Request};

const SOURCE: &str = include_str!("fallback.lua");
const _: () = assert!(SOURCE.len() > 1000, "src/fallback.lua is a symbolic link: check it out as one");
static SHA: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

const BETWEEN_LOOKS_FOR_THE_MODULE: Duration = Duration::from_secs(60);
const BETWEEN_REFUSALS_LOGGED: Duration = Duration::from_secs(60);
/// A call that must happen once first asks a connection that was idle for longer.
const IDLE: Duration = Duration::from_secs(1);
/// A call is given up at this many timeouts, or this age, even if others are answered.
const TIMEOUTS_OF_A_CALL: u32 = 10;
const LEAST_AGE_OF_A_CALL: Duration = Duration::from_secs(1);
/// A timer that fires so much later shows that this process is busy.
const LATE: Duration = Duration::from_millis(5);
/// Between such timers, when a wait is over.
const CHECK: Duration = Duration::from_millis(1);
const MOST_REDIRECTIONS: usize = 4;
/// How often a joint call is sent again within the timeout while its slot is on two nodes.
const TRIES_OF_A_SPLIT_SLOT: u32 = 10;

/// A server or a cluster, for the tasks of tokio runtimes; clones share its connections, and what is known about
/// whether it is there. For threads, see [`sync::Server`](crate::sync::Server).
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    topology: Topology,
    options: ServerOptions,
    clock: Clock,
    local: Mutex<Buckets>,
    degraded: AtomicU64,
    /// For what is dropped outside of any runtime.
    last_runtime: Mutex<Option<Handle>>,
}

enum Topology {
    Single(Arc<Node>),
    Cluster(Box<Cluster>),
}

enum Clock {
    Real {
        began: Instant,
        since_1970: Duration,
    },
    #[cfg(feature = "fake")]
    Fake(Fake),
}

/// One server, and what is known about it. Times are the clock's.
pub(crate) struct Node {
    /// `host:port`.
    pub(crate) name: Arc<str>,
    wire: Wire,
    /// In microseconds.
    heard_us: AtomicU64,
    is_away: AtomicBool,
    circuit: Mutex<Circuit>,
}

enum Wire {
    Redis(Arc<Link>),
    #[cfg(feature = "fake")]
    Fake(Fake),
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
    /// At how many connections that was found.
    script_since: u64,
}

/// Who decides on a request: the module or the script, on one node.
struct Decider {
    node: Arc<Node>,
    by: By<'static>,
}

/// How a request is sent.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Also while the server is thought to be away.
    pub(crate) always: bool,
}

/// What came of a request.
pub(crate) enum Answer {
    /// A reply to each of its commands.
    Replies(Vec<Value>),
    /// The policy decides.
    Away(Arc<Node>),
    /// It must happen once, and nobody knows whether it did.
    Lost(Arc<Node>),
}

impl Server {
    /// A single server, with all options at their defaults. Connects at the first call, and again whenever the
    /// connection is lost. Speaks RESP3, by which it learns at once of a connection that was closed.
    ///
    /// # Errors
    ///
    /// The URL is none.
    pub fn connect(url: impl IntoConnectionInfo) -> RedisResult<Self> {
        Self::connect_with(url, ServerOptions::new())
    }

    /// The same with these options.
    ///
    /// # Errors
    ///
    /// The URL is none.
    pub fn connect_with(url: impl IntoConnectionInfo, options: ServerOptions) -> RedisResult<Self> {
        let node = Node::new(settings(url)?)?;
        Ok(Self::new(Topology::Single(node), Clock::real(), options))
    }

    /// A cluster that has one of `urls` among its nodes, with all options at their defaults.
    ///
    /// A node that is away is an outage of its own buckets alone.
    ///
    /// # Errors
    ///
    /// There is no URL, or one that is none.
    pub fn cluster<T: IntoConnectionInfo>(urls: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        Self::cluster_with(urls, ServerOptions::new())
    }

    /// The same with these options.
    ///
    /// # Errors
    ///
    /// There is no URL, or one that is none.
    pub fn cluster_with<T: IntoConnectionInfo>(
        urls: impl IntoIterator<Item = T>,
        options: ServerOptions,
    ) -> RedisResult<Self> {
        let seeds = urls.into_iter().map(settings).collect::<RedisResult<Vec<ConnectionInfo>>>()?;
        Ok(Self::new(Topology::Cluster(Box::new(Cluster::new(seeds)?)), Clock::real(), options))
    }

    #[cfg(feature = "fake")]
    pub(crate) fn fake(fake: &Fake, options: ServerOptions) -> Self {
        let node = Node::with("the fake".to_owned(), Wire::Fake(fake.clone()));
        Self::new(Topology::Single(Arc::new(node)), Clock::Fake(fake.clone()), options)
    }

    fn new(topology: Topology, clock: Clock, options: ServerOptions) -> Self {
        Self(Arc::new(Inner {
            topology,
            options,
            clock,
            local: Mutex::new(Buckets::bounded()),
            degraded: AtomicU64::new(0),
            last_runtime: Mutex::default(),
        }))
    }

    /// How many decisions were made without the server, since the start.
    pub fn degraded_count(&self) -> u64 {
        self.0.degraded.load(Ordering::Relaxed)
    }

    pub(crate) fn count_degraded(&self) {
        self.0.degraded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    /// The time since some moment in the past.
    pub(crate) fn now(&self) -> Duration {
        match &self.0.clock {
            Clock::Real { began, .. } => began.elapsed(),
            #[cfg(feature = "fake")]
            Clock::Fake(fake) => fake.since_1970(),
        }
    }

    /// Sleeps; the time of a fake passes at once.
    pub(crate) async fn sleep(&self, time: Duration) {
        match &self.0.clock {
            Clock::Real { .. } => tokio::time::sleep(time).await,
            #[cfg(feature = "fake")]
            Clock::Fake(fake) => fake.advance(time),
        }
    }

    /// Whether holds are renewed in the background.
    pub(crate) fn renews_holds(&self) -> bool {
        matches!(self.0.clock, Clock::Real { .. })
    }

    /// Runs it beside the caller.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if !self.renews_holds() {
            // A fake lets nobody wait.
            let _ = pin!(task).as_mut().poll(&mut Context::from_waker(Waker::noop()));
            return;
        }
        let runtime = Handle::try_current().ok().or_else(|| locked(&self.0.last_runtime).clone());
        if let Some(runtime) = runtime {
            runtime.spawn(task);
        }
    }

    /// Decides here, under the same limit.
    pub(crate) fn decide_locally(&self, request: &Request) -> Result<Value, Error> {
        let now = match &self.0.clock {
            Clock::Real { began, since_1970 } => *since_1970 + began.elapsed(),
            #[cfg(feature = "fake")]
            Clock::Fake(fake) => fake.since_1970(),
        };
        let mut local = locked(&self.0.local);
        local.now_us = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let mut replies = request.to_commands(By::Module).into_iter().map(|command| local.run(&command));
        replies.next().unwrap_or(Ok(Value::Nil)).map_err(|error| Error::refused("this process", error))
    }

    /// Asks the server. A caller who stops waiting ends nothing but that: the call goes on, and a grant that nobody waits
    /// for is given back.
    pub(crate) async fn ask(&self, request: &Arc<Request>, how: How) -> Result<Answer, Error> {
        let (server, asked) = (self.clone(), request.clone());
        let undo = {
            let (server, request) = (self.clone(), request.clone());
            move |answer: Result<Answer, Error>| {
                if let Ok(Answer::Replies(replies)) = answer {
                    server.send_all(request.undo(&replies));
                }
            }
        };
        Detached::new(self.clone(), async move { server.run(&asked, how).await }, undo).await
    }

    /// Sends what nobody waits for.
    pub(crate) fn send_all(&self, requests: Vec<Request>) {
        let server = self.clone();
        if requests.is_empty() {
            return;
        }
        self.spawn(async move {
            for request in requests {
                if let Err(error) = server.run(&request, How::default()).await {
                    log::warn!("tokens were not given back: {error}");
                }
            }
        });
    }

    async fn run(&self, request: &Request, how: How) -> Result<Answer, Error> {
        let decider = self.decider(request);
        let Some(probe) = self.admit(&decider.node, how.always) else {
            return Ok(Answer::Away(decider.node));
        };
        let decider = self.know_slots(decider, request).await;
        let (node, result) = self.send(decider, request, probe.is_one()).await;
        match result {
            Ok(replies) => {
                self.back(&node);
                Ok(Answer::Replies(replies))
            }
            Err(Unanswered::Error(error)) => {
                self.back(&node);
                Err(error)
            }
            Err(Unanswered::Failure(failure)) => self.failed(node, failure, request),
        }
    }

    fn failed(&self, node: Arc<Node>, failure: Failure, request: &Request) -> Result<Answer, Error> {
        let is_lost = !request.is_repeatable() && failure.may_have_happened();
        match failure.fault() {
            // One that may not be sent again says little about a server that was restarted.
            Fault::Away if is_lost && !matches!(failure, Failure::Silent(_)) => {}
            Fault::Away => self.away(&node, &failure),
            Fault::Refusing => self.refusing(&node, &failure),
            Fault::Nobodys => {}
            Fault::Callers => {
                self.back(&node);
                if let Failure::Replied(error) | Failure::NotConnected(error) = failure {
                    return Err(Error::refused(&node.name, error));
                }
            }
        }
        Ok(if is_lost { Answer::Lost(node) } else { Answer::Away(node) })
    }

    fn decider(&self, request: &Request) -> Decider {
        let module = self.module_of(request);
        let may_be_script = self.0.options.fallback == Fallback::Script && !request.needs_the_module();
        if may_be_script && self.script_decides(&module.node) {
            self.script_of(request)
        } else {
            module
        }
    }

    fn module_of(&self, request: &Request) -> Decider {
        Decider { node: self.node_of(request.key()), by: By::Module }
    }

    /// Its keys have other names, and so perhaps another node.
    fn script_of(&self, request: &Request) -> Decider {
        Decider { node: self.node_of(&request.script_key()), by: By::Script(&SHA) }
    }

    fn node_of(&self, key: &str) -> Arc<Node> {
        match &self.0.topology {
            Topology::Single(node) => node.clone(),
            Topology::Cluster(cluster) => cluster.node_of(key),
        }
    }

    async fn know_slots(&self, decider: Decider, request: &Request) -> Decider {
        let Topology::Cluster(cluster) = &self.0.topology else { return decider };
        if !cluster.are_slots_unknown() {
            return decider;
        }
        let _ = self.patiently(cluster.look()).await;
        self.decider(request)
    }

    /// Asks in the background where the slots of a cluster are.
    fn look_at_slots(&self) {
        if let Topology::Cluster(_) = &self.0.topology {
            let server = self.clone();
            self.spawn(async move {
                if let Topology::Cluster(cluster) = &server.0.topology {
                    cluster.look().await;
                }
            });
        }
    }

    /// The replies, and who was asked in the end.
    async fn send(
        &self,
        decider: Decider,
        request: &Request,
        is_probe: bool,
    ) -> (Arc<Node>, Result<Vec<Value>, Unanswered>) {
        if decider.by != By::Module {
            match self.run_script(&decider, request, is_probe).await {
                // The next connection may be to a server with the module.
                (_, Err(Failure::Broken(_))) if request.is_repeatable() => {}
                (node, result) => return (node, result.map_err(Unanswered::Failure)),
            }
        }
        let commands = request.to_commands(By::Module);
        let module = self.module_of(request).node;
        let (node, result) = self.send_to(module, &commands, request.is_repeatable(), is_probe).await;
        match result {
            Err(failure) if failure.is_unknown_command() => {}
            Err(failure) => return (node, Err(Unanswered::Failure(failure))),
            Ok(replies) => {
                if request.is_of_the_module() {
                    self.has_module(&node);
                }
                return (node, Ok(replies));
            }
        }
        self.back(&node);
        if request.needs_the_module() || self.0.options.fallback != Fallback::Script {
            let error = Error::module_missing(&node.name, request.needs_the_module());
            return (node, Err(Unanswered::Error(error)));
        }
        self.let_script_decide(&node);
        let (node, result) = self.run_script(&self.script_of(request), request, is_probe).await;
        (node, result.map_err(Unanswered::Failure))
    }

    /// By its digest; whoever may not load it himself may still run one that is loaded.
    async fn run_script(
        &self,
        script: &Decider,
        request: &Request,
        is_probe: bool,
    ) -> (Arc<Node>, Result<Vec<Value>, Failure>) {
        let commands = request.to_commands(script.by);
        let run = || self.send_to(script.node.clone(), &commands, request.is_repeatable(), is_probe);
        let (node, result) = run().await;
        if !result.as_ref().is_err_and(|failure| failure.has_code("NOSCRIPT")) {
            return (node, result);
        }
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE).take();
        match self.attempt(&node, &[load], true, false).await {
            Ok(_) => run().await,
            Err(failure) => (node, Err(failure)),
        }
    }

    /// Sends to the node or where it redirects to; again while the slot moves and some of the keys have gone ahead, which is
    /// when neither node does anything.
    async fn send_to(
        &self,
        node: Arc<Node>,
        commands: &[Cmd],
        is_repeatable: bool,
        is_probe: bool,
    ) -> (Arc<Node>, Result<Vec<Value>, Failure>) {
        for _ in 0..TRIES_OF_A_SPLIT_SLOT {
            let (last, result) = self.follow(node.clone(), commands, is_repeatable, is_probe).await;
            if !result.as_ref().is_err_and(|failure| failure.has_code("TRYAGAIN")) {
                return (last, result);
            }
            self.sleep(self.0.options.timeout / TRIES_OF_A_SPLIT_SLOT).await;
        }
        self.follow(node, commands, is_repeatable, is_probe).await
    }

    /// Sends to the node or where it redirects to; once more where that does no harm.
    async fn follow(
        &self,
        mut node: Arc<Node>,
        commands: &[Cmd],
        is_repeatable: bool,
        is_probe: bool,
    ) -> (Arc<Node>, Result<Vec<Value>, Failure>) {
        let (mut is_again, mut asking) = (false, false);
        for _ in 0..MOST_REDIRECTIONS {
            let result = if asking {
                self.attempt_asking(&node, commands, is_repeatable).await
            } else {
                self.attempt(&node, commands, is_repeatable, is_probe).await
            };
            match &result {
                // It may have been idle for long, and closed by the server.
                Err(Failure::Broken(_)) if is_repeatable && !is_again => is_again = true,
                // The endpoint has moved: another connection may lead to the new master.
                Err(failure) if failure.has_code("READONLY") && !is_again => {
                    is_again = true;
                    self.look_at_slots();
                }
                Err(Failure::Replied(error)) => {
                    let Some(other) = self.redirected(&node, error) else { return (node, result) };
                    asking = error.code() == Some("ASK");
                    node = other;
                }
                _ => return (node, result),
            }
        }
        let result = self.attempt(&node, commands, is_repeatable, is_probe).await;
        (node, result)
    }

    fn redirected(&self, node: &Node, error: &RedisError) -> Option<Arc<Node>> {
        let Topology::Cluster(cluster) = &self.0.topology else { return None };
        let other = cluster.redirected(node, error)?;
        self.look_at_slots();
        Some(other)
    }

    /// To a node that has the slot only for those who ask for it.
    async fn attempt_asking(
        &self,
        node: &Arc<Node>,
        commands: &[Cmd],
        is_repeatable: bool,
    ) -> Result<Vec<Value>, Failure> {
        let asking = redis::cmd("ASKING");
        let all: Vec<Cmd> = commands.iter().flat_map(|command| [asking.clone(), command.clone()]).collect();
        let replies = self.attempt(node, &all, is_repeatable, false).await?;
        Ok(replies.into_iter().skip(1).step_by(2).collect())
    }

    #[cfg_attr(not(feature = "fake"), allow(clippy::infallible_destructuring_match))]
    async fn attempt(
        &self,
        node: &Arc<Node>,
        commands: &[Cmd],
        is_repeatable: bool,
        is_probe: bool,
    ) -> Result<Vec<Value>, Failure> {
        let link = match &node.wire {
            Wire::Redis(link) => link,
            #[cfg(feature = "fake")]
            Wire::Fake(fake) => return fake.run(commands),
        };
        let mut live = self.connection(node, link).await?;
        if !is_repeatable && self.now().saturating_sub(node.heard()) > IDLE {
            live = self.asked_before(node, link, live).await?;
        }
        let result = self.listen(node, live.send(commands)).await;
        let result = match result {
            Some(Heard::Reply(result)) => result,
            Some(Heard::Others) => return Err(Failure::TooOld),
            None => {
                if is_probe {
                    // A second time: what stands between here and there may have forgotten the connection.
                    link.forget(&live);
                }
                return Err(Failure::Silent(self.0.options.timeout));
            }
        };
        let replies = result.and_then(|values| values.into_iter().map(Value::extract_error).collect());
        replies.map_err(|error: RedisError| {
            if error.code() == Some("READONLY") {
                link.forget(&live);
            }
            if error.code().is_some() || !error.is_unrecoverable_error() {
                return Failure::Replied(error);
            }
            link.forget(&live);
            Failure::Broken(error)
        })
    }

    /// A connection that answers, for a call that must happen once: what is sent over one that was cut is lost.
    async fn asked_before(
        &self,
        node: &Arc<Node>,
        link: &Arc<Link>,
        mut live: Live,
    ) -> Result<Live, Failure> {
        match self.listen(node, live.send(&[redis::cmd("PING")])).await {
            Some(Heard::Reply(Ok(_))) => Ok(live),
            Some(Heard::Reply(Err(error))) if error.code().is_some() => Ok(live),
            Some(Heard::Reply(Err(_))) => {
                link.forget(&live);
                self.connection(node, link).await
            }
            _ => {
                link.forget(&live);
                Err(Failure::NotConnected(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
            }
        }
    }

    async fn connection(&self, node: &Arc<Node>, link: &Arc<Link>) -> Result<Live, Failure> {
        if let Some(live) = link.live() {
            return Ok(live);
        }
        *locked(&self.0.last_runtime) = Some(Handle::current());
        let (server, connected) = (self.clone(), node.clone());
        let mut outcome = link.connect(move |result| server.connected(&connected, result));
        let waiting = async {
            let outcome = outcome.wait_for(Option::is_some).await;
            outcome.map_or_else(|_| Err(broken()), |outcome| outcome.clone().unwrap_or_else(|| Err(broken())))
        };
        let result = self.patiently(waiting).await.ok_or(Failure::Connecting)?;
        result.map_err(Failure::NotConnected)
    }

    /// Whoever began to connect may wait no longer.
    fn connected(&self, node: &Arc<Node>, result: &RedisResult<Live>) {
        match result {
            Ok(_) => node.hear(self.now()),
            Err(error) => {
                let failure = Failure::NotConnected(error.clone());
                if failure.fault() == Fault::Away {
                    self.away(node, &failure);
                }
            }
        }
    }

    fn most_age(&self) -> Duration {
        (self.0.options.timeout * TIMEOUTS_OF_A_CALL).max(LEAST_AGE_OF_A_CALL)
    }

    /// The reply; None if the server is silent: for the timeout nothing came from it, to this call or another.
    async fn listen<T>(&self, node: &Node, reply: impl Future<Output = T>) -> Option<Heard<T>> {
        let mut reply = pin!(reply);
        // Most of it is not needed when there is a reply at once.
        if let Some(value) = at_once(reply.as_mut()).await {
            node.hear(self.now());
            return Some(Heard::Reply(value));
        }
        let timeout = self.0.options.timeout;
        let mut since = self.now();
        let too_old_at = since + self.most_age();
        loop {
            let due = (since.max(node.heard()) + timeout).min(too_old_at);
            let is_late = match self.until(due, reply.as_mut()).await {
                Waited::Done(value) => {
                    node.hear(self.now());
                    return Some(Heard::Reply(value));
                }
                Waited::Late => true,
                Waited::InTime => false,
            };
            let now = self.now();
            let is_silent = now >= since.max(node.heard()) + timeout;
            if now >= too_old_at {
                return (!is_silent).then_some(Heard::Others);
            }
            if is_silent && (!is_late || node.is_away()) {
                return None;
            }
            if is_late {
                since = now;
            }
        }
    }

    /// What comes within the timeout, by the time in which this process was not busy.
    async fn patiently<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        if let Some(value) = at_once(work.as_mut()).await {
            return Some(value);
        }
        let give_up_at = self.now() + self.most_age();
        loop {
            match self.until(self.now() + self.0.options.timeout, work.as_mut()).await {
                Waited::Done(value) => return Some(value),
                Waited::Late if self.now() < give_up_at => {}
                _ => return None,
            }
        }
    }

    /// Waits until then, and a little longer: a process that was too busy to read what has arrived shows it by timers that
    /// fire late.
    async fn until<T>(&self, due: Duration, mut work: impl Future<Output = T> + Unpin) -> Waited<T> {
        let mut is_late = false;
        for due in [due, due + CHECK, due + 2 * CHECK, due + 3 * CHECK] {
            let due = due.max(self.now());
            if let Ok(value) = tokio::time::timeout(due - self.now().min(due), &mut work).await {
                return Waited::Done(value);
            }
            is_late |= self.now() > due + LATE;
        }
        if is_late {
            Waited::Late
        } else {
            Waited::InTime
        }
    }

    fn admit(&self, node: &Arc<Node>, always: bool) -> Option<Probe> {
        if !node.is_away() {
            return Some(Probe(None));
        }
        let now = self.now();
        let mut circuit = locked(&node.circuit);
        let is_probe = !circuit.is_probing && now >= circuit.next_probe;
        circuit.is_probing |= is_probe;
        (is_probe || always).then(|| Probe(is_probe.then(|| node.clone())))
    }

    fn away(&self, node: &Arc<Node>, failure: &Failure) {
        let mut circuit = locked(&node.circuit);
        circuit.next_probe = self.now() + self.0.options.retry_every;
        circuit.failure = failure.to_string();
        drop(circuit);
        if !node.is_away.swap(true, Ordering::AcqRel) {
            log::warn!("cannot ask Redis for limits: {}: {failure}", node.name);
        }
        self.look_at_slots();
    }

    fn back(&self, node: &Node) {
        if node.is_away() && node.is_away.swap(false, Ordering::AcqRel) {
            log::warn!("Redis is back, limiting again: {}", node.name);
        }
    }

    fn refusing(&self, node: &Node, failure: &Failure) {
        self.back(node);
        let now = self.now();
        let mut circuit = locked(&node.circuit);
        circuit.failure = failure.to_string();
        if circuit.next_refusal_logged.is_none_or(|at| now >= at) {
            circuit.next_refusal_logged = Some(now + BETWEEN_REFUSALS_LOGGED);
            log::warn!("{} refuses calls, which are not limited by it: {failure}", node.name);
        }
    }

    fn script_decides(&self, node: &Node) -> bool {
        let (now, connections) = (self.now(), node.connections());
        let circuit = locked(&node.circuit);
        circuit.lacks_module && now < circuit.script_until && connections == circuit.script_since
    }

    fn let_script_decide(&self, node: &Node) {
        let (now, connections) = (self.now(), node.connections());
        let mut circuit = locked(&node.circuit);
        circuit.script_until = now + BETWEEN_LOOKS_FOR_THE_MODULE;
        circuit.script_since = connections;
        if !std::mem::replace(&mut circuit.lacks_module, true) {
            log::warn!("{} has no tokenbucket module: the script decides until it has", node.name);
        }
    }

    fn has_module(&self, node: &Node) {
        // Only with the script there is anything to know.
        if self.0.options.fallback == Fallback::Script
            && std::mem::take(&mut locked(&node.circuit).lacks_module)
        {
            log::warn!("{} has the tokenbucket module: the script decides no longer", node.name);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Clock {
    fn real() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::Real { began: Instant::now(), since_1970 }
    }
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Arc<Self>> {
        Ok(Arc::new(Self::with(info.addr().to_string(), Wire::Redis(Arc::new(Link::new(info)?)))))
    }

    fn with(name: String, wire: Wire) -> Self {
        let (heard_us, is_away) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { name: name.into(), wire, heard_us, is_away, circuit: Mutex::default() }
    }

    fn hear(&self, now: Duration) {
        let us = now.as_micros().try_into().unwrap_or(u64::MAX);
        self.heard_us.fetch_max(us, Ordering::AcqRel);
    }

    /// When something last came from it.
    fn heard(&self) -> Duration {
        Duration::from_micros(self.heard_us.load(Ordering::Acquire))
    }

    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }

    /// Why it does not decide, and where it is.
    pub(crate) fn failure(&self) -> String {
        let failure = locked(&self.circuit).failure.clone();
        let why = if failure.is_empty() { "connecting takes longer than the timeout" } else { &failure };
        format!("{}: {why}", self.name)
    }

    fn connections(&self) -> u64 {
        match &self.wire {
            Wire::Redis(link) => link.connections(),
            #[cfg(feature = "fake")]
            Wire::Fake(_) => 0,
        }
    }

    /// The reply to CLUSTER SLOTS, an error of the server too; None if there is none in time.
    #[cfg_attr(not(feature = "fake"), allow(clippy::infallible_destructuring_match))]
    pub(crate) async fn ask_for_slots(&self) -> Option<Value> {
        let link = match &self.wire {
            Wire::Redis(link) => link,
            #[cfg(feature = "fake")]
            Wire::Fake(_) => return None,
        };
        let asking = async {
            let mut outcome = link.connect(|_| {});
            let mut live = outcome.wait_for(Option::is_some).await.ok()?.clone()?.ok()?;
            live.send(&[redis::cmd("CLUSTER").arg("SLOTS").take()]).await.ok()?.pop()
        };
        tokio::time::timeout(LEAST_AGE_OF_A_CALL, asking).await.ok().flatten()
    }
}

/// Who finds out whether a node is back. Whoever gives up in between leaves it to the next.
struct Probe(Option<Arc<Node>>);

impl Probe {
    fn is_one(&self) -> bool {
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

enum Unanswered {
    Failure(Failure),
    Error(Error),
}

enum Heard<T> {
    Reply(T),
    /// Nothing to this call, while others are answered.
    Others,
}

enum Waited<T> {
    Done(T),
    InTime,
    Late,
}

/// The result, if it is there already.
async fn at_once<T>(mut work: impl Future<Output = T> + Unpin) -> Option<T> {
    poll_fn(|context| match pin!(&mut work).poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
