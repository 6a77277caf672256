//! Real servers: started on free ports in temporary folders, ended by their own process id.

use crate::connection::Connection;
use crate::cores::Cores;
use crate::random::Random;
use crate::resp::Reply;
use anyhow::{bail, ensure, Context, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// How long a server may take to start, also under valgrind on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server is started with.
#[derive(Clone, Default)]
pub struct Setup {
    pub executable: PathBuf,
    pub module: Option<PathBuf>,
    pub options: Vec<(String, String)>,
    /// A program and its arguments that run the server, such as valgrind.
    pub wrapper: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    /// Where it runs, if not anywhere.
    pub cores: Option<Cores>,
}

impl Setup {
    /// A server without a module, that writes no file.
    pub fn plain(executable: &Path) -> Self {
        Self { executable: executable.to_owned(), ..Self::default() }.option("save", "")
    }

    pub fn with_module(executable: &Path, module: &Path) -> Self {
        Self { module: Some(module.to_owned()), ..Self::plain(executable) }
    }

    /// Adds a line of configuration.
    pub fn option(mut self, name: &str, value: impl ToString) -> Self {
        self.options.push((name.to_owned(), value.to_string()));
        self
    }

    fn command(&self, port: u16, folder: &Path) -> Command {
        let mut words = self.wrapper.clone();
        words.push(self.executable.clone().into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(folder);
        for (name, value) in &self.options {
            command.arg(format!("--{name}")).arg(value);
        }
        if let Some(module) = &self.module {
            command.arg("--loadmodule").arg(module);
        }
        command.envs(self.environment.iter().cloned());
        command
    }
}

/// A running server. Ended when it goes out of scope.
pub struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(setup: &Setup) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        Self::start_in(setup, folder)
    }

    /// Starts a server whose files are in `folder`.
    pub fn start_in(setup: &Setup, folder: TempDir) -> Result<Self> {
        let port = free_port()?;
        let mut server = Self { child: spawn(setup, port, folder.path())?, port, folder };
        while !server.has_started()? {
            // Another program took the port between our look and the server's.
            server.port = free_port()?;
            server.child = spawn(setup, server.port, server.folder())?;
        }
        Ok(server)
    }

    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until the server's own clock, which its housekeeping moves on, is so many seconds after its start.
    pub fn wait_for_uptime(&self, uptime_s: f64) -> Result<()> {
        self.wait_until("time has passed", |connection| {
            Ok(connection.info("server")?.number("uptime_in_seconds")? >= uptime_s)
        })
    }

    /// Waits until the module has found out that nobody listens to replication.
    pub fn wait_until_settled(&self) -> Result<()> {
        self.wait_for_uptime(4.0)
    }

    /// Waits until a replica receives every write.
    pub fn wait_for_replica(&self) -> Result<()> {
        self.wait_until("a replica is attached", |connection| {
            let report = connection.info("replication")?;
            Ok(report.get("slave0").is_some_and(|replica| replica.contains("state=online")))
        })
    }

    /// Waits until no hash table is on its way into a larger one.
    pub fn wait_for_hash_tables(&self) -> Result<()> {
        self.wait_until("the hash tables have grown", |connection| {
            Ok(!connection.say("DEBUG HTSTATS 0")?.text()?.contains("rehashing target"))
        })
    }

    fn wait_until(&self, what: &str, reached: impl Fn(&mut Connection) -> Result<bool>) -> Result<()> {
        let mut connection = self.connect()?;
        let deadline = Instant::now() + PATIENCE;
        while !reached(&mut connection)? {
            ensure!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Whether there is such a command.
    pub fn knows(&self, command: &str) -> Result<bool> {
        let reply = self.connect()?.ask(&["COMMAND", "INFO", command])?;
        Ok(matches!(reply.elements()?.first(), Some(Reply::Array(_))))
    }

    /// Seconds since the server's start, by its own clock.
    pub fn uptime_s(&self) -> Result<f64> {
        self.connect()?.info("server")?.number("uptime_in_seconds")
    }

    /// Waits until the server answers; false if its port was taken.
    fn has_started(&mut self) -> Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                let log = self.log();
                ensure!(log.contains("Address already in use"), "the server ended ({status}):\n{log}");
                return Ok(false);
            }
            if self.answers() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the server did not answer within {PATIENCE:?}:\n{}", self.log());
    }

    /// Whether this very process answers, rather than another that took the port a moment earlier.
    fn answers(&self) -> bool {
        let process_id = || self.connect()?.info("server")?.number("process_id");
        process_id().is_ok_and(|id| id == f64::from(self.process_id()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whatever it would still write is thrown away with its folder.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server's name and version, like `redis 7.0.15`.
pub fn version(executable: &Path) -> Result<String> {
    let report = Server::start(&Setup::plain(executable))?.connect()?.info("server")?;
    // Forks report the version of Redis that they are compatible with, too.
    let own = ["valkey", "redict", "redis"].into_iter().find_map(|name| {
        let version = report.get(&format!("{name}_version"))?;
        Some(format!("{name} {version}"))
    });
    own.context("the server does not say its version")
}

fn spawn(setup: &Setup, port: u16, folder: &Path) -> Result<Child> {
    let log = File::create(folder.join("log"))?;
    let mut command = setup.command(port, folder);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut spawn = || command.spawn();
    let child = match setup.cores {
        Some(cores) => cores.start_server(spawn),
        None => spawn(),
    };
    child.with_context(|| format!("{} cannot be run", setup.executable.display()))
}

/// A port that was free a moment ago, from between those of the tests and those that outgoing connections are given.
fn free_port() -> Result<u16> {
    const LOWEST: u64 = 22_000;
    const COUNT: u64 = 10_000;
    let seed =
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64 ^ u64::from(std::process::id());
    let mut random = Random::new(seed);
    for _ in 0..COUNT {
        let port = (LOWEST + random.below(COUNT)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}
