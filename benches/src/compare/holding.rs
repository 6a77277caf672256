//! Holding one of so many places, by clients that may die meanwhile.

use super::*;
use crate::approaches::{most_in_flight, places};

const BUCKETS: u64 = 100;
const CLIENTS: usize = 16;
const HOLDS: u64 = 10_000;
/// What a hold of the module may take up.
const MOST_BYTES: f64 = 150.0;
const DEAD: u64 = 1000;
const RIVALS: usize = 64;
const FEW_PLACES: u64 = 10;
/// How long a place is given for where that is waited for, and where not.
const SHORT_S: u64 = 1;
const LONG_S: u64 = 600;
/// Well after some of them have ended.
const CONTEST: Duration = Duration::from_millis(3 * SHORT_S * 1000 + 500);

pub fn measure(bench: &mut Bench) -> Table {
    // Many and short rounds: what disturbs the machine disturbs all ways alike.
    let rounds = bench.rounds * 3;
    let speeds = speeds(bench, rounds);
    let mut table =
        Table::new("holding", Plot::None, "way | speed | bytes a hold | leaked of 1,000 | in flight of 10");
    for (way, speed) in places(5).iter().zip(speeds) {
        note(format_args!("memory, leaks and over-grant of places: {}", way.name));
        let bytes = bytes_a_hold(way);
        assert!(way.module == Module::None || bytes <= MOST_BYTES, "a hold takes up {bytes:.0} bytes");
        let (leaked, in_flight) = (leaked(bench, way), in_flight(bench, way));
        let figures = [times(speed), format!("{bytes:.1}"), leaked.to_string(), in_flight.to_string()];
        table.row(&[way.name], figures);
    }
    table
}

/// So many places, each for so many seconds: the window of the limit.
fn pool(places: u64, period_s: u64) -> Limit {
    Limit { capacity: places, count: places, period_s }
}

/// How many times as fast as the counter each way is.
fn speeds(bench: &mut Bench, rounds: usize) -> Vec<f64> {
    let duration = Duration::from_millis(bench.pick(500, 100));
    let limit = pool(1000, LONG_S);
    let load = Load { clients: CLIENTS, buckets: BUCKETS, limit, duration: Some(duration) };
    let ways = places(0);
    let speeds = bench.in_turns(rounds, "places", &ways, |bench, way| {
        let outcome = run_load(bench.server(way.module), way, load);
        assert_eq!(outcome.allowed, outcome.decisions, "{} denied or failed", way.name);
        outcome.decisions_a_second()
    });
    let [_, counter, ..] = &speeds[..] else { panic!("the counter is the second") };
    let ratio = |of_way: &Vec<f64>| median(of_way.iter().zip(counter).map(|(own, base)| own / base));
    speeds.iter().map(ratio).collect()
}

fn bytes_a_hold(way: &Approach) -> f64 {
    let server = dedicated_server(way.module);
    let mut control = server.connect();
    block_on(async {
        let mut client = Client::open(server.port(), 0, pool(HOLDS, LONG_S)).await;
        // What the server keeps for the connection is there by then.
        way.decide(&mut client, &key(BUCKETS)).await.unwrap();
        let before = control.used_memory();
        for number in 0..HOLDS {
            assert!(way.keep(&mut client, &key(number % BUCKETS)).await.unwrap(), "no place for {number}");
        }
        wait_for_hash_tables(&server);
        (control.used_memory() - before) as f64 / HOLDS as f64
    })
}

/// Places that nobody holds and nobody is given, after the time for which they were given.
fn leaked(bench: &mut Bench, way: &Approach) -> u64 {
    let limit = pool(2 * DEAD, SHORT_S);
    let port = bench.server(way.module).port();
    block_on(async {
        let mut client = Client::open(port, 0, limit).await;
        for _ in 0..DEAD {
            let is_placed = way.keep(&mut client, &key(0)).await.unwrap();
            assert!(is_placed, "{} has no place for all who die", way.name);
        }
        let last = Instant::now();
        while last.elapsed() <= Duration::from_millis(SHORT_S * 1000 + 1) {
            let is_placed = way.decide(&mut client, &key(0)).await.unwrap();
            assert!(is_placed, "{} has no place for who lives on", way.name);
        }
        let mut free = 0;
        while way.keep(&mut client, &key(0)).await.unwrap() {
            free += 1;
        }
        limit.capacity.saturating_sub(free)
    })
}

/// The most that held a place at once, whatever the server did.
fn in_flight(bench: &mut Bench, way: &Approach) -> u64 {
    let limit = pool(FEW_PLACES, SHORT_S);
    let load = Load { clients: RIVALS, buckets: 1, limit, duration: Some(CONTEST) };
    let _before = most_in_flight();
    run_load(bench.server(way.module), way, load);
    most_in_flight()
}
