//! What valgrind says of each process: one file per process, as XML.

use crate::common::engine::executable;
use crate::common::server::{module, SHUTS_DOWN};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The files.
pub struct Reports(TempDir);

impl Reports {
    /// From now on, servers are started under valgrind, and end by themselves, so that it can say what was lost.
    pub fn begin() -> Self {
        let version = Command::new("valgrind").arg("--version").output();
        assert!(version.is_ok_and(|output| output.status.success()), "valgrind cannot be run");
        let folder = tempfile::tempdir().unwrap();
        let wrapper = folder.path().join("server");
        fs::write(&wrapper, wrapper_script(folder.path(), &executable())).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        std::env::set_var("SERVER", &wrapper);
        std::env::set_var(SHUTS_DOWN, "yes");
        Self(folder)
    }

    /// Panics with what valgrind has found, if that concerns us.
    pub fn assert_clean(&self) {
        let pattern = self.0.path().join("*.xml").display().to_string();
        let reports: Vec<PathBuf> = glob::glob(&pattern).unwrap().map(Result::unwrap).collect();
        let findings: Vec<String> = reports.iter().flat_map(|report| findings(report)).collect();
        assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
        let finished = reports.iter().filter(|report| is_finished(report)).count();
        println!("{} processes, {finished} of them until their end", reports.len());
        assert!(finished > reports.len() / 2, "valgrind has not seen what most of them lost");
    }
}

/// Starts the server under valgrind, with a report of its own for each process, those that it forks included.
fn wrapper_script(folder: &Path, server: &Path) -> String {
    let (folder, server) = (folder.display(), server.display());
    // The server's compression reads a table before it has written to it, by design.
    format!(
        "#!/bin/sh\n[ \"$1\" != --version ] || exec '{server}' --version\n\
         exec valgrind --quiet --trace-children=yes --num-callers=40 --track-origins=yes --leak-check=full \
         --show-leak-kinds=definite --xml=yes --xml-file='{folder}/%p.xml' '{server}' \"$@\" --rdbcompression no\n"
    )
}

fn is_finished(report: &Path) -> bool {
    fs::read_to_string(report).is_ok_and(|xml| xml.trim_end().ends_with("</valgrindoutput>"))
}

/// The errors of one report: every invalid access, and what the module has lost.
fn findings(report: &Path) -> Vec<String> {
    let xml = fs::read_to_string(report).unwrap();
    texts(&xml, "error").filter(|error| concerns_us(error)).map(describe).collect()
}

/// An access may be invalid because of us without our being anywhere in sight. What a server itself has lost when
/// it ends, or has never written before it reads it (its compression does), is its own affair: only what is lost or
/// left unwritten by a function of ours, or called by one, is ours.
fn concerns_us(error: &str) -> bool {
    const OWN_AFFAIRS: [&str; 4] = ["Leak_", "Uninit", "SyscallParam", "ClientCheck"];
    let module = module().file_name().unwrap().to_string_lossy().into_owned();
    let kind = texts(error, "kind").next().unwrap();
    let may_be_its_own = OWN_AFFAIRS.iter().any(|own| kind.starts_with(own));
    !may_be_its_own || texts(error, "obj").any(|object| object.ends_with(&module))
}

fn describe(error: &str) -> String {
    let heading: Vec<_> = ["kind", "text", "what"].iter().flat_map(|name| texts(error, name)).collect();
    let frames: String = texts(error, "fn").map(|function| format!("\n    {function}")).collect();
    heading.join(": ") + &frames
}

/// The texts of all elements of a name. (Those that matter here have no attributes, and none of the same name in them.)
fn texts<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let end = format!("</{name}>");
    let behind: Vec<&str> = xml.split(&format!("<{name}>")).skip(1).collect();
    behind.into_iter().filter_map(move |behind| Some(behind.split_once(&end)?.0))
}
