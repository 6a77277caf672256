//! INCR, and EXPIRE if it was the first of a window.

use super::{last, Approach, Client, Step};
use crate::template::Limit;
use anyhow::Result;
use redis::{Pipeline, Value};

pub struct FixedWindow;

impl Approach for FixedWindow {
    fn name(&self) -> &str {
        "INCR + EXPIRE fixed window"
    }

    fn client(&self, _number: usize, limit: Limit) -> Box<dyn Client> {
        Box::new(Counter { limit, begun: false })
    }
}

struct Counter {
    limit: Limit,
    /// Whether this client's count began the window.
    begun: bool,
}

impl Client for Counter {
    fn begin(&mut self, key: &str, batch: &mut Pipeline) {
        self.begun = false;
        batch.cmd("INCR").arg(key);
    }

    fn proceed(&mut self, replies: &[Value], key: &str, batch: &mut Pipeline) -> Result<Step> {
        if self.begun {
            return Ok(Step::Decided { allowed: true });
        }
        let count: u64 = last(replies)?;
        if count == 1 {
            self.begun = true;
            batch.cmd("PEXPIRE").arg(key).arg(self.limit.window_ms());
            return Ok(Step::Ask);
        }
        Ok(Step::Decided { allowed: count <= self.limit.capacity })
    }
}
