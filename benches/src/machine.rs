//! What the figures were measured on: they mean nothing without it.

use crate::arguments::Arguments;
use crate::server::{ask, Server, Setup};
use anyhow::{Context, Result};
use redis::InfoDict;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::available_parallelism;

/// The machine and the programs.
pub fn caption(arguments: &Arguments) -> Result<String> {
    let peers: Vec<&str> = arguments.peers.iter().map(|peer| peer.name.as_str()).collect();
    let peers = if peers.is_empty() { String::new() } else { format!(", peers: {}", peers.join(", ")) };
    let memory_kb: u64 =
        line("/proc/meminfo", "MemTotal:").trim_end_matches(" kB").parse().unwrap_or_default();
    let load = line("/proc/loadavg", "");
    let caption = format!(
        "{}, {} cores, {} GB, Linux {}, load average {} before the run. {}, tokenbucket {}{peers}. {}. {}",
        line("/proc/cpuinfo", "model name").trim_start_matches([':', ' ']),
        available_parallelism()?,
        memory_kb.div_ceil(1 << 20),
        line("/proc/sys/kernel/osrelease", ""),
        load.split(' ').next().unwrap_or_default(),
        version(&arguments.server)?,
        module_version(arguments)?,
        String::from_utf8(Command::new("date").arg("+%Y-%m-%d").output()?.stdout)?.trim(),
        arguments.note,
    );
    Ok(caption.trim_end().to_owned())
}

/// A server's name and version, like `redis 7.0.15`.
pub fn version(executable: &Path) -> Result<String> {
    let server = Server::start(&Setup::new(executable, None))?;
    let report: InfoDict = ask(&mut server.connect()?, &["INFO", "server"])?;
    // Forks report the version of Redis that they are compatible with, too.
    let own = ["valkey", "redict", "redis"].into_iter().find_map(|name| {
        let version: String = report.get(&format!("{name}_version"))?;
        Some(format!("{name} {version}"))
    });
    own.context("the server does not say its version")
}

fn module_version(arguments: &Arguments) -> Result<String> {
    let server = Server::start(&Setup::new(&arguments.server, Some(&arguments.module)))?;
    let report: String = ask(&mut server.connect()?, &["INFO", "modules"])?;
    version_in(&report).context("the server does not say the module's version")
}

/// As the module has told the server, which may have modules of its own: a number with two digits for each part but
/// the first.
fn version_in(report: &str) -> Option<String> {
    let own = report.lines().find(|line| line.contains("name=tokenbucket,"))?;
    let version = own.split(',').find_map(|field| field.strip_prefix("ver="))?;
    let version: u32 = version.parse().ok()?;
    Some(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
}

/// What follows the name on the first line of a file that begins with it.
fn line(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.unwrap_or("unknown").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn the_version_is_the_modules_own() {
        let report =
            "# Modules\r\nmodule:name=tokenbucket,ver=10203,api=1\r\nmodule:name=vectorset,ver=1,api=1\r\n";
        assert_eq!(version_in(report).as_deref(), Some("1.2.3"));
        assert_eq!(version_in("module:name=vectorset,ver=1,api=1"), None);
    }
}
