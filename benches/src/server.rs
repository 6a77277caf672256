//! Real servers: started on free ports in temporary folders, ended by their own process id.

use crate::connection::Connection;
use anyhow::{bail, Context, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
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
        let log = File::create(folder.path().join("log"))?;
        let child = setup
            .command(port, folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", setup.executable.display()))?;
        let mut server = Self { child, port, folder };
        server.wait_until_it_answers()?;
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

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended ({status}):\n{}", self.log());
            }
            if self.answers() {
                return Ok(());
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

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
