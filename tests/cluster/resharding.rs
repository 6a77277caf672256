//! Spreading, redirecting, resharding under load, and the loss of a master.

use crate::common::stored::buckets_alive;
use crate::common::{decision, multi_decision, text, texts, wait_until, Connection, Server};
use crate::nodes::{Cluster, ClusterClient, SLOTS};
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::Arc;

const CAPACITY: i64 = 1000;
/// So slow that a test sees what was taken, and next to nothing of what flowed in: 0.02 tokens an hour.
const RATE: &str = "1000/36500d";
/// More than can flow in while a test runs, in tokens.
const REFILL: f64 = 0.01;

#[test]
fn keys_spread_over_the_nodes_and_a_wrong_node_redirects() {
    let cluster = Cluster::start(3, 0);
    let mut client = cluster.client();
    for user in 0..300 {
        assert!(client.take(&format!("user:{user}")).unwrap(), "a first take is allowed");
    }
    let mut total = 0;
    for node in &cluster.nodes {
        let buckets = buckets_alive(&mut node.connect());
        assert!(buckets > 50, "the keys are spread evenly, but one node has {buckets}");
        total += buckets;
    }
    assert_eq!(total, 300);

    let mut first = cluster.nodes[0].connect();
    let elsewhere = (0..).map(|n| format!("k{n}")).find(|key| first.slot_of(key) > SLOTS / 2).unwrap();
    assert!(first.refusal(&format!("TB.TAKE {elsewhere} 10 1")).starts_with("MOVED "));
    assert!(first.refusal(&format!("TB.PEEK {elsewhere} 10 1")).starts_with("MOVED "));
}

#[test]
fn buckets_decided_together_must_share_a_slot() {
    let cluster = Cluster::start(3, 0);
    let mut client = cluster.client();
    let refused = client.try_run("a", &["TB.MTAKE", "2", "a", "10", "1", "1", "b", "10", "1", "1"]);
    assert!(refused.unwrap_err().starts_with("CROSSSLOT"));
    // The last of many, too: the server must know every key, not only the first few.
    let mut command = vec!["TB.MTAKE".to_owned(), "8".to_owned()];
    for index in 0..8 {
        let key = if index == 7 { "other".to_owned() } else { format!("{{tag}}{index}") };
        command.extend([key, "10".to_owned(), "1".to_owned(), "1".to_owned()]);
    }
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    assert!(client.try_run("{tag}0", &command).unwrap_err().starts_with("CROSSSLOT"));

    let together = ["TB.MTAKE", "2", "{t}:requests", "10", "1", "1", "{t}:tokens", "1000", "100", "30"];
    let (binding, own) = multi_decision(&client.try_run("{t}:requests", &together).unwrap());
    assert_eq!(binding.allowed, 1);
    assert_eq!(own.len(), 2);
}

#[test]
fn no_bucket_is_lost_or_refilled_while_slots_migrate_one_key_at_a_time() {
    let cluster = Cluster::start(2, 0);
    let load = Load::start(&cluster, 4);
    load.migrate_to_and_fro(&cluster, migrate_slot);
    load.stop_and_check(&cluster);
}

#[test]
fn no_bucket_is_lost_or_refilled_while_slots_migrate_atomically() {
    let cluster = Cluster::start(2, 0);
    let supported = AtomicMigration::of(&mut cluster.nodes[0].connect());
    let load = Load::start(&cluster, 4);
    load.migrate_to_and_fro(&cluster, |from, to, slot| match supported {
        Some(kind) => kind.migrate(from, to, slot),
        None => assert!(server_refuses_atomic_migration(from), "older servers know no such command"),
    });
    load.stop_and_check(&cluster);
}

#[test]
fn after_the_loss_of_a_master_a_bucket_holds_what_was_last_replicated() {
    let mut cluster = Cluster::start(3, 1);
    let keys: Vec<String> = (0..60).map(|n| format!("user:{n}")).collect();
    let mut client = cluster.client();
    let mut taken: HashMap<&str, i64> = HashMap::new();
    for key in keys.iter().cycle().take(600) {
        assert!(client.take(key).unwrap());
        *taken.entry(key).or_default() += 1;
    }
    client.wait_for_replicas();
    let replicated = taken.clone();
    // What is taken from here to the crash may or may not have been.
    for key in keys.iter().cycle().take(300) {
        assert!(client.take(key).unwrap());
        *taken.entry(key).or_default() += 1;
    }
    cluster.nodes[0].kill();
    let survivor = &cluster.nodes[3];
    let mut connection = survivor.connect();
    wait_until("the replica is promoted", || connection.info("replication", "role") == "master");
    cluster.wait_until_agreed();
    client.start_from(&cluster.nodes[1]);
    for key in &keys {
        let level = client.level(key);
        let at_most = (CAPACITY - replicated[key.as_str()]) as f64 + REFILL;
        let at_least = (CAPACITY - taken[key.as_str()]) as f64;
        assert!((at_least..=at_most).contains(&level), "{key} holds {level}, not {at_least} to {at_most}");
        assert!(client.take(key).unwrap(), "the promoted replica goes on deciding");
    }
}

impl ClusterClient {
    /// Takes one token; whether it was allowed, or an error.
    fn take(&mut self, key: &str) -> Result<bool, String> {
        let capacity = CAPACITY.to_string();
        let reply = self.try_run(key, &["TB.TAKE", key, &capacity, RATE])?;
        Ok(decision(&reply).allowed == 1)
    }

    /// The level that is stored, in tokens.
    fn level(&mut self, key: &str) -> f64 {
        match self.try_run(key, &["TB.STATE", key]).unwrap() {
            Value::Nil => CAPACITY as f64,
            Value::Array(fields) => text(&fields[0]).parse().unwrap(),
            other => panic!("no state: {other:?}"),
        }
    }
}

/// Clients that take from many buckets in a few slots, each from its own, until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    /// Takes of each client.
    taken: Vec<Arc<AtomicI64>>,
    clients: Vec<std::thread::JoinHandle<HashMap<String, i64>>>,
    slots: Vec<u16>,
}

impl Load {
    fn start(cluster: &Cluster, clients: usize) -> Self {
        // Tags whose slots the first node serves.
        let mut first = cluster.nodes[0].connect();
        let tags: Vec<String> =
            (0..).map(|n| format!("{{t{n}}}")).filter(|tag| first.slot_of(tag) < SLOTS / 2).take(5).collect();
        let slots = tags.iter().map(|tag| first.slot_of(tag)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let taken: Vec<_> = (0..clients).map(|_| Arc::default()).collect();
        let clients = taken
            .iter()
            .enumerate()
            .map(|(index, taken): (_, &Arc<AtomicI64>)| {
                let keys: Vec<String> =
                    (0..100).map(|n| format!("{}:{index}:{n}", tags[n % tags.len()])).collect();
                let mut client = cluster.client();
                let (stop, taken) = (Arc::clone(&stop), Arc::clone(taken));
                std::thread::spawn(move || take_until_stopped(&mut client, &keys, &stop, &taken))
            })
            .collect();
        Self { stop, taken, clients, slots }
    }

    /// Moves all slots of the load from the first node to the second and back, until there was enough load.
    fn migrate_to_and_fro(&self, cluster: &Cluster, migrate: impl Fn(&Server, &Server, u16)) {
        const TAKES_WANTED: i64 = 5000;
        for there in [true, false].into_iter().cycle().take(100) {
            let (from, to) = if there { (0, 1) } else { (1, 0) };
            for slot in &self.slots {
                migrate(&cluster.nodes[from], &cluster.nodes[to], *slot);
                wait_until("both nodes say the same of the slot", || {
                    ownership(&cluster.nodes[from]) == ownership(&cluster.nodes[to])
                });
            }
            if self.taken().iter().sum::<i64>() >= TAKES_WANTED {
                return;
            }
            self.wait_until_clients_have_noticed();
        }
        panic!("there was no load while slots migrated");
    }

    fn taken(&self) -> Vec<i64> {
        self.taken.iter().map(|taken| taken.load(Ordering::SeqCst)).collect()
    }

    /// A client that was told `ASK` and dawdles until its slot comes the same way again makes a second bucket, as it
    /// would make a second value of any type: the cluster protocol assumes that this takes longer than a call.
    fn wait_until_clients_have_noticed(&self) {
        let before = self.taken();
        wait_until("every client has begun and ended a take", || {
            let has_moved_on = |(index, taken): (usize, &i64)| {
                self.clients[index].is_finished() || before[index] + 2 <= *taken
            };
            self.taken().iter().enumerate().all(has_moved_on)
        });
    }

    /// Ends the load and compares every bucket with what was taken from it.
    fn stop_and_check(self, cluster: &Cluster) {
        self.stop.store(true, Ordering::SeqCst);
        let mut client = cluster.client();
        for thread in self.clients {
            for (key, taken) in thread.join().unwrap() {
                let level = client.level(&key);
                let expected = (CAPACITY - taken) as f64;
                assert!(
                    (expected..=expected + REFILL).contains(&level),
                    "{key} holds {level} after {taken} takes, not {expected}"
                );
            }
        }
    }
}

fn take_until_stopped(
    client: &mut ClusterClient,
    keys: &[String],
    stop: &AtomicBool,
    total: &AtomicI64,
) -> HashMap<String, i64> {
    let mut taken_by_key = HashMap::new();
    for key in keys.iter().cycle() {
        let taken: &mut i64 = taken_by_key.entry(key.clone()).or_default();
        // A bucket is never emptied: a denial would hide what was taken from it.
        if stop.load(Ordering::SeqCst) || *taken == CAPACITY {
            break;
        }
        assert!(client.take(key).unwrap(), "{key} was denied after {taken} of {CAPACITY}");
        *taken += 1;
        total.fetch_add(1, Ordering::SeqCst);
    }
    taken_by_key
}

/// Moves a slot as `redis-cli --cluster reshard` does: key by key, both nodes serving meanwhile.
fn migrate_slot(from: &Server, to: &Server, slot: u16) {
    let (mut source, mut target) = (from.connect(), to.connect());
    let (source_id, target_id) = (source.node_id(), target.node_id());
    let (slot, port) = (slot.to_string(), to.port().to_string());
    target.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
    source.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
    loop {
        let keys = texts(source.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]));
        if keys.is_empty() {
            break;
        }
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        source.run(&command);
    }
    target.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
    source.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
}

/// How a server moves a slot as a whole: a snapshot, then the changes since, then the handover.
#[derive(Clone, Copy)]
enum AtomicMigration {
    /// Valkey 9: the source pushes.
    Push,
    /// Redis 8.4: the target pulls.
    Pull,
}

impl AtomicMigration {
    fn of(connection: &mut Connection) -> Option<Self> {
        let help = texts(connection.run(&["CLUSTER", "HELP"]));
        let offers = |word: &str| help.iter().any(|line| line.starts_with(word));
        if offers("MIGRATESLOTS") {
            Some(Self::Push)
        } else if offers("MIGRATION") {
            Some(Self::Pull)
        } else {
            None
        }
    }

    fn migrate(self, from: &Server, to: &Server, slot: u16) {
        let (mut source, mut target) = (from.connect(), to.connect());
        let target_id = target.node_id();
        let slot = slot.to_string();
        match self {
            Self::Push => {
                source.run(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &target_id])
            }
            Self::Pull => target.run(&["CLUSTER", "MIGRATION", "IMPORT", &slot, &slot]),
        };
        wait_until("the slot has moved", || serves(&mut target, &slot) && !serves(&mut source, &slot));
    }
}

/// Who serves what in which epoch, as one node believes. A slot that goes back before this has spread can be
/// claimed by both nodes in the same epoch.
fn ownership(node: &Server) -> Vec<(String, String, Vec<String>)> {
    let lines = node.connect().cluster_nodes();
    let mut owners: Vec<_> = lines
        .iter()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let slots = fields[8..].iter().filter(|slots| !slots.starts_with('['));
            (fields[0].to_owned(), fields[6].to_owned(), slots.map(ToString::to_string).collect())
        })
        .collect();
    owners.sort();
    owners
}

/// Whether a server knows neither of the two commands.
fn server_refuses_atomic_migration(node: &Server) -> bool {
    ["MIGRATESLOTS", "MIGRATION"].iter().all(|word| {
        let refusal = node.connect().try_run(&["CLUSTER", word]).unwrap_err();
        refusal.to_ascii_lowercase().contains("unknown subcommand")
    })
}

/// Whether a node believes that it serves a slot.
fn serves(connection: &mut Connection, slot: &str) -> bool {
    let slot: u16 = slot.parse().unwrap();
    let nodes = connection.cluster_nodes();
    let myself = nodes.iter().find(|line| line.contains("myself")).unwrap();
    myself.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (first.parse().unwrap()..=last.parse::<u16>().unwrap()).contains(&slot)
    })
}
