//! Another rate limiter's module.

use super::single::{element, Single};
use super::{Approach, Bucket, Client};
use crate::peer::Peer;
use crate::resp::{Batch, Reply};
use anyhow::Result;
use std::path::Path;

pub struct ModulePeer {
    peer: Peer,
    name: String,
}

impl ModulePeer {
    pub fn new(peer: Peer) -> Self {
        Self { name: format!("{} ({})", peer.command(), peer.name), peer }
    }
}

impl Approach for ModulePeer {
    fn name(&self) -> &str {
        &self.name
    }

    fn module<'a>(&'a self, _own: &'a Path) -> Option<&'a Path> {
        Some(&self.peer.module)
    }

    fn has_any_limit(&self) -> bool {
        self.peer.has_any_limit()
    }

    fn client(&self, _number: usize) -> Box<dyn Client> {
        let peer = self.peer.clone();
        Box::new(Single {
            words: move |bucket: &Bucket, batch: &mut Batch| {
                batch.push(peer.words(&bucket.key, bucket.limit))
            },
            judge,
        })
    }
}

/// Modules of redis-cell's family reply an array that starts with 0 if they allow; others an integer that is negative
/// if they do not.
fn judge(reply: &Reply) -> Result<bool> {
    match reply {
        Reply::Array(_) => Ok(element(reply, 0)? == 0),
        other => Ok(other.integer()? >= 0),
    }
}
