//! Where a call waits in a server.

use std::sync::{Arc, Mutex};

use crate::locked::locked;
use crate::node::Node;

/// Where a call waits, while it does.
#[derive(Clone, Default)]
pub(crate) struct Place(Arc<Mutex<Option<Client>>>);

/// A connection, by its id on the node.
type Client = (Arc<Node>, i64);

impl Place {
    pub(crate) fn set(&self, place: Option<Client>) {
        *locked(&self.0) = place;
    }

    pub(crate) fn get(&self) -> Option<Client> {
        locked(&self.0).clone()
    }
}
