//! Machines: folders with the paths of Debian's packages, on which a page's commands run.

use crate::common::engine::{executable, redis_cli};
use crate::common::server::{free_port, module};
use crate::common::{timeout, Connection};
use regex::Regex;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Machines that know each other by name.
pub struct Machines {
    folder: TempDir,
    names: Vec<&'static str>,
}

/// One of them.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    machines: &'a Machines,
    pub name: &'static str,
}

impl Machines {
    /// Makes machines whose servers have not started, with Debian's snapshots and nothing else in the configuration.
    pub fn new(names: &[&'static str]) -> Self {
        let machines = Self { folder: tempfile::tempdir().unwrap(), names: names.to_vec() };
        fs::create_dir(machines.hosts()).unwrap();
        for name in names {
            let machine = machines.get(name);
            fs::write(machines.hosts().join(name), free_port().to_string()).unwrap();
            for folder in ["etc/redis", "var/lib/redis", "usr/lib/redis/modules", "root"] {
                fs::create_dir_all(machine.root().join(folder)).unwrap();
            }
            // What the operator has downloaded.
            fs::copy(module(), machine.root().join("root/libtokenbucket.so")).unwrap();
            let folder = machine.root().join("var/lib/redis");
            machine.configure(&format!("port {}\nbind 127.0.0.1\ndir {}", machine.port(), folder.display()));
            if *name != "sentinel" {
                machine.configure("save 3600 1\nsave 300 100\nsave 60 10000\nrepl-diskless-sync-delay 0");
            }
        }
        machines
    }

    pub fn get(&self, name: &str) -> Machine<'_> {
        let name = self.names.iter().copied().find(|known| *known == name).expect(name);
        Machine { machines: self, name }
    }

    fn hosts(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            if std::thread::panicking() {
                let machine = self.get(name);
                println!("configuration of {name}:\n{}its log:\n{}", machine.configuration(), machine.log());
            }
            let kill = "[ ! -e pid ] || kill -9 \"$(cat pid)\"";
            let _ = Command::new("bash").args(["-c", kill]).current_dir(self.get(name).root()).output();
        }
    }
}

impl Machine<'_> {
    pub fn root(&self) -> PathBuf {
        self.machines.folder.path().join(self.name)
    }

    pub fn port(&self) -> u16 {
        fs::read_to_string(self.machines.hosts().join(self.name)).unwrap().parse().unwrap()
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.root().join("log")).unwrap_or_default()).into_owned()
    }

    pub fn configuration(&self) -> String {
        fs::read_to_string(self.root().join("etc/redis/redis.conf")).unwrap()
    }

    /// Returns how many snapshots and append-only files it has.
    pub fn data_files(&self) -> usize {
        let names =
            fs::read_dir(self.root().join("var/lib/redis")).unwrap().map(|file| file.unwrap().file_name());
        names
            .filter(|name| ["dump", "appendonly"].iter().any(|kind| name.to_string_lossy().starts_with(kind)))
            .count()
    }

    /// Sends a signal to its server.
    pub fn signal(&self, signal: &str) {
        self.run(&format!("kill -{signal} \"$(cat \"$ROOT/pid\")\""));
    }

    /// Adds lines to the configuration.
    pub fn configure(&self, lines: &str) {
        let file = self.root().join("etc/redis/redis.conf");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(file, format!("{before}{lines}\n")).unwrap();
    }

    pub fn connect(&self) -> Connection {
        Connection::try_open(self.port())
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", self.name, self.log()))
    }

    /// Pastes a block of a page, as its root would, into Debian's `sh`; returns what it prints. A command that fails does not
    /// keep the others from running. Panics if the block does not end.
    pub fn follow(&self, page: &str, procedure: &str) -> String {
        let script = block(page, procedure);
        let output = self.output(&["dash", "-c"], &script, "");
        assert_ne!(output.status.code(), Some(124), "on {}, this does not end:\n{script}", self.name);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs commands; panics if they fail.
    pub fn run(&self, script: &str) -> String {
        self.run_with(script, "")
    }

    /// Runs commands; a server that they start has these options.
    pub fn run_with(&self, script: &str, options: &str) -> String {
        let output = self.output(&["bash", "-euo", "pipefail", "-c"], script, options);
        let [said, complained] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "on {}:\n{script}\n{said}{complained}{}", self.name, self.log());
        said
    }

    fn output(&self, shell: &[&str], script: &str, options: &str) -> Output {
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/procedures");
        let path = format!("{}:{}", stand_ins.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("timeout");
        command.arg((4 * timeout()).as_secs().to_string()).args(shell).arg(self.in_this_test(script));
        command.current_dir(self.root().join("root"));
        command.env("PATH", path).env("ROOT", self.root()).env("HOST", self.name).env("OPTIONS", options);
        command.env("HOSTS", self.machines.hosts()).env("SERVER", executable()).env("REDIS_CLI", redis_cli());
        command.output().unwrap()
    }

    /// Replaces paths and addresses by those that this machine has in its place.
    fn in_this_test(&self, script: &str) -> String {
        let paths = Regex::new(r"/(etc|var/lib|usr/lib)/redis\b").unwrap();
        let script = paths
            .replace_all(script, |path: &regex::Captures| format!("{}{}", self.root().display(), &path[0]));
        let addresses = self.machines.names.iter().map(|name| (name, self.machines.get(name).port()));
        addresses.fold(script.into_owned(), |script, (name, port)| {
            script.replace(&format!("{name} 6379"), &format!("127.0.0.1 {port}"))
        })
    }
}

/// Reads a page.
pub fn page(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Cuts the block of this name from a page.
pub fn block(path: &str, procedure: &str) -> String {
    let text = page(path);
    let mark = format!("<!-- procedure: {procedure} -->\n");
    let (before, behind) = text.split_once(&mark).unwrap_or_else(|| panic!("{path} has no '{procedure}'"));
    let indent = before.rsplit('\n').next().unwrap();
    let mut lines = behind.lines().map(|line| line.strip_prefix(indent).unwrap_or(line));
    assert_eq!(lines.next(), Some("```sh"), "{path}: {procedure}");
    lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}
