//! Holds that could not be settled: they are settled by their ids once the server answers.

use std::sync::Arc;
use std::time::Duration;

use scopeguard::guard;
use tokio::sync::watch;

use crate::api::late::{Late, Step};
use crate::api::server::Server;
use crate::transport::ask::Answer;
use crate::transport::background::{timeout, warn};
use crate::transport::locked::locked;
use crate::values::rules::SETTLED_AGAIN_AFTER;
use crate::values::Request;

const LOG: &str = "tokenbucket_client::hold";
const LEAST_PAUSE: Duration = Duration::from_millis(50);

impl Server {
    /// Calls off what waits to end this hold, and returns whether anything did: then the caller ends it if it gets no hold
    /// either. A caller who leaves earlier has called off nothing.
    pub(super) async fn call_off(&self, hold: &Request) -> bool {
        loop {
            let sent = {
                let late = locked(&self.shared.late);
                let ends = |late: &&Arc<Late>| !late.is_at(Step::IsCalledOff) && late.settle.ends(hold);
                let same: Vec<_> = late.iter().filter(ends).collect();
                match same.iter().find(|late| late.is_at(Step::IsSent)) {
                    Some(sent) => sent.step.subscribe(),
                    None => {
                        same.iter().for_each(|late| _ = late.step.send_replace(Step::IsCalledOff));
                        return !same.is_empty();
                    }
                }
            };
            // It would arrive after the new hold.
            let _ = { sent }.wait_for(|step| *step != Step::IsSent).await;
        }
    }

    /// Returns whether it may be sent now, and notes that.
    fn sends(&self, late: &Late) -> bool {
        let _all = locked(&self.shared.late);
        let is_wanted = !late.is_at(Step::IsCalledOff);
        if is_wanted {
            late.step.send_replace(Step::IsSent);
        }
        is_wanted
    }

    /// Settles a hold after this time, or when the server is back, for at most its `ttl`. Charges nothing if the hold is not
    /// there, so that it may be sent again and again. If too many wait to be settled, it ends by its `ttl`. Calls `came_back`
    /// after each reply.
    pub(crate) fn settle_later(
        &self,
        settle: Request,
        ttl: Duration,
        after: Duration,
        came_back: impl Fn() + Send + 'static,
    ) {
        if !self.transport.clock().is_real() {
            return;
        }
        let Ok(room) = self.shared.unsettled.clone().try_acquire_owned() else { return };
        let late = Arc::new(Late { settle, step: watch::Sender::new(Step::Pauses) });
        locked(&self.shared.late).push(late.clone());
        let late = guard((self.clone(), late, room), |(server, late, _room)| {
            locked(&server.shared.late).retain(|one| !Arc::ptr_eq(one, &late));
        });
        self.transport.spawn(async move {
            let (server, late, _) = &*late;
            if let Err(why) = server.settle_when_back(late, ttl, after, came_back).await {
                warn(LOG, format!("a hold was not settled, and ends by its ttl: {why}"));
            }
        });
    }

    /// Settles twice: the hold itself may still lie in a socket. What it then takes comes back whole.
    async fn settle_when_back(
        &self,
        late: &Late,
        ttl: Duration,
        after: Duration,
        came_back: impl Fn(),
    ) -> Result<(), String> {
        let clock = self.transport.clock();
        let until = clock.now().saturating_add(ttl);
        let retry_every = self.transport.options.retry_every.max(LEAST_PAUSE);
        let again = late.settle.to_end();
        let mut pause = after;
        for settle in [Some(&late.settle), again.as_ref()].into_iter().flatten() {
            loop {
                let _ = timeout(pause, late.called_off()).await;
                if !self.sends(late) {
                    return Ok(());
                }
                let answer = self.transport.ask(settle, Duration::ZERO).await;
                late.step.send_replace(Step::Pauses);
                let why = match answer {
                    Ok(Answer::Reply(_)) => break,
                    Ok(Answer::Away(node) | Answer::Lost(node)) => node.failure(),
                    Err(error) => return Err(error.to_string()),
                };
                if clock.now() >= until {
                    return Err(why);
                }
                pause = retry_every;
            }
            came_back();
            pause = SETTLED_AGAIN_AFTER;
        }
        Ok(())
    }
}
