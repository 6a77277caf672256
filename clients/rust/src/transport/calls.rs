//! One request: what is sent to which node, and what an error means.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Script, Value};

use crate::api::options::Fallback;
use crate::transport::address::timed_out;
use crate::transport::background::Owed;
use crate::transport::node::Node;
use crate::transport::reply::{Call, Reply};
use crate::transport::Transport;
use crate::values::error::{Error, Failure, Fault, Why};
use crate::values::few::Few;
use crate::values::request::{By, Request, Share};

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
pub(crate) struct How<'a> {
    /// Also while the server is thought to be away.
    pub(crate) always: bool,
    /// How long it may wait in the server for its turn.
    pub(crate) max_wait: Duration,
    /// Whose turn it takes there.
    pub(crate) share: Option<&'a Arc<Share>>,
    /// Keeps what is granted late: a renewal has not begun the hold.
    pub(crate) keeps_late: bool,
}

/// What came of a request.
pub(crate) enum Answer {
    /// A reply to each of its commands.
    Replies(Few<Value>),
    /// The policy decides, and whether a late grant is kept.
    Away(Arc<Node>, Owed),
    /// It must happen once, and it is not known whether it did.
    Lost(Arc<Node>),
}

impl Transport {
    /// Asks the server. A caller that stops waiting ends only that: a grant that comes later is given back.
    ///
    /// `now` is the time of the clock. Most callers have read it already, and to read it again costs.
    pub(crate) async fn ask(&self, request: &Request, how: How<'_>, now: Duration) -> Result<Answer, Error> {
        if !how.max_wait.is_zero() {
            return Box::pin(self.wait(request, now.saturating_add(how.max_wait))).await;
        }
        let (mut may_repeat, mut lost) = (request.is_repeatable(), Owed::nothing());
        if let Some(reply) = self.send_plainly(request, now) {
            match reply.heard().await {
                Err(Failure::Unanswered(Why::Broken(_), late)) if may_repeat => {
                    (may_repeat, lost) = (false, late);
                }
                // Another connection, or a moment later, may do.
                Err(failure) if failure.has_code("READONLY") || failure.has_code("TRYAGAIN") => {}
                result => return self.conclude(self.0.first.clone(), result, request),
            }
        }
        if let Some(cluster) = &self.0.cluster {
            Box::pin(self.learn_slots(cluster)).await;
        }
        let answer = Box::pin(self.run(request, how.always, may_repeat)).await;
        if matches!(answer, Ok(Answer::Replies(_))) {
            lost.forgive();
        }
        answer
    }

    /// The way of most calls, without what most do not need: the rest would cost as much as the client library. It touches
    /// little of what threads share.
    fn send_plainly<'a>(&'a self, request: &'a Request, now: Duration) -> Option<Reply<'a>> {
        let node = &self.0.first;
        let may_be_cut = !request.is_repeatable() && is_idle(node, now);
        if self.is_cluster() || node.is_away() || may_be_cut || self.0.fallback == Fallback::Script {
            return None;
        }
        let mut connection = node.connections.live()?;
        let (number, command) = (connection.number, request.to_plain()?);
        let pending = Box::pin(async move { connection.send_one(&command).await.map(Few::one) });
        Some(Reply::new(self, node, Some(Call::new(request)), now, number, pending))
    }

    /// `may_repeat` says whether to send it again if the connection breaks.
    pub(super) async fn run(
        &self,
        request: &Request,
        always: bool,
        may_repeat: bool,
    ) -> Result<Answer, Error> {
        let (node, result) = self.send(Call { always, may_repeat, ..Call::new(request) }).await;
        self.conclude(node, result, request)
    }

    /// Reads what came of a request, and what it says about the node.
    fn conclude(
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
        // One that may not be sent again says little about a server that was restarted.
        if !is_lost || failure.is_silence() {
            self.note(&node, &failure);
        }
        let fault = failure.fault();
        match failure {
            Failure::Unanswered(..) if is_lost => Ok(Answer::Lost(node)),
            Failure::Unanswered(_, late) => Ok(Answer::Away(node, late)),
            Failure::Replied(error) | Failure::NotConnected(error) if fault == Fault::Callers => {
                Err(Error::refused(&node.name, error))
            }
            _ => Ok(Answer::Away(node, Owed::nothing())),
        }
    }

    /// Returns who is known to decide on this request: the module or the script.
    fn decider(&self, request: &Request) -> By<'static> {
        if self.may_be_script(request) && self.node_of(request, By::Module).script_decides(self.now()) {
            By::Script(&SHA)
        } else {
            By::Module
        }
    }

    fn may_be_script(&self, request: &Request) -> bool {
        self.0.fallback == Fallback::Script && !request.needs_the_module()
    }

    /// The keys of the script have other names, and so perhaps another node.
    fn node_of(&self, request: &Request, by: By<'_>) -> Arc<Node> {
        match (&self.0.cluster, by) {
            (None, _) => self.0.first.clone(),
            (Some(cluster), By::Module) => cluster.node_of(request.key()),
            (Some(cluster), By::Script(_)) => cluster.node_of(&request.script_key()),
        }
    }

    /// Returns the replies, and the node that was asked in the end.
    async fn send(&self, call: Call<'_>) -> (Arc<Node>, Result<Few<Value>, Failure>) {
        let by_script = Call { by: By::Script(&SHA), ..call };
        if self.decider(call.request) != By::Module {
            return self.run_script(by_script).await;
        }
        let (node, result) = self.follow(call).await;
        let is_unknown = result.as_ref().is_err_and(Failure::is_unknown_command);
        if is_unknown && self.may_be_script(call.request) {
            node.answers();
            node.let_script_decide(self.now());
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
        node.answers();
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE).take();
        match self.attempt(&node, vec![load], None).await {
            Ok(_) => self.follow(call).await,
            Err(failure) => (node, Err(failure)),
        }
    }

    /// Sends to the node that has the key, and to those that it redirects to. Sends again where that does no harm; a call that
    /// waits with the time that is left.
    async fn follow(&self, mut call: Call<'_>) -> (Arc<Node>, Result<Few<Value>, Failure>) {
        let mut node = self.node_of(call.request, call.by);
        if !self.admits(&node) && !call.always {
            return (node, Err(Failure::NotSent));
        }
        let (mut is_again, mut lost) = (false, Owed::nothing());
        for tries_left in (0..MOST_TRIES).rev() {
            let failure = match self.attempt_call(&node, call).await {
                Ok(replies) => {
                    // It is the same hold.
                    lost.forgive();
                    return (node, Ok(replies));
                }
                Err(failure) if tries_left == 0 => return (node, Err(failure)),
                Err(failure) => failure,
            };
            call.is_asking = false;
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
                    self.clock().sleep(self.0.silence.timeout / TRIES_OF_A_SPLIT_SLOT).await;
                    node = self.node_of(call.request, call.by);
                }
                failure if failure.has_code("UNBLOCKED") => {}
                Failure::Replied(error) => {
                    let cluster = self.0.cluster.as_ref();
                    let Some(other) = cluster.and_then(|cluster| cluster.redirected(&node, &error)) else {
                        return (node, Err(Failure::Replied(error)));
                    };
                    call.is_asking = error.code() == Some("ASK");
                    self.look_at_slots();
                    node = other;
                    if !self.admits(&node) && !call.always {
                        return (node, Err(Failure::NotSent));
                    }
                }
                failure => return (node, Err(failure)),
            }
        }
        unreachable!("the last try returns")
    }

    async fn attempt_call(&self, node: &Arc<Node>, call: Call<'_>) -> Result<Few<Value>, Failure> {
        let Call { request, by, may_repeat, until, .. } = call;
        let may_be_cut = || is_idle(node, self.now()) && node.connections.live().is_some();
        // What must happen once would be lost if the connection was cut. A call that waits would not tell for long whether the
        // server is back.
        if !may_repeat && may_be_cut() || until.is_some() && node.is_away() {
            match self.ping(node).await {
                // If the connection was cut, the call opens another.
                None | Some(Failure::Unanswered(Why::Broken(_), _)) => {}
                Some(Failure::Unanswered(..)) => return Err(Failure::NotConnected(timed_out())),
                Some(failure) => return Err(failure),
            }
        }
        let commands = match until {
            None => request.to_commands(by),
            Some(until) => vec![request.to_waiting(until.saturating_sub(self.now()))],
        };
        self.attempt(node, commands, Some(call)).await
    }

    /// Lets the server keep the call until its turn. Where that is not possible, asks again at the times that denials tell.
    async fn wait(&self, request: &Request, until: Duration) -> Result<Answer, Error> {
        if self.clock().is_real() && self.decider(request) == By::Module {
            let (node, result) = self.follow(Call { until: Some(until), ..Call::new(request) }).await;
            // Without the module, or with one of an older release.
            if !result.as_ref().is_err_and(Failure::is_unknown_command) {
                return self.conclude(node, result, request);
            }
        }
        loop {
            let answer = self.ask(request, How::default(), self.now()).await?;
            let Answer::Replies(replies) = &answer else { return Ok(answer) };
            let left = until.saturating_sub(self.now());
            let denied = request.binding(replies).filter(|decision| !decision.allowed && !left.is_zero());
            let Some(pause) = denied.and_then(|denial| denial.retry_after()) else { return Ok(answer) };
            drop(answer);
            self.clock().sleep(pause.max(Duration::from_millis(1)).min(left)).await;
        }
    }
}

fn is_idle(node: &Node, now: Duration) -> bool {
    now.saturating_sub(node.heard()) > IDLE
}
