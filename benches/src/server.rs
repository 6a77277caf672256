//! The servers of the measurements: those of the tests, with one rate limiter or another.

use crate::common::wait::wait_within;
use crate::common::{Connection, Server, ServerBuilder};
use crate::template::{FALLBACK, SEMAPHORE, TOKEN_BUCKET};
use std::sync::LazyLock;
use std::time::Duration;

/// The rate limiter that a server has loaded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Module {
    None,
    Own,
    RedisCell,
    /// None: a server of its own, not Redis.
    ThrottleCrab,
}

/// What redis-cell's command is called in reports: with the release that is built.
pub static CELL_NAME: LazyLock<String> = LazyLock::new(|| {
    format!("CL.THROTTLE (redis-cell {})", version_built(include_str!("../build-redis-cell.sh")))
});

/// The release that a script builds.
pub fn version_built(script: &str) -> &str {
    script.lines().find_map(|line| line.strip_prefix("version=")).expect("a version is built")
}

impl Module {
    /// A server with it that is yet to be started.
    pub fn server(self) -> ServerBuilder {
        match self {
            Self::None => Server::builder().without_module(),
            // The hold that comes beside 10,000 is one more than are allowed otherwise.
            Self::Own => Server::builder().option("tokenbucket.max-holds", 10_001),
            Self::ThrottleCrab => panic!("throttlecrab-server is no Redis"),
            Self::RedisCell => {
                let library = std::env::var("REDIS_CELL").expect("REDIS_CELL says where its library is");
                Self::None.server().option("loadmodule", library)
            }
        }
    }
}

/// Starts a server, which then knows the scripts.
pub fn start(builder: ServerBuilder) -> Server {
    let server = builder.start();
    for script in [&TOKEN_BUCKET, &FALLBACK, &SEMAPHORE] {
        script.prepare_invoke().load(server.connect().inner()).expect("the script is loaded");
    }
    server
}

/// When the module has found out that nobody listens to replication, after a server's start.
pub const SETTLED_S: i64 = 4;

/// Waits until the server's own clock, which its housekeeping moves on, is so many seconds after its start.
pub fn wait_for_uptime(server: &Server, uptime_s: i64) {
    let mut client = server.connect();
    wait("time has passed", || client.count("server", "uptime_in_seconds") >= uptime_s);
}

/// Waits until no hash table is on its way into a larger one.
pub fn wait_for_hash_tables(server: &Server) {
    let mut client = server.connect();
    let mut has_target = || format!("{:?}", client.say("DEBUG HTSTATS 0")).contains("rehashing target");
    wait("the hash tables have grown", || !has_target());
}

/// Also under valgrind on a busy machine, and for ten million keys.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    wait_within(Duration::from_secs(120), what, || condition().then_some(()));
}

/// Microseconds that a call of a command has taken since `CONFIG RESETSTAT`, on average.
pub fn us_per_call(client: &mut Connection, command: &str) -> f64 {
    // The server writes commands in small letters, and those of modules as they were registered.
    let name = if command.starts_with("TB.") { command.to_owned() } else { command.to_lowercase() };
    let statistics = client.info("commandstats", &format!("cmdstat_{name}"));
    // The server's own quotient has two digits behind the point.
    let field = |name: &str| -> f64 {
        let value = statistics.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse().ok()).expect("the statistics have the field")
    };
    field("usec") / field("calls")
}
