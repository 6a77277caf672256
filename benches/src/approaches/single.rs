//! What approaches that decide in one command have in common.

use super::{Bucket, Client, Step};
use crate::resp::{Batch, Reply};
use anyhow::{Context, Result};

/// A client whose decision is one command.
pub struct Single<W, J> {
    /// Writes the command.
    pub words: W,
    /// Whether a reply allows.
    pub judge: J,
}

impl<W, J> Client for Single<W, J>
where
    W: FnMut(&Bucket, &mut Batch),
    J: Fn(&Reply) -> Result<bool>,
{
    fn begin(&mut self, bucket: &Bucket, batch: &mut Batch) -> Result<()> {
        (self.words)(bucket, batch);
        Ok(())
    }

    fn proceed(&mut self, replies: &[Reply], _bucket: &Bucket, _batch: &mut Batch) -> Result<Step> {
        let reply = replies.first().context("no reply")?;
        Ok(Step::Decided { allowed: (self.judge)(reply)? })
    }
}

/// The integer at a place of an array.
pub fn element(reply: &Reply, place: usize) -> Result<i64> {
    reply.elements()?.get(place).with_context(|| format!("{reply:?} is too short"))?.integer()
}
