//! A wall clock that a test sets and a server obeys.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A moment to start from, at an odd microsecond: 2026-01-01 00:00:00.000007 UTC.
pub const START_US: i64 = 1_767_225_600_000_007;

/// The time of one server, or of several that share it.
pub struct Clock {
    file: File,
    path: PathBuf,
}

impl Clock {
    /// A clock that stands at [`START_US`], kept in `folder`.
    pub fn new(folder: &Path) -> Self {
        let path = folder.join("clock");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let clock = Self { file, path };
        clock.set_us(START_US);
        clock
    }

    /// The time that the server sees, in Unix microseconds.
    pub fn now_us(&self) -> i64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        i64::from_be_bytes(bytes)
    }

    pub fn set_us(&self, now_us: i64) {
        self.file.write_all_at(&now_us.to_be_bytes(), 0).unwrap();
    }

    pub fn advance_us(&self, by_us: i64) {
        self.set_us(self.now_us() + by_us);
    }

    pub fn advance_ms(&self, by_ms: i64) {
        self.advance_us(by_ms * 1000);
    }

    /// Lets a server that is about to be started obey this clock. `compiler` is that of a server which is foreign to
    /// this machine: what starts it is not, and hands the library on.
    pub fn govern(&self, command: &mut Command, compiler: Option<&Path>) {
        static BUILT: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
        let built = &BUILT[usize::from(compiler.is_some())];
        let variable = if compiler.is_some() { "SERVER_PRELOAD" } else { "LD_PRELOAD" };
        let library = built.get_or_init(|| build(compiler));
        command.env(variable, library).env("FAKECLOCK", &self.path);
    }
}

/// Compiles the library that replaces functions of libc, for this machine or another.
fn build(compiler: Option<&Path>) -> PathBuf {
    let file = format!("fakeclock-{}-{}.c", u8::from(compiler.is_some()), std::process::id());
    let file = std::env::current_exe().unwrap().with_file_name(file);
    let library = file.with_extension("so");
    std::fs::write(&file, include_str!("fakeclock.c")).unwrap();
    let status = Command::new(compiler.unwrap_or(Path::new("cc")))
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &file])
        .arg("-ldl")
        .status()
        .expect("a C compiler is needed for what is preloaded into servers");
    assert!(status.success(), "the clock did not compile");
    library
}
