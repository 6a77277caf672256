//! Holds that could not be settled: they are settled by their ids once the server answers.

use std::time::Duration;

use crate::api::server::Server;
use crate::transport::ask::Answer;
use crate::transport::background::warn;
use crate::values::rules::SETTLED_AGAIN_AFTER;
use crate::values::Request;

const LOG: &str = "tokenbucket_client::hold";
const LEAST_PAUSE: Duration = Duration::from_millis(50);

impl Server {
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
        let server = self.clone();
        self.transport.spawn(async move {
            if let Err(why) = server.settle_when_back(settle, ttl, after, came_back).await {
                warn(LOG, format!("a hold was not settled, and ends by its ttl: {why}"));
            }
            drop(room);
        });
    }

    /// Settles twice: the hold itself may still lie in a socket. What it then takes comes back whole.
    async fn settle_when_back(
        &self,
        settle: Request,
        ttl: Duration,
        after: Duration,
        came_back: impl Fn(),
    ) -> Result<(), String> {
        let clock = self.transport.clock();
        let until = clock.now().saturating_add(ttl);
        let retry_every = self.transport.options.retry_every.max(LEAST_PAUSE);
        let again = settle.to_end();
        let mut pause = after;
        for settle in [Some(settle), again].into_iter().flatten() {
            loop {
                clock.sleep(pause).await;
                let why = match self.transport.ask(&settle, Duration::ZERO).await {
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
