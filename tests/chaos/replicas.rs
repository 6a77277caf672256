//! A replica that comes and goes, and a replica of it.

use super::world::{Now, World};
use crate::common::stored::{assert_same_buckets, begin_to_follow, buckets, wait_until_replicated};
use crate::common::{wait_until, Random, Server, ServerBuilder};

/// The chain of replicas behind a server: none, a replica, or that and a replica of it.
#[derive(Default)]
pub struct Replicas(Vec<Server>);

/// A server that keeps its pace although its clock leaps by minutes.
pub fn leaping() -> ServerBuilder {
    Server::builder().option("repl-timeout", 3_600_000).option("repl-diskless-sync-delay", 0)
}

fn replica_of(origin: &Server, clock: &Server, random: &mut Random) -> Server {
    let replica = leaping()
        .clock_of(clock)
        .option("repl-diskless-load", random.pick(&["disabled", "swapdb"]))
        .option("appendonly", random.pick(&["yes", "no"]))
        .start();
    begin_to_follow(&replica, origin);
    replica
}

impl Replicas {
    pub fn running(&self) -> &[Server] {
        &self.0
    }

    /// A replica comes, goes, is cut off for a moment, or forgets whom it follows and has to start anew.
    pub fn change(&mut self, master: &Server, random: &mut Random, world: &World) {
        let Some(replica) = self.0.first() else {
            world.remember("a replica comes");
            return self.0.push(replica_of(master, master, random));
        };
        match random.below(4) {
            0 => {
                world.remember("a replica is cut off");
                master.connect().run(&["CLIENT", "KILL", "TYPE", "replica"]);
            }
            1 => {
                world.remember("a replica becomes a master and a replica again");
                replica.connect().run(&["REPLICAOF", "NO", "ONE"]);
                begin_to_follow(replica, master);
            }
            _ => {
                world.remember("the replicas are killed");
                self.end();
            }
        }
    }

    /// A replica of the replica comes or goes.
    pub fn change_sub_replica(&mut self, master: &Server, random: &mut Random, world: &World) {
        match self.0.as_slice() {
            [replica] => {
                world.remember("a replica of the replica comes");
                self.0.push(replica_of(replica, master, random));
            }
            _ => self.0.truncate(1),
        }
    }

    /// Waits until all are linked, while the load goes on and time passes.
    pub fn wait_until_linked(&self, mut tick: impl FnMut()) {
        for server in self.running() {
            let mut client = server.connect();
            wait_until("a replica is linked", || {
                tick();
                client.info("replication", "master_link_status") == "up"
            });
        }
    }

    /// Compares every bucket of every replica, while nobody writes. Returns how many replicas there were.
    pub fn compare(&self, master: &Server, now: &mut Now) -> usize {
        for server in self.running() {
            wait_until_replicated(server, master);
            // The wait may have moved the clock.
            now.us = master.clock().now_us();
        }
        let expected = buckets(&mut master.connect());
        for server in self.running() {
            assert_same_buckets(&buckets(&mut server.connect()), &expected, "on a replica");
        }
        self.0.len()
    }

    /// Ends them all.
    pub fn end(&mut self) {
        self.0.clear();
    }
}
