//! What the figures were measured on: they mean nothing without it.

use crate::common::engine::executable;
use crate::common::reply::text;
use crate::common::Server;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

pub fn caption() -> String {
    let load = line("/proc/loadavg", "");
    format!(
        "{}, {} cores, Linux {}, load average {} before the run. {} with {}, tokenbucket {}. {}.",
        line("/proc/cpuinfo", "model name").trim_start_matches([':', ' ']),
        available_parallelism().unwrap(),
        line("/proc/sys/kernel/osrelease", ""),
        load.split(' ').next().unwrap_or_default(),
        server_release(),
        if Server::start().has_jemalloc() { "jemalloc" } else { "libc's allocator" },
        module_version(),
        output_of(Command::new("date").arg("+%Y-%m-%d")).trim(),
    )
}

/// The server's name and release, like `redis 7.0.15`.
pub fn server_release() -> String {
    let line = output_of(Command::new(executable()).arg("--version"));
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default().to_lowercase();
    let release = words.find_map(|word| word.strip_prefix("v=")).expect("the server says its release");
    format!("{name} {release}")
}

/// The compiler's name and release without its last number, like `rustc 1.95`: this program and the module have the same.
pub fn compiler_release() -> String {
    let line = output_of(Command::new("rustc").arg("--version"));
    let release = line.rsplit_once('.').expect("rustc says its release").0;
    release.to_owned()
}

/// As the module has told the server, which may have modules of its own: a number with two digits for each part but
/// the first.
fn module_version() -> String {
    let report = text(&Server::start().connect().say("INFO modules"));
    let own = report.split_once("name=tokenbucket,ver=").expect("the server says it").1;
    let version: u32 = own.split(',').next().and_then(|version| version.parse().ok()).expect("a number");
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// What follows the name on the first line of a file that begins with it.
fn line(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.unwrap_or("unknown").trim().to_owned()
}

fn output_of(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap_or_else(|error| panic!("{command:?}: {error}")).stdout).unwrap()
}
