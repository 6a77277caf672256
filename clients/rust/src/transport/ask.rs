//! One request: which node it is sent to, how often, and what an error means.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Value};
use tokio::sync::oneshot;

use crate::transport::background::{may_wait, run_by_thread, runs_tasks};
use crate::transport::cluster::Cluster;
use crate::transport::node::Node;
use crate::transport::send::How;
use crate::transport::Transport;
use crate::values::rules::{MOST_REDIRECTIONS, PULSE, TRIES_OF_A_SPLIT_SLOT};
use crate::values::{By, Error, Failure, Fault, JointDecision, Request, SCRIPT};

/// What came of a request.
pub(crate) enum Answer {
    Reply(Value),
    /// The policy decides. The node says why.
    Away(Arc<Node>),
    /// It must happen once, and it is not known whether it did.
    Lost(Arc<Node>),
}

/// How many nodes a call asks who has its slot. The next call asks others, once a look found which nodes have left.
const MOST_ASKED_ABOUT_A_SLOT: usize = 4;

/// A request on its way.
struct Call<'a> {
    request: &'a Request,
    /// Until when it may wait in the server.
    until: Option<Duration>,
    node: Arc<Node>,
    /// Says that the node with its slot is unknown: this one can redirect to it, as can any other.
    is_guess: bool,
    /// Those that know of no node with its slot, or are slow to connect.
    left: Vec<Arc<Node>>,
    /// To a node that has the slot only for calls that say so.
    is_asking: bool,
    was_sent: bool,
    split_tries: u32,
    /// Says that the call was sent again on another connection.
    is_again: bool,
    /// Says that it finds out whether a node that was away is back.
    is_trial: bool,
}

impl Call<'_> {
    /// Returns whether to ask a further node, when this one knows of none with the slot. One that was asked before was named by
    /// another: none knows better.
    fn may_ask_another(&self) -> bool {
        let was_asked = self.left.iter().any(|one| Arc::ptr_eq(one, &self.node));
        !was_asked && self.left.len() < MOST_ASKED_ABOUT_A_SLOT
    }
}

impl Transport {
    /// Asks the server, where the request may wait for its turn. A caller may stop waiting at any time; what the server then
    /// grants is lost.
    pub(crate) async fn ask(&self, request: &Request, max_wait: Duration) -> Result<Answer, Error> {
        self.ask_noting(request, max_wait, &mut false).await
    }

    /// Notes that the server may have executed the request without an answer.
    pub(crate) async fn ask_noting(
        &self,
        request: &Request,
        max_wait: Duration,
        is_in_doubt: &mut bool,
    ) -> Result<Answer, Error> {
        if max_wait.is_zero() {
            return self.run(request, None, is_in_doubt).await;
        }
        Box::pin(self.ask_in_turn(request, self.now().saturating_add(max_wait), is_in_doubt)).await
    }

    /// Asks first, and lets the server keep the call if it is denied. Where that is not possible, asks again at the times that
    /// denials tell. If the connection of the wait fails, and not the server, asks and waits anew.
    async fn ask_in_turn(
        &self,
        request: &Request,
        until: Duration,
        is_in_doubt: &mut bool,
    ) -> Result<Answer, Error> {
        let mut may_stay = self.clock().is_real() && self.options.by == By::Module;
        loop {
            let began = self.now();
            let answer = self.run(request, None, is_in_doubt).await?;
            let Answer::Reply(reply) = &answer else { return Ok(answer) };
            let is_over = self.now() >= until;
            let decided = JointDecision::from_redis_value_ref(reply);
            let denied = decided.ok().filter(|decision| !decision.allowed() && !is_over);
            let Some(mut pause) = denied.and_then(|denial| denial.binding.retry_after()) else {
                return Ok(answer);
            };
            if may_stay {
                match self.run(request, Some(until), is_in_doubt).await {
                    // The command is missing in an older release.
                    Err(Error::ModuleMissing { .. }) => may_stay = false,
                    Ok(Answer::Away(node)) if !node.is_away() => {
                        pause = (began + PULSE).saturating_sub(self.now());
                    }
                    answer => return answer,
                }
            }
            let left = until.saturating_sub(self.now());
            // No server keeps the call, and no tokens that come back could wake it.
            if !may_stay && pause > left && self.clock().is_real() {
                return Ok(answer);
            }
            self.clock().sleep(pause.max(Duration::from_millis(1)).min(left)).await;
        }
    }

    /// Sends a request. Reads what came of it, and what that says about the node.
    async fn run(
        &self,
        request: &Request,
        until: Option<Duration>,
        is_in_doubt: &mut bool,
    ) -> Result<Answer, Error> {
        if self.options.by == By::Script && request.needs_the_module() {
            let problem = "holds, shares and alternatives need the module".to_owned();
            return Err(Error::ModuleMissing { problem, advice: "this Server decides by_script()" });
        }
        let (node, is_guess) = self.node_of(request, &[]);
        let mut call = Call {
            request,
            until,
            node,
            is_guess,
            left: Vec::new(),
            is_asking: false,
            was_sent: false,
            split_tries: 0,
            is_again: false,
            is_trial: false,
        };
        let followed = Box::pin(self.follow(&mut call)).await;
        *is_in_doubt |= call.was_sent;
        let why = match followed {
            Ok(reply) => {
                call.node.decides();
                return Ok(Answer::Reply(reply));
            }
            Err(failure) => failure,
        };
        let Call { node, was_sent, .. } = call;
        let is_lost = was_sent && !request.is_repeatable() && why.was_sent();
        // One that may not be sent again says little about a server that was restarted, and one that waited about any.
        let is_of_one = is_lost || until.is_some() && matches!(why, Failure::Broken(_));
        if !is_of_one || matches!(why, Failure::Silent(_)) {
            self.note(&node, &why);
        }
        match why {
            _ if is_lost => Ok(Answer::Lost(node)),
            _ if why.is_unknown_command() && self.options.by == By::Module => {
                let advice =
                    "load it, or make a Server by_script(): holds, shares and alternatives need the module";
                let problem = format!("{} has not loaded the tokenbucket module", node.name);
                Err(Error::ModuleMissing { problem, advice })
            }
            Failure::Replied(error) | Failure::NotConnected(error) if why.fault() == Fault::Callers => {
                Err(Error::refused(&node.name, error))
            }
            _ => Ok(Answer::Away(node)),
        }
    }

    /// Notes what a failure says about the node. Returns what ends once that is logged.
    pub(super) fn note(&self, node: &Node, failure: &Failure) -> Option<oneshot::Receiver<()>> {
        let logged = node.note(failure, self.now(), self.options.retry_every);
        if failure.is_away() {
            self.look_at_slots();
        }
        logged
    }

    /// Returns the node of a request, or a guess that was not asked.
    fn node_of(&self, request: &Request, asked: &[Arc<Node>]) -> (Arc<Node>, bool) {
        match &self.shared.cluster {
            None => (self.shared.first.clone(), false),
            Some(cluster) => cluster.node_of(&request.key_by(self.options.by), asked),
        }
    }

    /// Sends to this node, and to those that it redirects to. Sends again where that does no harm; a call that waits with the
    /// time that is left.
    async fn follow(&self, call: &mut Call<'_>) -> Result<Value, Failure> {
        self.admit(call)?;
        if self.shared.cluster.as_ref().is_some_and(|cluster| cluster.is_new()) {
            self.look_at_slots();
        }
        self.look_at_sentinels(&call.node);
        // A fake server decides as both.
        let by = if self.clock().is_real() { self.options.by } else { By::Module };
        for _ in 0..MOST_REDIRECTIONS + 2 * TRIES_OF_A_SPLIT_SLOT {
            let command = match call.until {
                None => call.request.command_by(by),
                Some(until) => call.request.to_waiting(until.saturating_sub(self.now())),
            };
            let is_plain = call.request.is_take() && call.until.is_none() && !call.is_again;
            let attempt = |may_be_near| {
                let may_leave = call.is_guess && self.may_ask_instead(call);
                let how = How { is_asking: call.is_asking, waits_until: call.until, may_be_near, may_leave };
                self.attempt(&call.node, &command, how)
            };
            let by_thread = if is_plain { run_by_thread(|| attempt(true)) } else { None };
            let attempted = match by_thread {
                Some(attempted) => attempted,
                None => attempt(is_plain && runs_tasks()).await,
            };
            match attempted {
                Ok(reply) => return Ok(reply),
                Err(failure) => self.prepare_again(call, failure).await?,
            }
        }
        Err(Failure::NotSent)
    }

    /// Lets a call through, unless its node is away or nothing would read the reply. The call that finds out whether it is back
    /// asks another node of a cluster, which redirects to it or to its successor.
    fn admit(&self, call: &mut Call<'_>) -> Result<(), Failure> {
        if !may_wait() && self.clock().is_real() {
            return Err(Failure::NotSent);
        }
        if !call.node.is_away() {
            return Ok(());
        }
        self.admit_to_away(call)?;
        self.look_at_slots(); // the one that answers may have them by now, and redirects to none
        if let Some(node) = self.shared.cluster.as_ref().and_then(|cluster| cluster.one_there(&[])) {
            call.node = node;
        }
        Ok(())
    }

    /// Lets one call through every now and then.
    fn admit_to_away(&self, call: &mut Call<'_>) -> Result<(), Failure> {
        let every = self.options.retry_every.max(self.options.timeout);
        call.is_trial = call.is_trial || call.node.admits(self.now(), every);
        call.is_trial.then_some(()).ok_or(Failure::NotSent)
    }

    /// Returns whether another node than the guess is there to ask.
    fn may_ask_instead(&self, call: &Call<'_>) -> bool {
        let asked = [&*call.left, slice::from_ref(&call.node)].concat();
        let is_there = |cluster: &Cluster| cluster.one_there(&asked).is_some();
        call.may_ask_another() && self.shared.cluster.as_ref().is_some_and(is_there)
    }

    /// Prepares a call to be sent once more after this failure, if it may be.
    async fn prepare_again(&self, call: &mut Call<'_>, failure: Failure) -> Result<(), Failure> {
        let request = call.request;
        call.was_sent |= failure.was_sent();
        call.is_asking = false;
        if matches!(failure, Failure::SlowToConnect) {
            call.left.push(call.node.clone());
        }
        let (other, is_guess) = self.node_of(request, &call.left);
        match failure.code() {
            // Connecting goes on: where no other is left, the call waits for that.
            None if matches!(failure, Failure::SlowToConnect) => {
                (call.node, call.is_guess) = (other, is_guess);
            }
            // While the slot's node is unknown, any that is there can tell. One that is silent has taken the time for that.
            None if matches!(&failure, Failure::NotConnected(why) if !why.is_timeout())
                && failure.is_away()
                && !Arc::ptr_eq(&other, &call.node)
                && !other.is_away() =>
            {
                (call.node, call.is_guess) = (other, is_guess);
            }
            // It may have been idle for long, and closed by the server.
            None if matches!(failure, Failure::Broken(_)) && request.is_repeatable() && !call.is_again => {
                call.is_again = true;
            }
            // The endpoint has moved: another connection may lead to the new master.
            Some("READONLY") if !call.is_again => {
                call.is_again = true;
                self.look_at_slots();
            }
            // A node that has left says so of every slot: another may know who has this one.
            Some("CLUSTERDOWN") if failure.is_unserved() && call.may_ask_another() => {
                self.look_at_slots();
                call.left.push(call.node.clone());
                let cluster = self.shared.cluster.as_ref();
                call.node = cluster.and_then(|cluster| cluster.one_there(&call.left)).ok_or(failure)?;
            }
            // Neither node did anything: some keys have gone ahead to another, or the node decides no longer.
            Some("TRYAGAIN" | "UNBLOCKED") if call.split_tries < TRIES_OF_A_SPLIT_SLOT => {
                call.split_tries += 1;
                self.clock().sleep(self.options.timeout / TRIES_OF_A_SPLIT_SLOT).await;
                (call.node, call.is_guess) = self.node_of(request, &call.left);
            }
            // A user without the right to load the script may still run it by its digest once it is loaded.
            Some("NOSCRIPT") => {
                let load = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).take();
                // In a box: the future of each call would have room for this one too, which is rare.
                match Box::pin(self.attempt(&call.node, &load, How::default())).await {
                    Err(Failure::Broken(_)) if !call.is_again => call.is_again = true,
                    loaded => drop(loaded?),
                }
            }
            _ => {
                let (Some(cluster), Failure::Replied(error)) = (&self.shared.cluster, &failure) else {
                    return Err(failure);
                };
                let Some(other) = cluster.redirected(&call.node, error) else { return Err(failure) };
                call.node.answers();
                call.is_asking = error.code() == Some("ASK");
                (call.node, call.is_guess) = (other, false);
                self.look_at_slots();
                if call.node.is_away() {
                    self.admit_to_away(call)?;
                }
            }
        }
        Ok(())
    }

    /// Sends what no call waits for, once, and calls `then` afterwards.
    pub(crate) fn send_once(&self, request: Option<Request>, then: impl FnOnce() + Send + 'static) {
        let Some(request) = request else { return };
        let transport = self.clone();
        self.spawn(async move {
            drop(transport.run(&request, None, &mut false).await);
            then();
        });
    }
}
