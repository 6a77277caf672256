//! One request: what is sent to which node, and what an error means.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Script, Value};

use crate::api::options::Fallback;
use crate::transport::address::timed_out;
use crate::transport::background::Owed;
use crate::transport::node::Node;
use crate::transport::reply::Call;
use crate::transport::Transport;
use crate::values::error::{Error, Failure, Fault, Why};
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
    /// Sends the renewal of the hold; without the server, the policy decides on the `TB.MHOLD`.
    pub(crate) renews: bool,
    /// Ends a hold that is made late, even if the policy lets the call pass.
    pub(crate) returns_late: bool,
}

/// What came of a request.
pub(crate) enum Answer {
    /// A reply to each of its commands.
    Replies(Vec<Value>),
    /// The policy decides, and whether a late grant is kept.
    Away(Arc<Node>, Owed),
    /// It must happen once, and it is not known whether it did.
    Lost(Arc<Node>),
}

impl Transport {
    /// Asks the server. A caller that stops waiting ends only that: a grant that comes later is given back.
    pub(crate) async fn ask(&self, request: &Request, how: How<'_>) -> Result<Answer, Error> {
        if let Some(cluster) = &self.0.cluster {
            Box::pin(self.learn_slots(cluster)).await;
        }
        if how.max_wait.is_zero() {
            return self.run(Call { always: how.always, ..Call::new(request) }).await;
        }
        Box::pin(self.wait(request, self.now().saturating_add(how.max_wait))).await
    }

    /// Sends a request. Reads what came of it, and what that says about the node.
    pub(super) async fn run(&self, call: Call<'_>) -> Result<Answer, Error> {
        let request = call.request;
        let by = self.decider(request);
        let mut node = self.node_of(request, by);
        let failure = match Box::pin(self.follow(&mut node, Call { by, ..call })).await {
            Ok(replies) => {
                node.decides();
                return Ok(Answer::Replies(replies));
            }
            Err(failure) => failure,
        };
        let is_lost = !request.is_repeatable() && matches!(failure, Failure::Unanswered(..));
        // One that may not be sent again says little about a server that was restarted.
        if !is_lost || failure.is_silence() {
            self.note(&node, &failure);
        }
        let (fault, is_unknown) = (failure.fault(), failure.is_unknown_command());
        match failure {
            Failure::Unanswered(..) if is_lost => Ok(Answer::Lost(node)),
            Failure::Unanswered(_, late) => Ok(Answer::Away(node, late)),
            _ if is_unknown => Err(Error::module_missing(&node.name, request.needs_the_module())),
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
        self.uses_script() && !request.needs_the_module()
    }

    fn uses_script(&self) -> bool {
        self.0.options.fallback == Fallback::Script
    }

    /// The keys of the script have other names, and so perhaps another node.
    fn node_of(&self, request: &Request, by: By<'_>) -> Arc<Node> {
        match (&self.0.cluster, by) {
            (None, _) => self.0.first.clone(),
            (Some(cluster), By::Module) => cluster.node_of(request.key()),
            (Some(cluster), By::Script(_)) => cluster.node_of(&request.script_key()),
        }
    }

    /// Sends to this node, and to those that it redirects to. Sends again where that does no harm; a call that waits with the
    /// time that is left.
    async fn follow(&self, node: &mut Arc<Node>, mut call: Call<'_>) -> Result<Vec<Value>, Failure> {
        let admit = |node: &Node| if call.always { Ok(()) } else { self.admit(node) };
        admit(node)?;
        let request = call.request;
        let may_be_script = call.until.is_none() && self.may_be_script(request);
        let (mut is_again, mut lost) = (false, Owed::nothing());
        for tries_left in (0..MOST_TRIES).rev() {
            let failure = match self.attempt_call(node, call).await {
                Ok(replies) => {
                    // It is the same hold.
                    lost.forgive();
                    if call.by == By::Module && self.uses_script() && request.is_of_the_module() {
                        node.has_module();
                    }
                    return Ok(replies);
                }
                Err(failure) if tries_left == 0 => return Err(failure),
                Err(failure) => failure,
            };
            call.is_asking = false;
            match failure {
                // It may have been idle for long, and closed by the server.
                Failure::Unanswered(Why::Broken(_), late) if request.is_repeatable() && !is_again => {
                    (is_again, lost) = (true, late);
                }
                // The endpoint has moved: another connection may lead to the new master.
                failure if failure.has_code("READONLY") && !is_again => {
                    is_again = true;
                    self.look_at_slots();
                }
                // Some of the keys have gone ahead to another node, and neither does anything.
                failure if failure.has_code("TRYAGAIN") => {
                    self.clock().sleep(self.0.options.timeout / TRIES_OF_A_SPLIT_SLOT).await;
                    *node = self.node_of(request, call.by);
                }
                failure if failure.has_code("UNBLOCKED") => {}
                // A user without the right to load the script may still run it by its digest once it is loaded.
                failure if failure.has_code("NOSCRIPT") => {
                    node.answers();
                    let load = redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE).take();
                    self.attempt(node, vec![load], None).await?;
                }
                failure if failure.is_unknown_command() && call.by == By::Module && may_be_script => {
                    node.answers();
                    node.let_script_decide(self.now());
                    call.by = By::Script(&SHA);
                    *node = self.node_of(request, call.by);
                    admit(node)?;
                }
                Failure::Replied(error) => {
                    let cluster = self.0.cluster.as_ref();
                    let Some(other) = cluster.and_then(|cluster| cluster.redirected(node, &error)) else {
                        return Err(Failure::Replied(error));
                    };
                    call.is_asking = error.code() == Some("ASK");
                    self.look_at_slots();
                    *node = other;
                    admit(node)?;
                }
                failure => return Err(failure),
            }
        }
        unreachable!("the last try returns")
    }

    async fn attempt_call(&self, node: &Arc<Node>, call: Call<'_>) -> Result<Vec<Value>, Failure> {
        let Call { request, by, until, .. } = call;
        let is_idle = || self.now().saturating_sub(node.heard()) > IDLE;
        let may_be_cut = || is_idle() && node.connections.live().is_some();
        // What must happen once would be lost if the connection was cut. A call that waits would not tell for long whether the
        // server is back.
        if !request.is_repeatable() && may_be_cut() || until.is_some() && node.is_away() {
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
            let answer = self.run(Call { until: Some(until), ..Call::new(request) }).await;
            // It is missing, or of an older release.
            if !matches!(answer, Err(Error::ModuleMissing(_))) {
                return answer;
            }
        }
        loop {
            let answer = self.run(Call::new(request)).await?;
            let Answer::Replies(replies) = &answer else { return Ok(answer) };
            let left = until.saturating_sub(self.now());
            let denied = request.binding(replies).filter(|decision| !decision.allowed && !left.is_zero());
            let Some(pause) = denied.and_then(|denial| denial.retry_after()) else { return Ok(answer) };
            drop(answer);
            self.clock().sleep(pause.max(Duration::from_millis(1)).min(left)).await;
        }
    }
}
