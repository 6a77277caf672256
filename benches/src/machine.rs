//! What the figures were measured on: they mean nothing without it.

use crate::instructions::Paths;
use crate::server::{version, Server, Setup};
use anyhow::{Context, Result};
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

/// One line on the machine and one on the programs.
pub fn caption(paths: &Paths) -> Result<String> {
    let peers: Vec<&str> = paths.peers.iter().map(|peer| peer.name.as_str()).collect();
    let peers = if peers.is_empty() { String::new() } else { format!(", peers: {}", peers.join(", ")) };
    Ok(format!(
        "{}, {} cores, {} GB, {}, load average {} before the run. {}, tokenbucket {}{peers}. {}.",
        processor(),
        available_parallelism()?,
        memory_gb(),
        kernel(),
        load_average(),
        version(paths.server)?,
        module_version(paths)?,
        date()
    ))
}

fn module_version(paths: &Paths) -> Result<String> {
    let server = Server::start(&Setup::with_module(paths.server, paths.module))?;
    let report = server.connect()?.ask(&["INFO", "modules"])?.text()?;
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

fn processor() -> String {
    let report = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = report.lines().find_map(|line| line.strip_prefix("model name"));
    name.map_or_else(
        || "unknown processor".to_owned(),
        |name| name.trim_start_matches(['\t', ' ', ':']).to_owned(),
    )
}

fn memory_gb() -> u64 {
    let report = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = report.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|total| total.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or_default().div_ceil(1 << 20)
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim())
}

fn load_average() -> String {
    let report = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    report.split(' ').next().unwrap_or_default().to_owned()
}

fn date() -> String {
    let output = Command::new("date").arg("+%Y-%m-%d").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
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
