//! A server under callgrind, that tells how many instructions its whole process spent between two moments.

use crate::server::{info, Server, Setup};
use anyhow::{ensure, Context, Result};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Housekeeping of the server a second. As little as there can be: callgrind makes calls fifty times slower, but not
/// the clock, so that its share would be a few percent of what is counted at the usual 10, and more on a busy machine.
/// What is left of it is measured and taken off.
const CRON_LOOPS_A_SECOND: u32 = 1;

/// Time to settle after the start, in seconds of the server's own clock: the module takes ten loops of
/// housekeeping to find out that nobody listens to replication.
const SETTLING_S: f64 = 11.0;

/// How long nobody calls while housekeeping is measured.
const IDLE: Duration = Duration::from_secs(3);

/// A server whose instructions are counted.
pub struct CountingServer {
    pub server: Server,
    dumps: usize,
    /// When it is settled, in seconds since its start.
    settled_s: f64,
    last_asked: Instant,
    /// Instructions a second while nobody calls.
    idle_a_second: f64,
}

impl CountingServer {
    /// Starts a server under callgrind.
    pub fn start(setup: &Setup) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut counted = unwrapped(setup, folder.path())?.option("hz", CRON_LOOPS_A_SECOND);
        let valgrind = ["valgrind", "--tool=callgrind", "--quiet"].map(OsString::from);
        let files = [
            option_in(folder.path(), "--callgrind-out-file=", "callgrind"),
            option_in(folder.path(), "--vgdb-prefix=", "vgdb"),
        ];
        counted.command.splice(0..0, valgrind.into_iter().chain(files));
        let server = Server::start_in(&counted, folder).context("starting the server under valgrind")?;
        let settled_s = info::<f64>(&mut server.connect()?, "server", "uptime_in_seconds")? + SETTLING_S;
        Ok(Self { server, dumps: 0, settled_s, last_asked: Instant::now(), idle_a_second: 0.0 })
    }

    /// Waits until each server has seen enough of its housekeeping, and measures what that costs.
    pub fn settle<'a>(servers: impl Iterator<Item = &'a mut Self>) -> Result<()> {
        let mut servers: Vec<_> = servers.collect();
        for server in &mut servers {
            server.server.wait_for_uptime(server.settled_s)?;
            server.instructions()?;
        }
        std::thread::sleep(IDLE);
        for server in servers {
            let since = server.last_asked;
            let instructions = server.instructions()?;
            server.idle_a_second = instructions / (server.last_asked - since).as_secs_f64();
        }
        Ok(())
    }

    /// Instructions spent since the last time this was asked, without housekeeping.
    pub fn instructions(&mut self) -> Result<f64> {
        let elapsed = self.last_asked.elapsed();
        self.last_asked = Instant::now();
        let housekeeping = elapsed.as_secs_f64() * self.idle_a_second;
        Ok(self.all_instructions()? as f64 - housekeeping)
    }

    fn all_instructions(&mut self) -> Result<u64> {
        let folder = self.server.folder.path();
        let output = Command::new("vgdb")
            .arg(option_in(folder, "--vgdb-prefix=", "vgdb"))
            .arg(format!("--pid={}", self.server.process_id()))
            .arg("dump")
            .stdin(Stdio::null())
            .output()
            .context("vgdb, which comes with valgrind, cannot be run")?;
        ensure!(output.status.success(), "vgdb failed: {}", String::from_utf8_lossy(&output.stderr));
        self.dumps += 1;
        let profile = folder.join(format!("callgrind.{}", self.dumps));
        let text = fs::read_to_string(&profile).with_context(|| profile.display().to_string())?;
        fs::remove_file(profile)?;
        let total = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("a profile without a sum")?.trim().parse()?)
    }
}

/// A word like `--log=FOLDER/FILE`.
fn option_in(folder: &Path, option: &str, file: &str) -> OsString {
    let mut word = OsString::from(option);
    word.push(folder.join(file));
    word
}

/// The same setup with the program that the executable becomes. It may be a script that starts the program with other
/// libraries or under another name, and valgrind must run the program itself. It is started once to see.
fn unwrapped(setup: &Setup, folder: &Path) -> Result<Setup> {
    // A title would be written over the arguments.
    let plain = Setup { module: None, options: Vec::new(), ..setup.clone() };
    let plain = plain.option("save", "").option("set-proc-title", "no");
    let server = Server::start(&plain).context("instructions are counted from Redis 6.2 on")?;
    let process = PathBuf::from(format!("/proc/{}", server.process_id()));
    let mut command = zero_separated(&process.join("cmdline"))?;
    let options = command.iter().position(|word| word == "--port");
    command.truncate(options.context("the server hides its arguments")?);
    // What it is called decides what it does.
    let named = folder.join(Path::new(&command[0]).file_name().context("the server has no name")?);
    symlink(fs::read_link(process.join("exe"))?, &named)?;
    command[0] = named.into_os_string();
    let libraries = |entry: OsString| {
        let path = entry.to_str()?.strip_prefix("LD_LIBRARY_PATH=")?;
        Some(("LD_LIBRARY_PATH".into(), path.into()))
    };
    let environment = zero_separated(&process.join("environ"))?.into_iter().find_map(libraries);
    Ok(Setup { command, environment: environment.into_iter().collect(), ..setup.clone() })
}

fn zero_separated(file: &Path) -> Result<Vec<OsString>> {
    let bytes = fs::read(file)?;
    let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
    Ok(parts.map(|part| OsString::from_vec(part.to_vec())).collect())
}
