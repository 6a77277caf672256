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
        let node = self.transport.node_of(request.key());
        let Some(_probe) = self.admit(&node, how.always) else { return Ok(None) };
        let result = self.send(&node, request, options).await;
        let fault = match &result {
            Err(Unanswered::Failure(failure)) => Some(failure.fault()),
            Ok(_) | Err(Unanswered::Error(_)) => None,
        };
        match (result, fault) {
            (Err(Unanswered::Failure(failure)), Some(Fault::Away)) => {
                self.away(&node, &failure, options);
                self.transport.failed();
                Ok(None)
            }
            (Err(Unanswered::Failure(failure)), Some(Fault::Refusing)) => {
                self.back(&node);
                self.refusing(&node, &failure);
                Ok(None)
            }
            (result, _) => {
                self.back(&node);
                result.map(Some).map_err(Unanswered::into_error)
            }
        }
    }

    async fn send(&self, node: &Arc<str>, request: &Request, options: &Options) -> Result<Value, Unanswered> {
        let deadline = self.transport.now() + options.timeout;
        let may_use_script = options.fallback == Fallback::Script && !request.needs_the_module();
        if may_use_script && self.script_decides(node) {
            match self.run_script(request, deadline).await {
                // The next connection may be to a server with the module.
                Err(failure) if request.is_repeatable() && failure.is_broken_connection() => {}
                result => return Ok(result?),
            }
        }
        match self.send_to_module(request, deadline).await {
            Err(failure) if failure.is_unknown_command() => {}
            Err(failure) => return Err(failure.into()),
            Ok(reply) => {
                self.has_module(node);
                return Ok(reply);
            }
        }
        if !may_use_script {
            let error = if request.needs_the_module() { HOLDS_NEED_THE_MODULE } else { LOAD_THE_MODULE };
            return Err(Unanswered::Error(error));
        }
        self.let_script_decide(node);
        Ok(self.run_script(request, deadline).await?)
    }

    async fn send_to_module(&self, request: &Request, deadline: Duration) -> Result<Value, Failure> {
        match self.send_once(request, request.to_command(), deadline).await {
            // It may have been idle for long, and closed by the server.
            Err(failure) if request.is_repeatable() && failure.is_broken_connection() => {
                self.send_once(request, request.to_command(), deadline).await
            }
            result => result,
        }
    }

    async fn run_script(&self, request: &Request, deadline: Duration) -> Result<Value, Failure> {
        match self.send_once(request, request.to_script("EVALSHA", &SHA), deadline).await {
            Err(failure) if failure.is_unknown_script() => {
                self.send_once(request, request.to_script("EVAL", SOURCE), deadline).await
            }
            result => result,
        }
    }

    async fn send_once(&self, request: &Request, command: Cmd, deadline: Duration) -> Result<Value, Failure> {
        let left = deadline.saturating_sub(self.transport.now());
        self.transport.send(command, request.key(), left.max(LEAST_TIMEOUT)).await
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
            Self::Failure(Failure::Redis(error)) => Error::Refused(error),
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
