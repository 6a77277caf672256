//! What every test starts beside a proxy.

use std::path::Path;

use crate::gate::{Gate, Reply, Setup};
use crate::http::Backend;
use crate::servers::Server;

/// A file of gate/examples or gate/tests with other addresses than its own.
pub fn configured(path: &str, replaced: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut text =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (from, to) in replaced {
        assert!(text.contains(from), "{} has no {from:?}", path.display());
        text = text.replace(from, to);
    }
    text
}

/// Redis, a backend and limits: what every test needs.
pub struct World {
    pub redis: Server,
    pub backend: Backend,
    pub limits: String,
}

impl World {
    /// With limits of one domain.
    pub fn new(limits: &str) -> Self {
        Self::with(Server::start(), limits)
    }

    pub fn with(redis: Server, limits: &str) -> Self {
        Self { redis, backend: Backend::start(), limits: limits.to_owned() }
    }

    /// A gate that is ready.
    pub fn gate(&self, settings: &[(&str, &str)]) -> Gate {
        // A busy machine may be slower than the default.
        let setup = Setup::redis(&self.redis.url()).set("REDIS_TIMEOUT", "10s").set_all(settings);
        let gate = setup.file("limits.yaml", &self.limits).start();
        gate.wait_until_healthy();
        gate
    }
}

/// The statuses of as many requests.
pub fn statuses(times: usize, mut ask: impl FnMut() -> Reply) -> Vec<u16> {
    (0..times).map(|_| ask().status).collect()
}
