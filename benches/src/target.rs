//! A server under load, whatever it is.

use crate::common::Server;
use std::fs;

/// A server under load.
#[derive(Clone, Copy)]
pub struct Target {
    pub port: u16,
    pub process_id: u32,
}

impl From<&Server> for Target {
    fn from(server: &Server) -> Self {
        Self { port: server.port(), process_id: server.process_id() }
    }
}

impl Target {
    /// Processor time that its threads have used so far, user and system, in seconds.
    pub fn cpu_s(self) -> f64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process_id)).expect("the process runs");
        let statistics =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok());
        let ns = statistics.map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap());
        ns.sum::<u64>() as f64 / 1e9
    }
}
