//! What valgrind says of each process: one file per process, as XML.

use crate::common::engine::executable;
use crate::common::server::module;
use crate::common::{wait_until, Server};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The files, and the servers that have to have finished theirs.
pub struct Reports {
    folder: TempDir,
    ended: RefCell<Vec<u32>>,
}

impl Reports {
    /// From now on, servers are started under valgrind.
    pub fn begin() -> Self {
        let version = Command::new("valgrind").arg("--version").output();
        assert!(version.is_ok_and(|output| output.status.success()), "valgrind cannot be run");
        let folder = tempfile::tempdir().unwrap();
        let wrapper = folder.path().join("server");
        fs::write(&wrapper, wrapper_script(folder.path(), &executable())).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        std::env::set_var("SERVER", &wrapper);
        Self { folder, ended: RefCell::default() }
    }

    /// Lets a server shut down by itself, so that valgrind can say what was lost.
    pub fn end(&self, mut server: Server) {
        let process_id = server.process_id();
        // The connection breaks instead of a reply.
        let _ = server.connect().try_run(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(server.wait_for_exit(), 0, "{}", server.log());
        self.ended.borrow_mut().push(process_id);
    }

    /// Takes note of a server that ended by itself and may have been started again since.
    pub fn has_ended(&self, process_id: u32) {
        self.ended.borrow_mut().push(process_id);
    }

    /// Panics with what valgrind has found, if that concerns us.
    pub fn assert_clean(&self) {
        for process_id in self.ended.borrow().iter() {
            let report = self.folder.path().join(format!("{process_id}.xml"));
            wait_until("valgrind has finished its report", || is_finished(&report));
        }
        let findings: Vec<String> = self.files().iter().flat_map(|report| findings(report)).collect();
        assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
        println!("{} processes, {} of them until their end", self.files().len(), self.ended.borrow().len());
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "xml")).collect()
    }
}

/// Starts the server under valgrind, with a report of its own for each process, those that it forks included.
fn wrapper_script(folder: &Path, server: &Path) -> String {
    let (folder, server) = (folder.display(), server.display());
    format!(
        "#!/bin/sh\nexec valgrind --quiet --trace-children=yes --num-callers=40 --track-origins=yes \
         --leak-check=full --show-leak-kinds=definite --xml=yes --xml-file='{folder}/%p.xml' '{server}' \"$@\"\n"
    )
}

fn is_finished(report: &Path) -> bool {
    fs::read_to_string(report).is_ok_and(|xml| xml.trim_end().ends_with("</valgrindoutput>"))
}

/// The errors of one report: every invalid access, and what the module has lost.
fn findings(report: &Path) -> Vec<String> {
    let xml = fs::read_to_string(report).unwrap();
    let errors = xml.split("<error>").skip(1).map(|error| error.split("</error>").next().unwrap());
    errors.filter(|error| concerns_us(error)).map(describe).collect()
}

/// An access may be invalid because of us without our being anywhere in sight. What a server itself has lost when
/// it ends, or has never written before it reads it (its compression does), is its own affair: only what is lost or
/// left unwritten by a function of ours, or called by one, is ours.
fn concerns_us(error: &str) -> bool {
    const OWN_AFFAIRS: [&str; 4] = ["Leak_", "Uninit", "SyscallParam", "ClientCheck"];
    let module = module();
    let module = module.file_name().unwrap().to_string_lossy().into_owned();
    let kind = texts(error, "kind").next().unwrap();
    let may_be_its_own = OWN_AFFAIRS.iter().any(|own| kind.starts_with(own));
    !may_be_its_own || texts(error, "obj").any(|object| object.ends_with(&module))
}

fn describe(error: &str) -> String {
    let heading: Vec<_> =
        texts(error, "kind").chain(texts(error, "text")).chain(texts(error, "what")).collect();
    let frames: Vec<_> = texts(error, "fn").map(|function| format!("    {function}")).collect();
    format!("{}\n{}", heading.join(": "), frames.join("\n"))
}

/// The texts of all elements of a name. (Those that matter here have neither attributes nor elements in them.)
fn texts<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let behind = rest.split_once(&begin)?.1;
        let (text, after) = behind.split_once(&end)?;
        rest = after;
        Some(text)
    })
}
