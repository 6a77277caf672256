//! A replica that comes and goes, and a replica of it.

use super::world::{Now, World};
use crate::common::stored::{assert_same_buckets, buckets, wait_until_replicated};
use crate::common::{wait_until, Random, Server, ServerBuilder};

/// The chain of replicas behind a server, however long it is at the moment.
#[derive(Default)]
pub struct Replicas {
    replica: Option<Server>,
    sub_replica: Option<Server>,
}

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
    attach(&replica, origin);
    replica
}

fn attach(replica: &Server, origin: &Server) {
    replica.connect().run(&["REPLICAOF", "127.0.0.1", &origin.port().to_string()]);
}

impl Replicas {
    /// Those that run.
    pub fn running(&self) -> impl Iterator<Item = &Server> {
        self.replica.iter().chain(&self.sub_replica)
    }

    /// A replica comes, goes, is cut off for a moment, or forgets whom it follows and has to start anew.
    pub fn change(&mut self, primary: &Server, random: &mut Random, world: &World) {
        let Some(replica) = &self.replica else {
            world.remember("a replica comes");
            self.replica = Some(replica_of(primary, primary, random));
            return;
        };
        match random.below(4) {
            0 => {
                world.remember("a replica is cut off");
                primary.connect().run(&["CLIENT", "KILL", "TYPE", "replica"]);
            }
            1 => {
                world.remember("a replica becomes a master and a replica again");
                replica.connect().run(&["REPLICAOF", "NO", "ONE"]);
                attach(replica, primary);
            }
            _ => {
                world.remember("the replicas are killed");
                *self = Self::default();
            }
        }
    }

    /// A replica of the replica comes or goes.
    pub fn change_sub_replica(&mut self, primary: &Server, random: &mut Random, world: &World) {
        match (&self.replica, self.sub_replica.take()) {
            (Some(replica), None) => {
                world.remember("a replica of the replica comes");
                self.sub_replica = Some(replica_of(replica, primary, random));
            }
            (_, sub_replica) => drop(sub_replica),
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
    pub fn compare(&self, primary: &Server, now: &mut Now) -> usize {
        for server in self.running() {
            wait_until_replicated(server, primary);
            // The wait may have moved the clock.
            now.us = primary.clock().now_us();
        }
        let expected = buckets(&mut primary.connect());
        for server in self.running() {
            assert_same_buckets(&buckets(&mut server.connect()), &expected, "on a replica");
        }
        self.running().count()
    }

    /// Ends them all.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}
