//! Asking a server: whether it is worth a try, what to send, and what an error means.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Script, Value};

use crate::error::{Error, Failure, Fault, HOLDS_NEED_THE_MODULE, LOAD_THE_MODULE};
use crate::options::{Fallback, Options};
use crate::request::Request;
use crate::transport::Transport;

const SOURCE: &str = include_str!("fallback.lua");
static SHA: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

const BETWEEN_LOOKS_FOR_THE_MODULE: Duration = Duration::from_secs(60);
/// No time at all would be no timeout to a socket.
const LEAST_TIMEOUT: Duration = Duration::from_millis(1);
const BETWEEN_REFUSALS_LOGGED: Duration = Duration::from_secs(60);

/// A server or a cluster, for the tasks of a tokio runtime; clones share its connections, and what is known about
/// whether it is there. Of threads, see [`sync::Server`](crate::sync::Server).
#[derive(Clone)]
pub struct Server {
    pub(crate) transport: Arc<dyn Transport>,
    nodes: Arc<Mutex<HashMap<Arc<str>, Node>>>,
}

/// What is known about one node. Times are the transport's.
#[derive(Default)]
struct Node {
    is_away: bool,
    /// One at a time finds out whether it is back.
    is_probing: bool,
    next_probe: Duration,
    next_refusal_logged: Duration,
    lacks_module: bool,
    /// Until when the script decides without the module being looked for.
    script_until: Duration,
    /// At how many connections that was found.
    script_since: u64,
}

/// Who decides on a request: the module or the script, on one node.
struct Decider {
    node: Arc<str>,
    /// By which it is found.
    key: String,
    is_script: bool,
}

/// How a request is sent.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Also while the server is thought to be away.
    pub(crate) always: bool,
}

impl Server {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, nodes: Arc::default() }
    }

    /// The reply, or None if the server does not decide.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        how: How,
        options: &Options,
    ) -> Result<Option<Value>, Error> {
        let decider = self.decider(request, options);
        let Some(_probe) = self.admit(&decider.node, how.always) else { return Ok(None) };
        let (decider, result) = self.send(decider, request, options).await;
        let node = &decider.node;
        let fault = match &result {
            Err(Unanswered::Failure(failure)) => Some(failure.fault()),
            Ok(_) | Err(Unanswered::Error(_)) => None,
        };
        match (result, fault) {
            (Err(Unanswered::Failure(failure)), Some(Fault::Away)) => {
                self.away(node, &failure, options);
                self.transport.failed();
                Ok(None)
            }
            (Err(Unanswered::Failure(failure)), Some(Fault::Refusing)) => {
                self.back(node);
                self.refusing(node, &failure);
                Ok(None)
            }
            (result, _) => {
                self.back(node);
                result.map(Some).map_err(Unanswered::into_error)
            }
        }
    }

    fn decider(&self, request: &Request, options: &Options) -> Decider {
        let module = self.module_of(request);
        let may_be_script = options.fallback == Fallback::Script && !request.needs_the_module();
        if may_be_script && self.script_decides(&module.node) {
            self.script_of(request)
        } else {
            module
        }
    }

    fn module_of(&self, request: &Request) -> Decider {
        let key = request.key().to_owned();
        Decider { node: self.transport.node_of(&key), key, is_script: false }
    }

    /// Its keys have other names, and so perhaps another node.
    fn script_of(&self, request: &Request) -> Decider {
        let key = request.script_key();
        Decider { node: self.transport.node_of(&key), key, is_script: true }
    }

    /// The reply, and who was asked in the end.
    async fn send(
        &self,
        decider: Decider,
        request: &Request,
        options: &Options,
    ) -> (Decider, Result<Value, Unanswered>) {
        let deadline = self.transport.now() + options.timeout;
        if decider.is_script {
            match self.run_script(&decider, request, deadline).await {
                // The next connection may be to a server with the module.
                Err(failure) if request.is_repeatable() && failure.is_broken_connection() => {}
                result => return (decider, result.map_err(Unanswered::from)),
            }
        }
        let module = self.module_of(request);
        match self.send_to_module(&module, request, deadline).await {
            Err(failure) if failure.is_unknown_command() => {}
            Err(failure) => return (module, Err(failure.into())),
            Ok(reply) => {
                self.has_module(&module.node);
                return (module, Ok(reply));
            }
        }
        self.back(&module.node);
        if request.needs_the_module() {
            return (module, Err(Unanswered::Error(HOLDS_NEED_THE_MODULE)));
        }
        if options.fallback != Fallback::Script {
            return (module, Err(Unanswered::Error(LOAD_THE_MODULE)));
        }
        self.let_script_decide(&module.node);
        let script = self.script_of(request);
        let result = self.run_script(&script, request, deadline).await;
        (script, result.map_err(Unanswered::from))
    }

    async fn send_to_module(
        &self,
        module: &Decider,
        request: &Request,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        match self.send_once(module, request.to_command(), deadline).await {
            // It may have been idle for long, and closed by the server.
            Err(failure) if request.is_repeatable() && failure.is_broken_connection() => {
                self.send_once(module, request.to_command(), deadline).await
            }
            result => result,
        }
    }

    async fn run_script(
        &self,
        script: &Decider,
        request: &Request,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        match self.send_once(script, request.to_script("EVALSHA", &SHA), deadline).await {
            Err(failure) if failure.is_unknown_script() => {
                self.send_once(script, request.to_script("EVAL", SOURCE), deadline).await
            }
            result => result,
        }
    }

    async fn send_once(&self, decider: &Decider, command: Cmd, deadline: Duration) -> Result<Value, Failure> {
        let left = deadline.saturating_sub(self.transport.now());
        self.transport.send(command, &decider.key, left.max(LEAST_TIMEOUT)).await
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Arc<str>, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known about a node.
    fn note<T>(&self, node: &Arc<str>, change: impl FnOnce(&mut Node) -> T) -> T {
        change(self.locked().entry(node.clone()).or_default())
    }

    fn admit(&self, node: &Arc<str>, always: bool) -> Option<Probe<'_>> {
        let now = self.transport.now();
        let (is_admitted, is_probe) = self.note(node, |node| {
            let is_probe = node.is_away && !node.is_probing && now >= node.next_probe;
            node.is_probing |= is_probe;
            (!node.is_away || is_probe || always, is_probe)
        });
        is_admitted.then(|| Probe { server: self, node: is_probe.then(|| node.clone()) })
    }

    fn away(&self, node: &Arc<str>, failure: &Failure, options: &Options) {
        let next_probe = self.transport.now() + options.retry_every;
        let was_away = self.note(node, |node| {
            node.next_probe = next_probe;
            std::mem::replace(&mut node.is_away, true)
        });
        match failure {
            _ if was_away => {}
            Failure::TimedOut => {
                log::warn!(
                    "cannot ask Redis for limits: no answer within {} ms",
                    options.timeout.as_millis()
                );
            }
            Failure::Redis(error) => log::warn!("cannot ask Redis for limits: {error}"),
        }
    }

    fn back(&self, node: &Arc<str>) {
        if self.note(node, |node| std::mem::take(&mut node.is_away)) {
            log::warn!("Redis is back, limiting again");
        }
    }

    fn refusing(&self, node: &Arc<str>, failure: &Failure) {
        let now = self.transport.now();
        let is_news = self.note(node, |node| {
            let is_news = now >= node.next_refusal_logged;
            if is_news {
                node.next_refusal_logged = now + BETWEEN_REFUSALS_LOGGED;
            }
            is_news
        });
        if is_news {
            log::warn!("Redis refuses calls, which are not limited by it: {failure}");
        }
    }

    fn script_decides(&self, node: &Arc<str>) -> bool {
        let (now, connections) = (self.transport.now(), self.transport.connections());
        self.note(node, |node| {
            node.lacks_module && now < node.script_until && connections == node.script_since
        })
    }

    fn let_script_decide(&self, node: &Arc<str>) {
        let (now, connections) = (self.transport.now(), self.transport.connections());
        let lacked_module = self.note(node, |node| {
            node.script_until = now + BETWEEN_LOOKS_FOR_THE_MODULE;
            node.script_since = connections;
            std::mem::replace(&mut node.lacks_module, true)
        });
        if !lacked_module {
            log::warn!("the server has no tokenbucket module: the script decides until it has");
        }
    }

    fn has_module(&self, node: &Arc<str>) {
        if self.note(node, |node| std::mem::take(&mut node.lacks_module)) {
            log::warn!("the server has the tokenbucket module: the script decides no longer");
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Who finds out whether a node is back. Whoever gives up in between leaves it to the next.
struct Probe<'a> {
    server: &'a Server,
    node: Option<Arc<str>>,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        if let Some(node) = &self.node {
            self.server.note(node, |node| node.is_probing = false);
        }
    }
}

enum Unanswered {
    Failure(Failure),
    Error(Error),
}

impl Unanswered {
    fn into_error(self) -> Error {
        match self {
            Self::Failure(Failure::Redis(error)) => error.into(),
            Self::Failure(Failure::TimedOut) => unreachable!("a server that does not answer is away"),
            Self::Error(error) => error,
        }
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
