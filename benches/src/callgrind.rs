//! A server under callgrind, that tells how many instructions its whole process spent between two moments.

use crate::server::{Server, Setup};
use anyhow::{bail, Context, Result};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
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
        let mut counted = Program::find(setup)?.apply(setup, folder.path())?;
        let valgrind = ["valgrind", "--tool=callgrind", "--quiet"].map(OsString::from);
        let files = [
            option_in(folder.path(), "--callgrind-out-file=", "callgrind"),
            option_in(folder.path(), "--vgdb-prefix=", "vgdb"),
        ];
        counted.wrapper.splice(0..0, valgrind.into_iter().chain(files));
        let counted = counted.option("hz", CRON_LOOPS_A_SECOND);
        let server = Server::start_in(&counted, folder).context("starting the server under valgrind")?;
        let settled_s = server.uptime_s()? + SETTLING_S;
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
        let folder = self.server.folder();
        let output = Command::new("vgdb")
            .arg(option_in(folder, "--vgdb-prefix=", "vgdb"))
            .arg(format!("--pid={}", self.server.process_id()))
            .arg("dump")
            .stdin(Stdio::null())
            .output()
            .context("vgdb, which comes with valgrind, cannot be run")?;
        if !output.status.success() {
            bail!("vgdb failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        self.dumps += 1;
        let profile = folder.join(format!("callgrind.{}", self.dumps));
        let count = total(&profile)?;
        fs::remove_file(profile)?;
        Ok(count)
    }
}

/// A word like `--log=FOLDER/FILE`.
fn option_in(folder: &Path, option: &str, file: &str) -> OsString {
    let mut word = OsString::from(option);
    word.push(folder.join(file));
    word
}

/// The sum at the end of a profile.
fn total(profile: &Path) -> Result<u64> {
    let text = fs::read_to_string(profile).with_context(|| format!("{} is missing", profile.display()))?;
    let line = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    Ok(line.context("a profile without a sum")?.trim().parse()?)
}

/// The program that a server's executable becomes, which may be a script that starts it with other libraries or
/// under another name: valgrind must run the program itself.
struct Program {
    path: PathBuf,
    /// What the program is called: some decide by that what they do.
    name: OsString,
    /// What precedes the server's own arguments.
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Program {
    /// Starts the server once, to see what it becomes.
    fn find(setup: &Setup) -> Result<Self> {
        // A title would be written over the arguments.
        let server = Server::start(&Setup::plain(&setup.executable).option("set-proc-title", "no"))
            .context("instructions are counted from Redis 6.2 on")?;
        let process = PathBuf::from(format!("/proc/{}", server.process_id()));
        let mut words = zero_separated(&fs::read(process.join("cmdline"))?);
        let own = words.iter().position(|word| word == "--port").context("the server hides its arguments")?;
        words.truncate(own);
        let name = Path::new(&words[0]).file_name().context("the server has no name")?.to_owned();
        let environment = zero_separated(&fs::read(process.join("environ"))?);
        Ok(Self {
            path: fs::read_link(process.join("exe"))?,
            name,
            arguments: words.split_off(1),
            environment: environment.iter().filter_map(|entry| split_entry(entry)).collect(),
        })
    }

    /// The same setup with the program itself, under the right name.
    fn apply(self, setup: &Setup, folder: &Path) -> Result<Setup> {
        let named = folder.join(self.name);
        symlink(&self.path, &named)?;
        // The executable is the last word of what runs the server; its leading arguments have to follow it.
        let mut words = vec![named.into_os_string()];
        words.extend(self.arguments);
        let executable = words.pop().map(PathBuf::from).unwrap_or_default();
        Ok(Setup { executable, wrapper: words, environment: self.environment, ..setup.clone() })
    }
}

fn zero_separated(bytes: &[u8]) -> Vec<OsString> {
    let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| OsString::from_vec(part.to_vec())).collect()
}

fn split_entry(entry: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = entry.as_bytes();
    let at = bytes.iter().position(|&byte| byte == b'=')?;
    let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Some((part(&bytes[..at]), part(&bytes[at + 1..])))
}
