//! One request: what is sent to which node, and what an error means.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Script, Value};

use crate::api::options::Fallback;
use crate::transport::address::timed_out;
use crate::transport::late::LateGrant;
use crate::transport::node::Node;
use crate::transport::reply::{Reply, Sending};
use crate::transport::Transport;
use crate::values::error::{Error, Failure, Fault, Why};
use crate::values::few::Few;
use crate::values::request::{By, Request};

const SOURCE: &str = include_str!("../fallback.lua");
const _: () = assert!(SOURCE.len() > 1000, "src/fallback.lua is a symbolic link: check it out as one");
static SHA: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// A call is sent so often at most: each time a slot moves, a master changes or a connection ends.
const MOST_TRIES: u32 = 24;
/// How often a joint call is sent again within the timeout while its slot is on two nodes.
const TRIES_OF_A_SPLIT_SLOT: u32 = 10;

/// A call that must happen once first asks a connection that was idle for longer.
const IDLE: Duration = Duration::from_secs(1);

/// How a request is sent.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Also while the server is thought to be away.
    pub(crate) always: bool,
    /// How long it may wait in the server for its turn.
    pub(crate) max_wait: Duration,
    /// Keeps what is granted late: a renewal has not begun the hold.
    pub(crate) keeps_late: bool,
}

/// What came of a request.
pub(crate) enum Answer {
    /// A reply to each of its commands.
    Replies(Few<Value>),
    /// The policy decides, and whether a late grant is kept.
    Away(Arc<Node>, LateGrant),
    /// It must happen once, and it is not known whether it did.
    Lost(Arc<Node>),
}

/// A request, and what matters when it is sent again.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) request: &'a Request,
    pub(super) by: By<'a>,
    /// Says that it may be sent again if the connection breaks.
    pub(super) may_repeat: bool,
    pub(super) is_probe: bool,
    /// Until when it may wait in the server, if it waits.
    pub(super) until: Option<Duration>,
}

impl Transport {
    /// Asks the server. A caller that stops waiting ends only that: a grant that comes later is given back.
    ///
    /// `now` is the time of the clock. Most callers have read it already, and to read it again costs.
    pub(crate) async fn ask(&self, request: &Request, how: How, now: Duration) -> Result<Answer, Error> {
        if !how.max_wait.is_zero() {
            return Box::pin(self.wait(request, how.max_wait)).await;
        }
        let (mut may_repeat, mut lost) = (request.is_repeatable(), LateGrant::none());
        if let Some((node, reply)) = self.send_plainly(request, now) {
            match reply.heard().await {
                Err(Failure::Unanswered(Why::Broken(_), late)) if may_repeat => {
                    (may_repeat, lost) = (false, late);
                }
                // Another connection, or a moment later, may do.
                Err(failure) if failure.has_code("READONLY") || failure.has_code("TRYAGAIN") => {}
                result => return self.conclude(node.clone(), result, request),
            }
        }
        let answer = Box::pin(self.run(request, how, may_repeat)).await;
        if matches!(answer, Ok(Answer::Replies(_))) {
            lost.keep();
        }
        answer
    }

    /// The way of most calls, without what most do not need: the rest would cost as much as the client library. It touches
    /// little of what threads share.
    fn send_plainly<'a>(&'a self, request: &'a Request, now: Duration) -> Option<(&'a Arc<Node>, Reply<'a>)> {
        let node = self.single().filter(|node| !node.is_away())?;
        let may_be_cut = !request.is_repeatable() && is_idle(node, now);
        if may_be_cut || self.0.fallback == Fallback::Script {
            return None;
        }
        let mut connection = node.connections.live()?;
        let (number, command) = (connection.number, request.to_plain()?);
        let pending = Box::pin(async move { connection.send_one(&command).await.map(Few::one) });
        let sending = Sending { request: Some(request), ..Sending::default() };
        Some((node, Reply::new(self, node, sending, now, number, pending)))
    }

    /// `may_repeat` says whether to send it again if the connection breaks.
    pub(super) async fn run(&self, request: &Request, how: How, may_repeat: bool) -> Result<Answer, Error> {
        let node = self.node_of(request, self.decider(request));
        let Some(probe) = self.admit(&node, how.always) else {
            return Ok(Answer::Away(node, LateGrant::none()));
        };
        self.learn_slots().await;
        let call = Call { request, by: By::Module, may_repeat, is_probe: probe.is_one(), until: None };
        let (node, result) = self.send(call).await;
        self.conclude(node, result, request)
    }

    /// Reads what came of a request, and what it says about the node.
    pub(super) fn conclude(
        &self,
        node: Arc<Node>,
        result: Result<Few<Value>, Failure>,
        request: &Request,
    ) -> Result<Answer, Error> {
        let failure = match result {
            Ok(replies) => {
                node.decides();
                return Ok(Answer::Replies(replies));
            }
            Err(failure) => failure,
        };
        if failure.is_unknown_command() {
            node.answers();
            return Err(Error::module_missing(&node.name, request.needs_the_module()));
        }
        let is_lost = !request.is_repeatable() && matches!(failure, Failure::Unanswered(..));
        match failure.fault() {
            // One that may not be sent again says little about a server that was restarted.
            Fault::Away if is_lost && !matches!(failure, Failure::Unanswered(Why::Silent(_), _)) => {}
            Fault::Away => self.away(&node, &failure),
            Fault::Refusing => node.refusing(self.clock(), &failure),
            Fault::Nobodys => {}
            Fault::Callers => node.answers(),
        }
        match (failure.fault(), failure) {
            (_, Failure::Unanswered(..)) if is_lost => Ok(Answer::Lost(node)),
            (_, Failure::Unanswered(_, late)) => Ok(Answer::Away(node, late)),
            (Fault::Callers, Failure::Replied(error) | Failure::NotConnected(error)) => {
                Err(Error::refused(&node.name, error))
            }
            _ => Ok(Answer::Away(node, LateGrant::none())),
        }
    }

    /// Returns who is known to decide on this request: the module or the script.
    pub(super) fn decider(&self, request: &Request) -> By<'static> {
        let may_be_script = self.may_be_script(request);
        if may_be_script && self.node_of(request, By::Module).script_decides(self.clock()) {
            By::Script(&SHA)
        } else {
            By::Module
        }
    }

    fn may_be_script(&self, request: &Request) -> bool {
        self.0.fallback == Fallback::Script && !request.needs_the_module()
    }

    /// The keys of the script have other names, and so perhaps another node.
    pub(super) fn node_of(&self, request: &Request, by: By<'_>) -> Arc<Node> {
        match by {
            By::Module => self.of_key(request.key()),
            By::Script(_) => self.of_key(&request.script_key()),
        }
    }

    /// Returns the replies, and the node that was asked in the end.
    async fn send(&self, call: Call<'_>) -> (Arc<Node>, Result<Few<Value>, Failure>) {
        let by_script = Call { by: By::Script(&SHA), ..call };
        if self.decider(call.request) != By::Module {
            match self.run_script(by_script).await {
                // The next connection may be to a server with the module.
                (_, Err(Failure::Unanswered(Why::Broken(_), _))) if call.may_repeat => {}
                done => return done,
            }
        }
        let (node, result) = self.follow(call).await;
        let is_unknown = result.as_ref().is_err_and(Failure::is_unknown_command);
        if is_unknown && self.may_be_script(call.request) {
            node.answers();
            node.let_script_decide(self.clock());
            return self.run_script(by_script).await;
        }
        if self.0.fallback == Fallback::Script && result.is_ok() && call.request.is_of_the_module() {
            node.has_module();
        }
        (node, result)
    }

    /// Runs the script by its digest: a user without the right to load it may still run it once it is loaded.
    async fn run_script(&self, call: Call<'_>) -> (Arc<Node>, Result<Few<Value>, Failure>) {
        let (node, result) = self.follow(call).await;
        if !result.as_ref().is_err_and(|failure| failure.has_code("NOSCRIPT")) {
            return (node, result);
        }
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE).take();
        match self.attempt(&node, vec![load], Sending::default()).await {
            Ok(_) => self.follow(call).await,
            Err(failure) => (node, Err(failure)),
        }
    }

    /// Sends to the node that has the key, and to those that it redirects to. Sends again where that does no harm, to one that
    /// waits with the time that is left.
    pub(super) async fn follow(&self, call: Call<'_>) -> (Arc<Node>, Result<Few<Value>, Failure>) {
        let mut node = self.node_of(call.request, call.by);
        let (mut is_again, mut asking, mut lost) = (false, false, LateGrant::none());
        for tries_left in (0..MOST_TRIES).rev() {
            let failure = match self.attempt_call(&node, call, asking).await {
                Ok(replies) => {
                    // It is the same hold.
                    lost.keep();
                    return (node, Ok(replies));
                }
                Err(failure) if tries_left == 0 => return (node, Err(failure)),
                Err(failure) => failure,
            };
            asking = false;
            match failure {
                // It may have been idle for long, and closed by the server.
                Failure::Unanswered(Why::Broken(_), late) if call.may_repeat && !is_again => {
                    (is_again, lost) = (true, late);
                }
                // The endpoint has moved: another connection may lead to the new master.
                failure if failure.has_code("READONLY") && !is_again => {
                    is_again = true;
                    self.look_at_slots();
                }
                // Some of the keys have gone ahead to another node, and neither does anything.
                failure if failure.has_code("TRYAGAIN") => {
                    self.clock().sleep(self.timeout() / TRIES_OF_A_SPLIT_SLOT).await;
                    node = self.node_of(call.request, call.by);
                }
                failure if failure.has_code("UNBLOCKED") => {}
                Failure::Replied(error) => {
                    let Some(other) = self.redirected(&node, &error) else {
                        return (node, Err(Failure::Replied(error)));
                    };
                    asking = error.code() == Some("ASK");
                    node = other;
                }
                failure => return (node, Err(failure)),
            }
        }
        unreachable!("the last try returns")
    }

    async fn attempt_call(
        &self,
        node: &Arc<Node>,
        call: Call<'_>,
        asking: bool,
    ) -> Result<Few<Value>, Failure> {
        let Call { request, by, may_repeat, is_probe, until } = call;
        if !may_repeat {
            self.try_connection(node).await?;
        }
        let kept = until.map(|until| until.saturating_sub(self.clock().now()));
        let commands = match kept {
            None => request.to_commands(by),
            Some(left) => vec![request.to_waiting(left)],
        };
        let sending = Sending { request: Some(request), is_probe, asking, kept };
        self.attempt(node, commands, sending).await
    }

    /// Pings over a connection that was idle: what must happen once would be lost if it was cut.
    async fn try_connection(&self, node: &Arc<Node>) -> Result<(), Failure> {
        if !is_idle(node, self.clock().now()) || node.connections.live().is_none() {
            return Ok(());
        }
        match self.ping(node).await {
            // If it was cut, the call connects.
            None | Some(Failure::Unanswered(Why::Broken(_), _)) => Ok(()),
            Some(Failure::Unanswered(..)) => Err(Failure::NotConnected(timed_out())),
            Some(failure) => Err(failure),
        }
    }
}

fn is_idle(node: &Node, now: Duration) -> bool {
    now.saturating_sub(node.heard()) > IDLE
}
