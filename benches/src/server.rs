//! Real servers: started on free ports in temporary folders, ended by their own process id.

use crate::approaches::SEMAPHORE;
use crate::template::SCRIPT;
use anyhow::{bail, ensure, Context, Result};
use redis::{cmd, Connection, FromRedisValue, InfoDict};
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a server may take for anything that it is asked, also under valgrind on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a server is started with.
#[derive(Clone)]
pub struct Setup {
    /// The executable, and what may have to precede or follow it.
    pub command: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    pub module: Option<PathBuf>,
    pub options: Vec<(String, String)>,
}

impl Setup {
    /// A server with or without a module, that writes no file.
    pub fn new(executable: &Path, module: Option<&Path>) -> Self {
        let (command, module) = (vec![executable.into()], module.map(Path::to_owned));
        Self { command, environment: Vec::new(), module, options: Vec::new() }.option("save", "")
    }

    /// Adds a line of configuration.
    pub fn option(mut self, name: &str, value: impl ToString) -> Self {
        self.options.push((name.to_owned(), value.to_string()));
        self
    }

    fn spawn(&self, port: u16, folder: &Path) -> Result<Child> {
        let log = File::create(folder.join("log"))?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(folder);
        for (name, value) in &self.options {
            command.arg(format!("--{name}")).arg(value);
        }
        command.args(self.module.iter().flat_map(|module| ["--loadmodule".as_ref(), module.as_os_str()]));
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("{:?} cannot be run", self.command[0]))
    }
}

/// A running server that knows the scripts. Ended when it goes out of scope.
pub struct Server {
    child: Child,
    pub port: u16,
    pub folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub fn start(setup: &Setup) -> Result<Self> {
        Self::start_in(setup, tempfile::tempdir()?)
    }

    /// Starts a server whose files are in `folder`.
    pub fn start_in(setup: &Setup, folder: TempDir) -> Result<Self> {
        let port = free_port()?;
        let mut server = Self { child: setup.spawn(port, folder.path())?, port, folder };
        while !server.has_started()? {
            // Another program took the port between our look and the server's.
            server.port = free_port()?;
            server.child = setup.spawn(server.port, server.folder.path())?;
        }
        for script in [SCRIPT, SEMAPHORE] {
            ask::<String>(&mut server.connect()?, &["SCRIPT", "LOAD", script])?;
        }
        Ok(server)
    }

    /// A connection that waits for its replies.
    pub fn connect(&self) -> Result<Connection> {
        let connection =
            redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))?.get_connection()?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the module has found out that nobody listens to replication.
    pub fn wait_until_settled(&self) -> Result<()> {
        self.wait_for_uptime(4.0)
    }

    /// Waits until the server's own clock, which its housekeeping moves on, is so many seconds after its start.
    pub fn wait_for_uptime(&self, uptime_s: f64) -> Result<()> {
        let mut connection = self.connect()?;
        wait_until("time has passed", || {
            Ok(info::<f64>(&mut connection, "server", "uptime_in_seconds")? >= uptime_s)
        })
    }

    /// Waits until a replica receives every write.
    pub fn wait_for_replica(&self) -> Result<()> {
        let mut connection = self.connect()?;
        wait_until("a replica is attached", || {
            let replica = info::<String>(&mut connection, "replication", "slave0");
            Ok(replica.is_ok_and(|replica| replica.contains("state=online")))
        })
    }

    /// Waits until no hash table is on its way into a larger one.
    pub fn wait_for_hash_tables(&self) -> Result<()> {
        let mut connection = self.connect()?;
        wait_until("the hash tables have grown", || {
            let tables: String = ask(&mut connection, &["DEBUG", "HTSTATS", "0"])?;
            Ok(!tables.contains("rehashing target"))
        })
    }

    /// Whether there is such a command.
    pub fn knows(&self, command: &str) -> Result<bool> {
        let reply: Vec<redis::Value> = ask(&mut self.connect()?, &["COMMAND", "INFO", command])?;
        Ok(matches!(reply.first(), Some(redis::Value::Array(_))))
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
            // Another process may have taken the port a moment earlier.
            let process_id = self.connect().and_then(|mut server| info(&mut server, "server", "process_id"));
            if process_id.is_ok_and(|id: u32| id == self.process_id()) {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the server did not answer within {PATIENCE:?}:\n{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whatever it would still write is thrown away with its folder.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a command; an error reply is an error.
pub fn ask<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> Result<T> {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    command.query(connection).with_context(|| format!("'{}' failed", words.join(" ")))
}

/// A field of a section of `INFO`.
pub fn info<T: FromRedisValue>(connection: &mut Connection, section: &str, field: &str) -> Result<T> {
    let report: InfoDict = ask(connection, &["INFO", section])?;
    report.get(field).with_context(|| format!("INFO {section} has no field {field}"))
}

/// Microseconds that a call of a command has taken since `CONFIG RESETSTAT`, on average.
pub fn usec_per_call(connection: &mut Connection, command: &str) -> Result<f64> {
    // The server writes commands in small letters, and those of modules as they were registered.
    let line: String = info(connection, "commandstats", &format!("cmdstat_{command}"))
        .or_else(|_| info(connection, "commandstats", &format!("cmdstat_{}", command.to_lowercase())))?;
    // The server's own quotient has two digits behind the point.
    let field = |name: &str| -> Result<f64> {
        let value = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        Ok(value.with_context(|| format!("the statistics lack {name}"))?.parse()?)
    };
    Ok(field("usec")? / field("calls")?)
}

fn wait_until(what: &str, mut reached: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !reached()? {
        ensure!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A port that was free a moment ago, from between those of the tests and those that outgoing connections are given.
fn free_port() -> Result<u16> {
    let mut ports = std::iter::repeat_with(|| fastrand::u16(22_000..32_000)).take(10_000);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}
