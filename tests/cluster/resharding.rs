//! Spreading, redirecting, resharding under load, and the loss of a master.

use crate::common::calls::{Outcome, CALLS};
use crate::common::{tell, text, texts, wait_until, Server};
use crate::nodes::{node_id, ownership, reshard, Cluster, ClusterClient, CAPACITY, MASTERS, RAISED, REFILL};
use crc::{Crc, CRC_16_XMODEM};
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::thread;

#[test]
fn a_bucket_is_on_one_node_and_those_decided_together_must_share_a_slot() {
    let cluster = Cluster::start(0);
    let mut client = cluster.client();
    for call in
        CALLS.iter().filter(|call| call.command().audience.are_clients() && call.outcome != Outcome::Refused)
    {
        let words = call.with_keys(|key| format!("{{t}}{key}"));
        let replies = cluster.nodes.iter().map(|node| node.connect().attempt(&words));
        let refusals: Vec<_> = replies.filter_map(Result::err).collect();
        let are_redirected = refusals.iter().all(|refusal| refusal.starts_with("MOVED "));
        assert!(are_redirected && refusals.len() == MASTERS - 1, "{words}: {refusals:?}");
        if let [.., _, last] = call.keys()[..] {
            let words =
                call.with_keys(|key| if key == last { "other".to_owned() } else { format!("{{t}}{key}") });
            assert!(client.attempt(&words).unwrap_err().starts_with("CROSSSLOT"), "{words}");
        }
    }
}

#[test]
fn no_bucket_is_lost_or_refilled_while_slots_migrate_one_key_at_a_time_or_atomically() {
    assert_kept_while(|from, to| reshard(from, to, LOADED_SLOTS));
    assert_kept_while(migrate_atomically);
}

#[test]
fn the_loss_of_a_master_stops_every_slot_unless_full_coverage_is_switched_off() {
    for (setting, expected) in [("yes", "CLUSTERDOWN "), ("no", "[1 ")] {
        let mut cluster = Cluster::start(0);
        for node in &cluster.nodes {
            node.connect().say(&format!("CONFIG SET cluster-require-full-coverage {setting}"));
        }
        let take = |node: &Server, key: &str| node.connect().attempt(&format!("TB.TAKE {key} {CAPACITY} 1"));
        let mut keys = (0..).map(|n| format!("user:{n}"));
        let key = keys.find(|key| take(&cluster.nodes[1], key).is_ok()).unwrap();
        cluster.nodes[0].kill();
        let (lost, survivor) = (format!(":{}@", cluster.nodes[0].port()), &cluster.nodes[1]);
        wait_until("the survivor knows that a master failed", || {
            let nodes = text(&survivor.connect().say("CLUSTER NODES"));
            nodes.lines().any(|line| line.contains(&lost) && line.contains("master,fail "))
        });
        let told = tell(take(survivor, &key));
        assert!(told.starts_with(expected), "{setting}: {told}");
    }
}

#[test]
fn after_the_loss_of_a_master_a_bucket_holds_what_was_last_replicated() {
    let mut cluster = Cluster::start(1);
    let keys: Vec<String> = (0..60).map(|n| format!("user:{n}")).collect();
    let mut client = cluster.client();
    let (raised, _) = keys.split_at(keys.len() / 2);
    raised.iter().for_each(|key| client.raise(key));
    let mut taken: HashMap<&str, i64> = HashMap::new();
    let mut take = |client: &mut ClusterClient, times| {
        for key in keys.iter().cycle().take(times) {
            assert!(client.take(key));
            *taken.entry(key).or_default() += 1;
        }
        taken.clone()
    };
    let replicated = take(&mut client, 600);
    // It is for the writes of its own connections, one to each master, of which the worst is told.
    assert_eq!(client.attempt("WAIT 1 20000"), Ok(Value::Int(1)), "the replicas have not followed");
    // What is taken from here to the crash may or may not have been.
    let taken = take(&mut client, 300);
    cluster.nodes[0].kill();
    let is_master = |node: &Server| node.connect().info("replication", "role") == "master";
    wait_until("a replica is promoted", || cluster.nodes[MASTERS..].iter().any(is_master));
    cluster.wait_until_agreed();
    let mut client = cluster.client();
    for key in &keys {
        let level = client.level(key);
        let capacity = if raised.contains(key) { RAISED } else { CAPACITY };
        let [at_least, at_most] = [&taken, &replicated].map(|taken| (capacity - taken[key.as_str()]) as f64);
        let is_right = (at_least..=at_most + REFILL).contains(&level);
        assert!(is_right, "{key} holds {level}, not {at_least} to {at_most}");
        assert!(client.take(key), "the promoted replica goes on deciding");
    }
}

/// How many of the lowest slots have buckets that clients take from.
const LOADED_SLOTS: u16 = 5;

const CLIENTS: usize = 4;

/// Buckets of one client, in each of the loaded slots.
fn keys(client: usize) -> Vec<String> {
    const SLOTS: u16 = 16_384;
    let slot_of = |tag: &String| Crc::<u16>::new(&CRC_16_XMODEM).checksum(tag.as_bytes()) % SLOTS;
    let tag_in = |slot| (0..).map(|n| format!("t{n}")).find(|tag| slot_of(tag) == slot).unwrap();
    let tags: Vec<String> = (0..LOADED_SLOTS).map(tag_in).collect();
    (0..100).map(|n| format!("{{{}}}:{client}:{n}", tags[n % tags.len()])).collect()
}

/// Takes of each key.
type Taken = Mutex<HashMap<String, i64>>;

/// Lets clients take, each from buckets of its own, while the slots of all are moved from the first node to the second and
/// back, until there was enough load; then compares every bucket with what was taken from it.
fn assert_kept_while(migrate: impl Fn(&Server, &Server)) {
    const TAKES_WANTED: i64 = 5000;
    let cluster = Cluster::start(0);
    let (stop, taken) = (AtomicBool::new(false), [(); CLIENTS].map(|()| Taken::default()));
    let takes = || taken.each_ref().map(|taken| taken.lock().unwrap().values().sum::<i64>());
    thread::scope(|scope| {
        for (number, taken) in taken.iter().enumerate() {
            let (mut client, stop) = (cluster.client(), &stop);
            // An override goes with its bucket.
            let raised = if number == 0 { keys(number) } else { Vec::new() };
            raised.iter().for_each(|key| client.raise(key));
            scope.spawn(move || take_until_stopped(&mut client, &keys(number), stop, taken));
        }
        let enough = [(0, 1), (1, 0)].into_iter().cycle().take(100).any(|(from, to)| {
            migrate(&cluster.nodes[from], &cluster.nodes[to]);
            cluster.wait_until_agreed();
            // A client that was told `ASK` and dawdles until its slot comes the same way again makes a second bucket, as it
            // would make a second value of any type: the cluster protocol assumes that this takes longer than a call.
            let before = takes();
            wait_until("every client has begun and ended a take", || {
                before.iter().zip(takes()).all(|(before, now)| before + 2 <= now)
            });
            before.iter().sum::<i64>() >= TAKES_WANTED
        });
        stop.store(true, Ordering::SeqCst);
        assert!(enough, "there was no load while slots migrated");
    });
    let mut client = cluster.client();
    let raised = keys(0);
    for (key, taken) in taken.into_iter().flat_map(|taken| taken.into_inner().unwrap()) {
        let capacity = if raised.contains(&key) { RAISED } else { CAPACITY };
        let (level, expected) = (client.level(&key), (capacity - taken) as f64);
        let is_right = (expected..=expected + REFILL).contains(&level);
        assert!(is_right, "{key} holds {level} after {taken} takes, not {expected}");
    }
}

fn take_until_stopped(client: &mut ClusterClient, keys: &[String], stop: &AtomicBool, taken: &Taken) {
    for key in keys.iter().cycle().take_while(|_| !stop.load(Ordering::SeqCst)) {
        let before = taken.lock().unwrap().get(key).copied().unwrap_or(0);
        // A bucket is never emptied: a denial would hide what was taken from it.
        if before == CAPACITY {
            break;
        }
        assert!(client.take(key), "{key} was denied after {before} of {CAPACITY}");
        taken.lock().unwrap().insert(key.clone(), before + 1);
    }
}

/// Moves the slots of the load as a whole: a snapshot, then the changes since, then the handover. Older servers know no
/// such command.
pub fn migrate_atomically(from: &Server, to: &Server) {
    let (mut source, mut target) = (from.connect(), to.connect());
    let help = texts(source.say("CLUSTER HELP"));
    let offers = |word: &str| help.iter().any(|line| line.starts_with(word));
    let last = LOADED_SLOTS - 1;
    if offers("MIGRATESLOTS") {
        // Valkey 9: the source pushes.
        source.say(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 {last} NODE {}", node_id(to)));
    } else if offers("MIGRATION") {
        // Redis 8.4: the target pulls.
        target.say(&format!("CLUSTER MIGRATION IMPORT 0 {last}"));
    } else {
        let refusals = ["CLUSTER MIGRATESLOTS", "CLUSTER MIGRATION"].map(|words| source.refusal(words));
        return assert!(refusals.iter().all(|refusal| refusal.to_lowercase().contains("unknown subcommand")));
    }
    // What a node believes that it serves itself.
    let serves_them = |node: &Server| {
        let id = node_id(node);
        ownership(node).iter().any(|[owner, _, slots]| *owner == id && slots.starts_with("0-"))
    };
    wait_until("the slots have moved", || serves_them(to) && !serves_them(from));
}
