//! Clients that share pools of slots, and wait their turn for one in the server.
//!
//! Whom a slot is granted to while nobody looks is the server's affair. But a pool never has more or fewer slots than there
//! are, each wait ends, and a slot that was granted and replied is held until its time is over or it is settled.

use super::possible_states::is_error;
use super::world::{Memory, World};
use crate::common::reply::integers;
use crate::common::server::reply_or_error;
use crate::common::stored::{on_the_wire, Buckets};
use crate::common::{decision, integer, Connection, Random, HOUR_MS};
use redis::Value;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SLOTS: i64 = 2;
const POOLS: u64 = 2;

/// What the keys of pools begin with.
const PREFIX: &str = "{pool}:";

/// Those that are no pools.
pub fn without_pools(buckets: Buckets) -> Buckets {
    buckets.into_iter().filter(|(key, _)| !key.starts_with(PREFIX)).collect()
}

/// Panics unless each pool has as many slots as it should, free or held.
pub fn assert_pools(client: &mut Connection) {
    const LOOK: &str =
        "return {redis.call('TB.PEEK', KEYS[1], ARGV[1], 0, 0)[2], #redis.call('TB.HOLDS', KEYS[1])}";
    for pool in 0..POOLS {
        let pool = format!("{PREFIX}{pool}");
        let slots = integers(&client.run(&["EVAL", LOOK, "1", &pool, &SLOTS.to_string()]));
        assert_eq!(slots.iter().sum::<i64>(), SLOTS, "{pool} has {slots:?} slots free and held");
    }
}

/// A call that waits.
struct Wait {
    pools: Vec<String>,
    id: String,
    ttl_ms: i64,
    /// The share of a call for one pool, if it has one.
    share: String,
    /// Wants a slot of the first pool that has one, and does not wait.
    is_of_one: bool,
    sent_us: i64,
    upheavals: u64,
}

impl Wait {
    fn words(&self, max_wait_ms: i64) -> String {
        let Self { pools, id, ttl_ms, share, is_of_one, .. } = self;
        let groups: String = pools.iter().map(|pool| format!(" {pool} {SLOTS} 0 1")).collect();
        if *is_of_one {
            return format!("TB.HOLDANY {} 1 {ttl_ms} {id}{groups}", pools.len());
        }
        if let [pool] = pools.as_slice() {
            return format!("TB.BHOLD {pool} {SLOTS} 0 1 {ttl_ms} {id} {max_wait_ms}{share}");
        }
        format!("TB.BMHOLD {} {ttl_ms} {id} {max_wait_ms}{groups}", pools.len())
    }
}

pub struct Waiter<'a> {
    name: String,
    world: &'a World,
    random: Random,
    connection: Option<Connection>,
    waits: u64,
}

impl<'a> Waiter<'a> {
    pub fn new(world: &'a World, number: u64) -> Self {
        let (name, random) = (format!("waiter {number}"), Random::new(1000 + number));
        Self { name, world, random, connection: None, waits: 0 }
    }

    /// Waits for slots until things get calm.
    pub fn work(&mut self) {
        let is_over =
            |world: &World| world.is_over.load(Ordering::SeqCst) || world.is_calm.load(Ordering::SeqCst);
        while !is_over(self.world) {
            if self.turn().is_none() {
                self.connection = None;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// One wait, and its slot. `None` if the connection broke.
    fn turn(&mut self) -> Option<()> {
        let mut wait = self.send()?;
        let reply = self.receive()?;
        let is_refused = ["OOM", "LOADING", "UNBLOCKED"].iter().any(|code| is_error(&reply, code));
        if is_refused {
            return Some(());
        }
        let Value::Array(fields) = &reply else { panic!("no decision: {reply:?}") };
        let number = integer(&fields[0]);
        let allowed = number.min(1);
        self.world.count(&format!("{} {allowed}", if wait.is_of_one { "TB.HOLDANY" } else { "TB.BHOLD" }));
        if wait.is_of_one && allowed == 1 {
            wait.pools = vec![wait.pools.swap_remove(number as usize - 1)];
        }
        if allowed == 1 && self.random.once_in(4) {
            std::thread::sleep(Duration::from_millis(self.random.below(50)));
        }
        // Some leave their slots to the end of their time.
        if allowed == 1 && (wait.ttl_ms > HOUR_MS || self.random.once_in(2)) {
            self.settle(&wait)?;
        }
        Some(())
    }

    fn send(&mut self) -> Option<Wait> {
        let now = self.world.now.read().unwrap();
        if self.connection.is_none() {
            self.connection = Connection::try_open(self.world.port).ok();
        }
        let upheavals = self.world.upheavals.load(Ordering::SeqCst);
        let random = &mut self.random;
        self.waits += 1;
        let mut pools: Vec<String> = (0..POOLS).map(|pool| format!("{PREFIX}{pool}")).collect();
        if random.once_in(2) {
            pools = vec![random.pick(&pools).clone()];
        }
        let ttl_ms = if random.once_in(2) { random.between(1, HOUR_MS / 10) } else { 700 * HOUR_MS };
        let max_wait_ms = random.between(0, HOUR_MS);
        let id = format!("{}:{}", self.name.replace(' ', ":"), self.waits);
        let share = if random.once_in(3) { String::new() } else { share(random) };
        let is_of_one = random.once_in(4);
        let wait = Wait { pools, id, ttl_ms, share, is_of_one, sent_us: now.us, upheavals };
        let words = wait.words(max_wait_ms);
        self.world.remember(&self.name, &words);
        let connection = self.connection.as_mut()?.inner();
        connection.send_packed_command(&on_the_wire(&words)).ok()?;
        Some(wait)
    }

    /// The reply, however long it takes. Some go away instead.
    fn receive(&mut self) -> Option<Value> {
        let goes_away = self.random.once_in(6);
        let connection = self.connection.as_mut()?.inner();
        let patience = if goes_away { Duration::from_millis(20) } else { Duration::from_secs(120) };
        connection.set_read_timeout(Some(patience)).unwrap();
        let reply = connection.recv_response();
        self.world.remember(&self.name, &format!("    {reply:?}"));
        match reply {
            Ok(reply) => Some(reply),
            Err(error) => {
                assert!(error.is_io_error(), "no reply: {error}");
                assert!(goes_away || !error.is_timeout(), "a wait does not end: {error}");
                None
            }
        }
    }

    fn settle(&mut self, wait: &Wait) -> Option<()> {
        let now = self.world.now.read().unwrap();
        let connection = self.connection.as_mut()?;
        for pool in &wait.pools {
            let words = format!("TB.SETTLE {pool} {SLOTS} 0 {} 0", wait.id);
            connection.inner().send_packed_command(&on_the_wire(&words)).ok()?;
            let reply = connection.inner().recv_response().ok();
            self.world.remember(&self.name, &format!("{words} {reply:?}"));
            let reply = reply_or_error(Ok(reply?)).ok()?;
            let is_there = decision(&reply).allowed == 1;
            let has_changed = wait.upheavals != self.world.upheavals.load(Ordering::SeqCst);
            let may_be_gone =
                has_changed || now.memory != Memory::Free || now.us - wait.sent_us >= wait.ttl_ms * 1000;
            assert!(is_there || may_be_gone, "{} was granted and is gone", wait.id);
        }
        Some(())
    }
}

/// One of three tenants, and a weight.
fn share(random: &mut Random) -> String {
    let weight = random.pick(&["", " WEIGHT 3", " WEIGHT 0.001", " WEIGHT 1000"]);
    format!(" SHARE tenant:{}{weight}", random.below(3))
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.world.leave(&self.name);
    }
}
