//! A server under callgrind, that tells how many instructions its whole process spent between two moments.

use crate::common::{Server, ServerBuilder};
use crate::server::{start, wait_for_uptime, Module};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Housekeeping of the server a second. As little as there can be: callgrind makes calls fifty times slower, but not
/// the clock, so that its share would be a few percent of what is counted at the usual 10, and more on a busy machine.
/// What is left of it is measured and taken off.
const CRON_LOOPS_A_SECOND: u32 = 1;

/// Time to settle after the start, in seconds of the server's own clock: the module takes ten loops of
/// housekeeping to find out that there is neither a replica nor an AOF.
const SETTLING_S: i64 = 11;

/// How long nobody calls while housekeeping is measured.
const IDLE: Duration = Duration::from_secs(3);

/// The folder of profiles. When it goes, servers are started as before.
pub struct Profiles {
    folder: TempDir,
    server: Option<OsString>,
}

impl Profiles {
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        match &self.server {
            Some(server) => std::env::set_var("SERVER", server),
            None => std::env::remove_var("SERVER"),
        }
    }
}

/// From now on, servers are started under callgrind, which writes their profiles to this folder.
///
/// The executable may be a script that starts the program with other libraries or under another name, and valgrind must
/// run the program itself: it is started once to see.
pub fn begin() -> Profiles {
    let profiles = Profiles { folder: tempfile::tempdir().unwrap(), server: std::env::var_os("SERVER") };
    // A title would be written over the environment.
    let server = Module::None.server().option("set-proc-title", "no").start();
    let process = Path::new("/proc").join(server.process_id().to_string());
    let [script, program] = ["server", "redis-server"].map(|name| profiles.path().join(name));
    // What it is called decides what it does.
    symlink(fs::read_link(process.join("exe")).unwrap(), &program).unwrap();
    let environment = fs::read_to_string(process.join("environ")).unwrap();
    let libraries = environment.split('\0').find(|entry| entry.starts_with("LD_LIBRARY_PATH="));
    let command = format!(
        "#!/bin/sh\nexec env {} valgrind --quiet --tool=callgrind --callgrind-out-file='{folder}/%p' \
         --vgdb-prefix='{folder}/vgdb' '{}' \"$@\"\n",
        libraries.unwrap_or_default(),
        program.display(),
        folder = profiles.path().display()
    );
    fs::write(&script, command).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    std::env::set_var("SERVER", script);
    profiles
}

pub struct CountingServer<'a> {
    pub server: Server,
    profiles: &'a Path,
    dumps: usize,
    last_asked: Instant,
    /// Instructions a second while nobody calls.
    idle_a_second: f64,
}

impl<'a> CountingServer<'a> {
    pub fn start(profiles: &'a Path, builder: ServerBuilder) -> Self {
        let server = start(builder.option("hz", CRON_LOOPS_A_SECOND));
        Self { server, profiles, dumps: 0, last_asked: Instant::now(), idle_a_second: 0.0 }
    }

    /// Waits until each server has seen enough of its housekeeping, and measures what that costs.
    pub fn settle(mut servers: Vec<&mut Self>) {
        for server in &mut servers {
            wait_for_uptime(&server.server, SETTLING_S);
            server.instructions();
        }
        std::thread::sleep(IDLE);
        for server in servers {
            let since = server.last_asked;
            let instructions = server.instructions();
            server.idle_a_second = instructions / (server.last_asked - since).as_secs_f64();
        }
    }

    /// Instructions spent since the last time this was asked, without housekeeping.
    pub fn instructions(&mut self) -> f64 {
        let elapsed = self.last_asked.elapsed();
        self.last_asked = Instant::now();
        self.dump() as f64 - elapsed.as_secs_f64() * self.idle_a_second
    }

    /// Instructions that the process has spent since the last dump.
    fn dump(&mut self) -> u64 {
        self.dumps += 1;
        let (process_id, folder) = (self.server.process_id(), self.profiles.display());
        let output = Command::new("vgdb")
            .args([format!("--vgdb-prefix={folder}/vgdb"), format!("--pid={process_id}"), "dump".to_owned()])
            .stdin(Stdio::null())
            .output()
            .expect("vgdb, which comes with valgrind, cannot be run");
        assert!(output.status.success(), "vgdb failed: {}", String::from_utf8_lossy(&output.stderr));
        let profile = format!("{folder}/{process_id}.{}", self.dumps);
        let text = fs::read_to_string(&profile).unwrap();
        fs::remove_file(profile).unwrap();
        let total = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
        total.expect("a profile has a sum").trim().parse().unwrap()
    }
}
