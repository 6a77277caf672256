//! Servers on one core, clients on another. Sharing one, they would measure how the scheduler takes turns.

use core_affinity::{get_core_ids, set_for_current, CoreId};

/// Which core is whose.
#[derive(Clone, Copy)]
pub struct Cores {
    servers: CoreId,
    clients: CoreId,
}

impl Cores {
    /// Moves this thread to the core of the clients. `None` on a machine with one core.
    pub fn split() -> Option<Self> {
        let ids = get_core_ids()?;
        let (servers, clients) = (*ids.iter().min()?, *ids.iter().max()?);
        (servers != clients && set_for_current(clients)).then_some(Self { servers, clients })
    }

    /// Does something that starts a server: its process begins on the core on which it is started.
    pub fn start_server<T>(self, start: impl FnOnce() -> T) -> T {
        set_for_current(self.servers);
        let started = start();
        set_for_current(self.clients);
        started
    }
}
