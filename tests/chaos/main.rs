//! Everything at once: clients that make calls of all kinds, and a server that is killed, restarted, copied, saved,
//! squeezed, flushed and reconfigured meanwhile.
//!
//! Each client has buckets of its own, so that its calls on one bucket follow each other and every reply can be
//! judged by the exact model. The clock of the servers is the test's; it leaps while no call is in flight. A
//! call that a power cut interrupts may have been done or not: what is stored afterwards must be one of the two.
//!
//! `CHAOS_SECONDS` says how long, `CHAOS_SEED` repeats the same plans (though not the same interleaving).

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

mod client;
mod faults;
mod possible_states;
mod step;
mod waiters;
mod world;

use client::Client;
use common::{environment, Random};
use faults::Faults;
use possible_states::PossibleStates;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use waiters::Waiter;
use world::World;

const CLIENTS: u64 = 8;

/// Those that share pools.
const WAITERS: u64 = 6;

/// The part of the time, one in so many, in which nothing is killed and memory is watched.
const CALM_PART: u32 = 5;

/// What an empty server may use more than a while ago, in bytes.
const MEMORY_SLACK: i64 = 32 * 1024;

#[test]
fn whatever_happens_no_acknowledged_take_is_forgotten_and_no_token_granted_twice() {
    // Another one at every run, unless one is asked for.
    let of_the_moment = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = environment("CHAOS_SEED", of_the_moment.into());
    let duration = Duration::from_secs(environment("CHAOS_SECONDS", 30));
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={}", duration.as_secs());
    // All streams of numbers begin with it.
    std::env::set_var("SEED", seed.to_string());
    let master = faults::master();
    let world = World::new(master.port(), master.clock().now_us());
    let mut random = Random::new(CLIENTS);
    let states: Vec<Mutex<PossibleStates>> = (0..CLIENTS)
        .map(|client| Mutex::new(PossibleStates::new(step::new_buckets(&mut random, client))))
        .collect();
    thread::scope(|scope| {
        for (states, number) in states.iter().zip(0..) {
            let world = &world;
            scope.spawn(move || Client::new(world, states, number).work());
        }
        for number in 0..WAITERS {
            let world = &world;
            scope.spawn(move || Waiter::new(world, number).work());
        }
        // Lets everything happen, and then nothing that ends a process, so that its memory can be watched.
        let mut faults = Faults::new(&world, &states, master);
        let calm = duration / CALM_PART;
        faults.go_on(duration - calm, |_| true);
        let (before, after) = faults.calm(calm);
        println!("an empty server used {before} bytes, and {after} bytes later");
        assert!(after - before < MEMORY_SLACK, "the server grew from {before} to {after} bytes");
        faults.assert_well();
        world.is_over.store(true, Ordering::SeqCst);
    });
    println!("{}\n{}", world.progress(), world.summary());
}
