//! Ways to limit, each behind the same interface: one decision is a few exchanges with the server.

mod baseline;
mod client_bucket;
mod fixed_window;
mod increx;
mod lua;
mod module_peer;
mod optimistic;
mod read_compute_write;
mod single;
mod sliding_window;
mod take;

pub use baseline::{Get, SetWithExpiry};
pub use take::Take;

use crate::calls::key;
use crate::connection::Connection;
use crate::limit::Limit;
use crate::peer::Peer;
use crate::resp::{Batch, Reply};
use anyhow::{bail, Result};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A bucket that decisions are wanted on.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub key: String,
    pub limit: Limit,
}

impl Bucket {
    /// The bucket of one of many users.
    pub fn of_user(number: u64, limit: Limit) -> Self {
        Self { key: key(number), limit }
    }
}

/// Where a decision stands after an exchange.
pub enum Step {
    /// The batch has the next commands.
    Ask,
    /// Another was faster; the batch has the commands of a new try.
    Retry,
    Decided {
        allowed: bool,
    },
    /// Too many tries.
    GaveUp,
}

/// A way to limit.
pub trait Approach {
    fn name(&self) -> &str;

    /// The module that the server has to have.
    fn module<'a>(&'a self, _own: &'a Path) -> Option<&'a Path> {
        None
    }

    /// Whether it keeps to whatever limit it is given.
    fn has_any_limit(&self) -> bool {
        true
    }

    /// What a server needs before the first decision.
    fn load(&self, _connection: &mut Connection) -> Result<()> {
        Ok(())
    }

    /// Writes all commands of an allowed decision on a new bucket; false if some depend on replies to others.
    fn write_at_once(&self, bucket: &Bucket, batch: &mut Batch) -> Result<bool> {
        self.client(0).begin(bucket, batch)?;
        Ok(true)
    }

    /// A client that decides one at a time.
    fn client(&self, number: usize) -> Box<dyn Client>;
}

/// The steps of one client.
pub trait Client {
    /// Writes the first commands of a decision.
    fn begin(&mut self, bucket: &Bucket, batch: &mut Batch) -> Result<()>;

    /// Makes of the replies either a decision or the next commands.
    fn proceed(&mut self, replies: &[Reply], bucket: &Bucket, batch: &mut Batch) -> Result<Step>;
}

/// Every approach that the server knows.
pub fn all(peers: &[Peer], has_increx: bool) -> Vec<Box<dyn Approach>> {
    let mut all: Vec<Box<dyn Approach>> = vec![
        Box::new(take::Take),
        Box::new(lua::Lua),
        Box::new(read_compute_write::ReadComputeWrite),
        Box::new(optimistic::Optimistic),
        Box::new(sliding_window::SlidingWindow),
        Box::new(fixed_window::FixedWindow),
    ];
    if has_increx {
        all.push(Box::new(increx::Increx));
    }
    all.extend(
        peers.iter().map(|peer| Box::new(module_peer::ModulePeer::new(peer.clone())) as Box<dyn Approach>),
    );
    all
}

/// Makes one decision, step by step; whether it allowed.
pub fn decide(connection: &mut Connection, client: &mut dyn Client, bucket: &Bucket) -> Result<bool> {
    let mut batch = Batch::new();
    client.begin(bucket, &mut batch)?;
    loop {
        let mut replies = Vec::new();
        connection.exchange(&batch, |reply| {
            replies.push(reply.clone().checked()?);
            Ok(())
        })?;
        batch.clear();
        match client.proceed(&replies, bucket, &mut batch)? {
            Step::Ask | Step::Retry => {}
            Step::Decided { allowed } => return Ok(allowed),
            Step::GaveUp => bail!("a decision was given up although nobody was in its way"),
        }
    }
}

/// The time of a client, in Unix microseconds.
fn client_now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros().try_into().unwrap_or(u64::MAX)
}
