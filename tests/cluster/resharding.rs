//! Spreading, redirecting, resharding under load, and the loss of a master.

use crate::common::stored::buckets_alive;
use crate::common::{decision, multi_decision, text, texts, wait_until, Connection, Server};
use crate::nodes::{reshard, Cluster, ClusterClient, MASTERS};
use crc::{Crc, CRC_16_XMODEM};
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
    let cluster = Cluster::start(0);
    let mut client = cluster.client();
    for user in 0..300 {
        assert!(client.take(&format!("user:{user}")), "a first take is allowed");
    }
    let alive: Vec<i64> = cluster.nodes.iter().map(|node| buckets_alive(&mut node.connect())).collect();
    assert!(alive.iter().all(|buckets| *buckets > 50), "spread unevenly: {alive:?}");
    assert_eq!(alive.iter().sum::<i64>(), 300);

    let mut first = cluster.nodes[0].connect();
    let elsewhere = (0..).map(|n| format!("k{n}")).find(|key| slot_of(key) > SLOTS / 2).unwrap();
    assert!(first.refusal(&format!("TB.TAKE {elsewhere} 10 1")).starts_with("MOVED "));
    assert!(first.refusal(&format!("TB.PEEK {elsewhere} 10 1")).starts_with("MOVED "));
}

#[test]
fn buckets_decided_together_must_share_a_slot() {
    let cluster = Cluster::start(0);
    let mut client = cluster.client();
    // The last of many, too: the server must know every key, not only the first few.
    let many: String = (0..7).map(|index| format!(" {{tag}}{index} 10 1 1")).collect();
    for call in ["TB.MTAKE 2 a 10 1 1 b 10 1 1".to_owned(), format!("TB.MTAKE 8{many} other 10 1 1")] {
        assert!(client.attempt(&call).unwrap_err().starts_with("CROSSSLOT"), "{call}");
    }
    let together = client.attempt("TB.MTAKE 2 {t}:requests 10 1 1 {t}:tokens 1000 100 30").unwrap();
    let (binding, own) = multi_decision(&together);
    assert_eq!((binding.allowed, own.len()), (1, 2));
}

#[test]
fn no_bucket_is_lost_or_refilled_while_slots_migrate_one_key_at_a_time() {
    let cluster = Cluster::start(0);
    let load = Load::start(&cluster, 4);
    load.migrate_to_and_fro(&cluster, |from, to| reshard(from, to, LOADED_SLOTS));
    load.stop_and_check(&cluster);
}

#[test]
fn no_bucket_is_lost_or_refilled_while_slots_migrate_atomically() {
    let cluster = Cluster::start(0);
    let supported = AtomicMigration::of(&mut cluster.nodes[0].connect());
    let load = Load::start(&cluster, 4);
    load.migrate_to_and_fro(&cluster, |from, to| match supported {
        Some(kind) => kind.migrate(from, to),
        None => assert!(server_refuses_atomic_migration(from), "older servers know no such command"),
    });
    load.stop_and_check(&cluster);
}

#[test]
fn after_the_loss_of_a_master_a_bucket_holds_what_was_last_replicated() {
    let mut cluster = Cluster::start(1);
    let keys: Vec<String> = (0..60).map(|n| format!("user:{n}")).collect();
    let mut client = cluster.client();
    let mut taken: HashMap<&str, i64> = HashMap::new();
    for key in keys.iter().cycle().take(600) {
        assert!(client.take(key));
        *taken.entry(key).or_default() += 1;
    }
    // It is for the writes of its own connections, one to each master, of which the worst is told.
    assert_eq!(client.attempt("WAIT 1 20000"), Ok(Value::Int(1)), "the replicas have not followed");
    let replicated = taken.clone();
    // What is taken from here to the crash may or may not have been.
    for key in keys.iter().cycle().take(300) {
        assert!(client.take(key));
        *taken.entry(key).or_default() += 1;
    }
    cluster.nodes[0].kill();
    let is_master = |node: &Server| node.connect().info("replication", "role") == "master";
    wait_until("a replica is promoted", || cluster.nodes[MASTERS..].iter().any(is_master));
    cluster.wait_until_agreed();
    let mut client = cluster.client();
    for key in &keys {
        let level = client.level(key);
        let at_most = (CAPACITY - replicated[key.as_str()]) as f64 + REFILL;
        let at_least = (CAPACITY - taken[key.as_str()]) as f64;
        assert!((at_least..=at_most).contains(&level), "{key} holds {level}, not {at_least} to {at_most}");
        assert!(client.take(key), "the promoted replica goes on deciding");
    }
}

impl ClusterClient {
    /// Takes one token; whether it was allowed.
    fn take(&mut self, key: &str) -> bool {
        let reply = self.attempt(&format!("TB.TAKE {key} {CAPACITY} {RATE}")).unwrap();
        decision(&reply).allowed == 1
    }

    /// The level that is stored, in tokens.
    fn level(&mut self, key: &str) -> f64 {
        match self.attempt(&format!("TB.STATE {key}")).unwrap() {
            Value::Nil => CAPACITY as f64,
            Value::Array(fields) => text(&fields[0]).parse().unwrap(),
            other => panic!("no state: {other:?}"),
        }
    }
}

/// Slots in any cluster.
const SLOTS: u16 = 16_384;

/// How many of the lowest slots have buckets that clients take from.
const LOADED_SLOTS: u16 = 5;

fn slot_of(tag: &str) -> u16 {
    Crc::<u16>::new(&CRC_16_XMODEM).checksum(tag.as_bytes()) % SLOTS
}

/// A name for each of the slots, for between the braces of keys.
fn tags() -> Vec<String> {
    let tag_in = |slot| (0..).map(|n| format!("t{n}")).find(|tag| slot_of(tag) == slot).unwrap();
    (0..LOADED_SLOTS).map(tag_in).collect()
}

/// Clients that take from many buckets in a few slots, each from its own, until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    /// Takes of each client.
    taken: Vec<Arc<AtomicI64>>,
    clients: Vec<std::thread::JoinHandle<HashMap<String, i64>>>,
}

impl Load {
    fn start(cluster: &Cluster, clients: usize) -> Self {
        let tags = tags();
        let stop = Arc::new(AtomicBool::new(false));
        let taken: Vec<Arc<AtomicI64>> = (0..clients).map(|_| Arc::default()).collect();
        let start_client = |(index, taken): (usize, &Arc<AtomicI64>)| {
            let keys: Vec<String> =
                (0..100).map(|n| format!("{{{}}}:{index}:{n}", tags[n % tags.len()])).collect();
            let mut client = cluster.client();
            let (stop, taken) = (Arc::clone(&stop), Arc::clone(taken));
            std::thread::spawn(move || take_until_stopped(&mut client, &keys, &stop, &taken))
        };
        let clients = taken.iter().enumerate().map(start_client).collect();
        Self { stop, taken, clients }
    }

    /// Moves all slots of the load from the first node to the second and back, until there was enough load.
    fn migrate_to_and_fro(&self, cluster: &Cluster, migrate: impl Fn(&Server, &Server)) {
        const TAKES_WANTED: i64 = 5000;
        for there in [true, false].into_iter().cycle().take(100) {
            let (from, to) = if there { (0, 1) } else { (1, 0) };
            migrate(&cluster.nodes[from], &cluster.nodes[to]);
            cluster.wait_until_agreed();
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
        assert!(client.take(key), "{key} was denied after {taken} of {CAPACITY}");
        *taken += 1;
        total.fetch_add(1, Ordering::SeqCst);
    }
    taken_by_key
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

    fn migrate(self, from: &Server, to: &Server) {
        let (mut source, mut target) = (from.connect(), to.connect());
        let (target_id, last) = (target.node_id(), LOADED_SLOTS - 1);
        match self {
            Self::Push => source.say(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 {last} NODE {target_id}")),
            Self::Pull => target.say(&format!("CLUSTER MIGRATION IMPORT 0 {last}")),
        };
        wait_until("the slots have moved", || serves_them(&mut target) && !serves_them(&mut source));
    }
}

/// Whether a server knows neither of the two commands.
fn server_refuses_atomic_migration(node: &Server) -> bool {
    ["MIGRATESLOTS", "MIGRATION"].iter().all(|word| {
        let refusal = node.connect().try_run(&["CLUSTER", word]).unwrap_err();
        refusal.to_ascii_lowercase().contains("unknown subcommand")
    })
}

/// Whether a node believes that it serves the slots of the load.
fn serves_them(connection: &mut Connection) -> bool {
    let nodes = connection.cluster_nodes();
    let myself = nodes.iter().find(|line| line.contains("myself")).unwrap();
    myself.split(' ').skip(8).any(|range| range.starts_with("0-"))
}
