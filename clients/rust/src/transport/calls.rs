//! One request: what is sent to which node, and what an error means.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, RedisResult, Script, Value};

use crate::api::options::Fallback;
use crate::transport::detached::{Detached, Pending};
use crate::transport::late::LateGrant;
use crate::transport::node::{Node, LOG};
use crate::transport::nodes::Nodes;
use crate::values::error::{Error, Failure, Fault, Replies};
use crate::values::few::Few;
use crate::values::request::{By, Request};

const SOURCE: &str = include_str!("../fallback.lua");
const _: () = assert!(SOURCE.len() > 1000, "src/fallback.lua is a symbolic link: check it out as one");
static SHA: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// What is given back is sent so often while the server is away: for ten minutes.
const MOST_TRIES: u32 = 1200;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
const MOST_REDIRECTIONS: usize = 4;
/// How often a joint call is sent again within the timeout while its slot is on two nodes.
pub(crate) const TRIES_OF_A_SPLIT_SLOT: u32 = 10;

/// Sends requests; clones share its nodes.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) fallback: Fallback,
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
    /// It must happen once, and nobody knows whether it did.
    Lost(Arc<Node>),
}

/// What came of a call that was sent without what most do not need.
enum Plainly {
    Answer(Result<Answer, Error>),
    /// It was not sent, or refused.
    NotDone,
    /// It may have happened, and may happen again.
    Broken,
}

enum Unanswered {
    Failure(Failure),
    Error(Error),
}

impl Calls {
    pub(crate) fn new(nodes: Nodes, fallback: Fallback) -> Self {
        Self { nodes: Arc::new(nodes), fallback }
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Asks the server. A caller who stops waiting ends nothing but that: the call goes on, and a grant that nobody waits
    /// for is given back.
    ///
    /// `now` is the time of the clock. Most callers have read it already, and to read it again costs.
    pub(crate) async fn ask(&self, request: &Request, how: How, now: Duration) -> Result<Answer, Error> {
        if !how.max_wait.is_zero() {
            return Box::pin(self.wait(request, how.max_wait)).await;
        }
        match self.ask_plainly(request, now).await {
            Plainly::Answer(answer) => answer,
            rest => Box::pin(self.go_on(rest, request, how)).await,
        }
    }

    /// The way of most calls, without what most do not need: the rest would cost as much as the client library. Of what
    /// threads share, it touches little.
    async fn ask_plainly(&self, request: &Request, now: Duration) -> Plainly {
        let Some((node, link)) = self.nodes.single() else { return Plainly::NotDone };
        if node.is_away() || self.fallback == Fallback::Script || !request.is_plain() {
            return Plainly::NotDone;
        }
        let Some(mut connection) = link.live() else { return Plainly::NotDone };
        let (number, command) = (connection.number(), request.to_plain());
        let sending = async move { connection.send_one(&command).await };
        let late = |reply| self.go_on_late(reply, (node.clone(), number), request.clone(), now);
        let mut reply = Detached::new(sending, late);
        let heard = self.nodes.listen_plainly(now, node, number, &mut reply).await;
        self.judge(heard.map_err(|failure| failure.with_late(reply.into_rest().map(all))), node, request)
    }

    fn judge(&self, heard: Result<Value, Failure>, node: &Arc<Node>, request: &Request) -> Plainly {
        match heard {
            Ok(reply) => {
                node.decides();
                Plainly::Answer(Ok(Answer::Replies(Few::one(reply))))
            }
            Err(Failure::Broken(_)) => Plainly::Broken,
            Err(failure) if failure.is_unknown_command() => {
                node.answers();
                let error = Error::module_missing(&node.name, request.needs_the_module());
                Plainly::Answer(Err(error))
            }
            // Another connection, or a moment later, may do.
            Err(failure) if failure.has_code("READONLY") || failure.has_code("TRYAGAIN") => Plainly::NotDone,
            Err(failure) => Plainly::Answer(self.failed(node.clone(), failure, request)),
        }
    }

    /// Goes on with a call that was sent plainly, when its caller no longer waits.
    fn go_on_late(
        &self,
        mut reply: Pending<RedisResult<Value>>,
        (node, connection): (Arc<Node>, u64),
        request: Request,
        sent_at: Duration,
    ) {
        let calls = self.clone();
        self.nodes.spawn(async move {
            let heard = calls.nodes.listen_plainly(sent_at, &node, connection, &mut reply).await;
            let heard = heard.map_err(|failure| failure.with_late(Some(all(reply))));
            let plainly = calls.judge(heard, &node, &request);
            let answer = calls.go_on(plainly, &request, How::default()).await;
            calls.undo(&request, answer);
        });
    }

    async fn go_on(&self, plainly: Plainly, request: &Request, how: How) -> Result<Answer, Error> {
        let may_repeat = match plainly {
            Plainly::Answer(answer) => return answer,
            Plainly::NotDone => request.is_repeatable(),
            Plainly::Broken => false,
        };
        let (calls, asked) = (self.clone(), request.clone());
        let work = async move { calls.run(&asked, how, may_repeat).await };
        let late = |rest: Pending<_>| {
            let (calls, request) = (self.clone(), request.clone());
            self.nodes.spawn(async move { calls.undo(&request, rest.await) });
        };
        Detached::new(work, late).await
    }

    /// Gives back what was granted to a caller who is gone.
    pub(crate) fn undo(&self, request: &Request, answer: Result<Answer, Error>) {
        if let Ok(Answer::Replies(replies)) = answer {
            self.send_all(request.undo(&replies));
        }
    }

    /// Sends what nobody waits for.
    pub(crate) fn send_all(&self, requests: Vec<Request>) {
        let calls = self.clone();
        if requests.is_empty() {
            return;
        }
        self.nodes.spawn(async move {
            for request in requests {
                calls.send_until_done(&request).await;
            }
        });
    }

    /// Sends what no call waits for once the server is back. To settle twice does no harm where nothing was used.
    pub(crate) async fn send_until_done(&self, request: &Request) {
        let mut tries = if self.nodes.clock().is_real() { MOST_TRIES } else { 1 };
        let failure = loop {
            let why = match self.run(request, How::default(), request.is_repeatable()).await {
                Ok(Answer::Away(node, _)) => node.failure(),
                Ok(Answer::Lost(node)) if request.needs_the_module() => node.failure(),
                Ok(_) => return,
                Err(error) => break error.to_string(),
            };
            tries -= 1;
            if tries == 0 {
                break why;
            }
            self.nodes.clock().sleep(BETWEEN_TRIES).await;
        };
        log::warn!(target: LOG, "tokens were not given back: {failure}");
    }

    /// `may_repeat` says whether to send it again if the connection breaks.
    async fn run(&self, request: &Request, how: How, may_repeat: bool) -> Result<Answer, Error> {
        let decider = self.decider(request);
        let Some(probe) = self.nodes.admit(&decider.node, how.always) else {
            return Ok(Answer::Away(decider.node, LateGrant::none()));
        };
        let decider = if self.nodes.learn_slots().await { self.decider(request) } else { decider };
        let (node, result) = self.send(decider, request, may_repeat, probe.is_one()).await;
        match result {
            Ok(replies) => {
                node.decides();
                Ok(Answer::Replies(Few::Several(replies)))
            }
            Err(Unanswered::Error(error)) => {
                node.answers();
                Err(error)
            }
            Err(Unanswered::Failure(failure)) => self.failed(node, failure, request),
        }
    }

    pub(crate) fn failed(
        &self,
        node: Arc<Node>,
        failure: Failure,
        request: &Request,
    ) -> Result<Answer, Error> {
        let may_have_happened = failure.may_have_happened();
        let is_lost = !request.is_repeatable() && may_have_happened;
        let late = if may_have_happened && !is_lost {
            LateGrant::new(self, request, failure.late())
        } else {
            LateGrant::none()
        };
        match failure.fault() {
            // One that may not be sent again says little about a server that was restarted.
            Fault::Away if is_lost && !matches!(failure, Failure::Silent(..)) => {}
            Fault::Away => self.nodes.away(&node, &failure),
            Fault::Refusing => node.refusing(self.nodes.clock(), &failure),
            Fault::Nobodys => {}
            Fault::Callers => {
                node.answers();
                if let Failure::Replied(error) | Failure::NotConnected(error) = failure {
                    return Err(Error::refused(&node.name, error));
                }
            }
        }
        Ok(if is_lost { Answer::Lost(node) } else { Answer::Away(node, late) })
    }

    fn decider(&self, request: &Request) -> Decider {
        let module = self.module_of(request);
        let may_be_script = self.fallback == Fallback::Script && !request.needs_the_module();
        if may_be_script && module.node.script_decides(self.nodes.clock()) {
            self.script_of(request)
        } else {
            module
        }
    }

    fn module_of(&self, request: &Request) -> Decider {
        Decider { node: self.nodes.of_key(request.key()), by: By::Module }
    }

    /// Its keys have other names, and so perhaps another node.
    fn script_of(&self, request: &Request) -> Decider {
        Decider { node: self.nodes.of_key(&request.script_key()), by: By::Script(&SHA) }
    }

    /// The replies, and who was asked in the end.
    async fn send(
        &self,
        decider: Decider,
        request: &Request,
        may_repeat: bool,
        is_probe: bool,
    ) -> (Arc<Node>, Result<Vec<Value>, Unanswered>) {
        if decider.by != By::Module {
            match self.run_script(&decider, request, may_repeat, is_probe).await {
                // The next connection may be to a server with the module.
                (_, Err(Failure::Broken(_))) if may_repeat => {}
                (node, result) => return (node, result.map_err(Unanswered::Failure)),
            }
        }
        let commands = request.to_commands(By::Module);
        let module = self.module_of(request).node;
        let (node, result) = self.send_to(module, &commands, may_repeat, is_probe).await;
        match result {
            Err(failure) if failure.is_unknown_command() => {}
            Err(failure) => return (node, Err(Unanswered::Failure(failure))),
            Ok(replies) => {
                // Only with the script there is anything to know.
                if self.fallback == Fallback::Script && request.is_of_the_module() {
                    node.has_module();
                }
                return (node, Ok(replies));
            }
        }
        node.answers();
        if request.needs_the_module() || self.fallback != Fallback::Script {
            let error = Error::module_missing(&node.name, request.needs_the_module());
            return (node, Err(Unanswered::Error(error)));
        }
        node.let_script_decide(self.nodes.clock());
        let (node, result) = self.run_script(&self.script_of(request), request, may_repeat, is_probe).await;
        (node, result.map_err(Unanswered::Failure))
    }

    /// By its digest: a user without the right to load it may still run it once it is loaded.
    async fn run_script(
        &self,
        script: &Decider,
        request: &Request,
        may_repeat: bool,
        is_probe: bool,
    ) -> (Arc<Node>, Result<Vec<Value>, Failure>) {
        let commands = request.to_commands(script.by);
        let run = || self.send_to(script.node.clone(), &commands, may_repeat, is_probe);
        let (node, result) = run().await;
        if !result.as_ref().is_err_and(|failure| failure.has_code("NOSCRIPT")) {
            return (node, result);
        }
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SOURCE).take();
        match self.nodes.attempt(&node, &[load], true, false).await {
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
            self.nodes.clock().sleep(self.nodes.timeout() / TRIES_OF_A_SPLIT_SLOT).await;
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
                self.nodes.attempt_asking(&node, commands, is_repeatable).await
            } else {
                self.nodes.attempt(&node, commands, is_repeatable, is_probe).await
            };
            match &result {
                // It may have been idle for long, and closed by the server.
                Err(Failure::Broken(_)) if is_repeatable && !is_again => is_again = true,
                // The endpoint has moved: another connection may lead to the new master.
                Err(failure) if failure.has_code("READONLY") && !is_again => {
                    is_again = true;
                    self.nodes.look_at_slots();
                }
                Err(Failure::Replied(error)) => {
                    let Some(other) = self.nodes.redirected(&node, error) else { return (node, result) };
                    asking = error.code() == Some("ASK");
                    node = other;
                }
                _ => return (node, result),
            }
        }
        let result = self.nodes.attempt(&node, commands, is_repeatable, is_probe).await;
        (node, result)
    }
}

fn all(reply: Pending<RedisResult<Value>>) -> Replies {
    Box::pin(async move { reply.await.map(|value| vec![value]) })
}
