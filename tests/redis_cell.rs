//! `CL.THROTTLE` side by side with redis-cell itself, on one clock that the test moves. Nothing of it is part of this project:
//! `REDIS_CELL` says which library to load.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
mod common;

use common::judged_calls::pause_us;
use common::model;
use common::reply::integers;
use common::stored::{is_writing_files, wait_while_time_passes};
use common::{text, Connection, Random, Server, ServerBuilder};
use redis::Value;

/// Limits at which nothing is rounded: count and period in seconds.
#[rustfmt::skip]
const EXACT: [(i64, i64); 18] = [
    (1, 1), (2, 1), (5, 1), (10, 1), (100, 1), (250, 1), (1000, 1), (1, 60), (10, 60), (30, 60), (60, 60),
    (120, 60), (60_000, 60), (1, 3600), (3600, 3600), (7, 7), (24, 86_400), (1, 86_400),
];

/// Limits at which a token takes no whole number of microseconds, or a microsecond brings no whole number of
/// millionths.
#[rustfmt::skip]
const ROUNDED: [(i64, i64); 12] = [
    (3, 1), (7, 1), (64, 1), (999, 1), (7, 60), (100, 60), (999, 60), (30, 7), (11, 3600), (1000, 3600),
    (5000, 86_400), (99_991, 86_400),
];

/// Limited, limit, remaining, retry after and reset after in seconds.
type Reply = [i64; 5];

/// The library that servers load.
fn redis_cell() -> String {
    let library = std::env::var("REDIS_CELL");
    library.expect("REDIS_CELL has to name a library: benches/build-redis-cell.sh builds one")
}

/// A server with redis-cell instead of the module.
fn with_redis_cell() -> ServerBuilder {
    Server::builder().without_module().option("loadmodule", redis_cell())
}

/// A limit, and the key that it is for.
#[derive(Clone, Debug)]
struct Limit {
    key: String,
    /// In the words of `CL.THROTTLE`.
    words: String,
    capacity: i64,
    meant: model::Limit,
}

impl Limit {
    fn new(burst: i64, (count, period_s): (i64, i64)) -> Self {
        let words = format!("{burst} {count} {period_s}");
        let meant = model::Limit::new(&(burst + 1).to_string(), &format!("{count}/{period_s}s"));
        let key = format!("key:{words}").replace(' ', ":");
        Self { key, words, capacity: burst + 1, meant }
    }

    /// The arguments of a call. Whoever wants one token need not say so.
    fn call(&self, quantity: i64) -> String {
        let quantity = if quantity == 1 { String::new() } else { quantity.to_string() };
        format!("{} {} {quantity}", self.key, self.words)
    }

    /// How much is asked for: mostly a token, sometimes nothing, a share, all of it, or too much.
    fn quantity(&self, random: &mut Random) -> i64 {
        match random.below(10) {
            0 => 0,
            1 => self.capacity,
            2 => self.capacity + 1,
            3..=5 => random.between(1, self.capacity),
            _ => 1,
        }
    }
}

/// The module and redis-cell, each on a server of its own.
struct Pair {
    server: Server,
    _cell_server: Server,
    client: Connection,
    cell: Connection,
    /// Whether redis-cell rounds seconds up, as from release 0.3 on, and not down, as the published crate.
    rounds_up: bool,
}

impl Pair {
    fn start() -> Self {
        let server = Server::with_clock();
        let cell_server = with_redis_cell().clock_of(&server).start();
        Self::of(server, cell_server)
    }

    fn of(server: Server, cell_server: Server) -> Self {
        let (client, mut cell) = (server.connect(), cell_server.connect());
        // Half a second.
        let probe = cell.throttle("probe 0 2 1");
        assert_eq!(probe[..4], [0, 1, 0, -1]);
        Self { server, _cell_server: cell_server, client, cell, rounds_up: probe[4] == 1 }
    }

    /// Goes on to a limit at one of the rates, whose key is on neither server.
    fn begin(&mut self, random: &mut Random, rates: &[(i64, i64)]) -> Limit {
        let any = random.between(0, 1000);
        let limit = Limit::new(*random.pick(&[0, 1, 4, 15, 99, any]), *random.pick(rates));
        for client in [&mut self.client, &mut self.cell] {
            client.run(&["DEL", &limit.key]);
        }
        limit
    }

    /// Makes one call on both: what the module says, and redis-cell. What redis-cell has forgotten the module has to forget.
    fn call(&mut self, limit: &Limit, quantity: i64) -> [Reply; 2] {
        let (key, call) = (&limit.key, limit.call(quantity));
        // With nothing in between: servers also look for expired keys when nobody asks.
        let replies = self.cell.transaction(&[&format!("EXISTS {key}"), &format!("CL.THROTTLE {call}")]);
        if replies[0] == Value::Int(0) {
            // Its expiry is rounded down to milliseconds, and servers count from the millisecond that has begun.
            let left = self.client.decide(&format!("TB.PEEK {key} {} 0", limit.meant.words));
            assert!(left.reset_after_ms <= 2, "{key} was gone {left:?} before its bucket was full");
            self.client.run(&["DEL", key]);
        }
        [self.client.throttle(&call), integers(&replies[1]).try_into().unwrap()]
    }

    #[track_caller]
    fn assert_same(&self, ours: Reply, cell: Reply, call: &str) {
        let rounded = |field: usize| !self.rounds_up && cell[field] >= 0 && ours[field] == cell[field] + 1;
        let seconds_are_same = [3, 4].into_iter().all(|field| ours[field] == cell[field] || rounded(field));
        assert!(ours[..3] == cell[..3] && seconds_are_same, "{call}: {ours:?}, redis-cell {cell:?}");
    }

    /// Lets redis-cell leave a bucket in a key, and the module find it: a look leaves it as it is, and the first call
    /// that wants tokens makes a bucket of it.
    fn take_over(&mut self, limit: &Limit, random: &mut Random) {
        for _ in 0..10 {
            self.cell.throttle(&limit.call(limit.quantity(random)));
            self.server.clock().advance_us(random.between(0, limit.meant.refill_us() / 20));
        }
        self.cell.throttle(&limit.call(1));
        let left = text(&self.cell.run(&["GET", &limit.key]));
        self.client.run(&["SET", &limit.key, &left]);
        for call in [limit.call(0), limit.call(1)] {
            let [ours, cell] = [&mut self.client, &mut self.cell].map(|client| client.throttle(&call));
            self.assert_same(ours, cell, &call);
        }
    }
}

// ---- The same calls at the same moments ---------------------------------------------------------------------

#[test]
fn every_field_is_the_same_where_nothing_is_rounded() {
    let (mut pair, mut random) = (Pair::start(), Random::new(60));
    let mut limited = 0;
    for number in 0..180 {
        let limit = pair.begin(&mut random, &EXACT);
        if number % 3 == 0 {
            pair.take_over(&limit, &mut random);
        }
        for _ in 0..40 {
            let quantity = limit.quantity(&mut random);
            let [told, cell] = pair.call(&limit, quantity);
            pair.assert_same(told, cell, &limit.call(quantity));
            limited += told[0];
            let waits_as_told = told[3] > 0 && random.once_in(3);
            let pause_us =
                if waits_as_told { told[3] * 1_000_000 } else { pause_us(&mut random, &limit.meant) };
            pair.server.clock().advance_us(pause_us);
        }
    }
    assert!((720..3600).contains(&limited), "{limited} of 7200 are limited");
}

/// There one rounds in the caller's favour and the other does not.
#[test]
fn decisions_part_only_at_the_very_edge_where_something_is_rounded() {
    let (mut pair, mut random) = (Pair::start(), Random::new(61));
    let (mut compared, mut parted) = (0, 0);
    while compared < 5000 {
        let limit = pair.begin(&mut random, &ROUNDED);
        for _ in 0..60 {
            let quantity = limit.quantity(&mut random);
            let [ours, cell] = pair.call(&limit, quantity);
            compared += 1;
            let context = format!("{}: {ours:?}, redis-cell {cell:?}", limit.call(quantity));
            if ours[0] != cell[0] {
                let [allowed, limited] = if ours[0] == 0 { [ours, cell] } else { [cell, ours] };
                assert!(allowed[2] == 0 && limited[2] == quantity - 1 && limited[3] <= 1, "{context}");
                parted += 1;
                break;
            }
            assert!((1..5).all(|field| ours[field].abs_diff(cell[field]) <= 1), "{context}");
            assert_eq!(ours[3] < 0, cell[3] < 0, "{context}");
            pair.server.clock().advance_us(pause_us(&mut random, &limit.meant));
        }
    }
    assert!(parted < compared / 500, "{parted} of {compared}");
}

// ---- Moving there and back ----------------------------------------------------------------------------------

/// Lets redis-cell take some of each limit at which nothing is rounded.
fn use_up(cell: &Server, burst: i64, quantity: i64) -> Vec<Limit> {
    let limits = EXACT.map(|rate| Limit::new(burst, rate));
    let mut client = cell.connect();
    limits.iter().for_each(|limit| assert_eq!(client.throttle(&limit.call(quantity))[0], 0));
    limits.into()
}

/// Asserts that both reply alike to the same calls.
fn assert_same(ours: Server, cell: Server, limits: &[Limit], quantities: &[i64]) {
    let mut pair = Pair::of(ours, cell);
    for call in limits.iter().flat_map(|limit| quantities.iter().map(|quantity| limit.call(*quantity))) {
        let [ours, cell] = [&mut pair.client, &mut pair.cell].map(|client| client.throttle(&call));
        pair.assert_same(ours, cell, &call);
    }
}

#[test]
fn a_restart_with_the_other_module_resets_nobody() {
    for (name, value, write) in [("save", "3600 1", "SAVE"), ("appendonly", "yes", "BGREWRITEAOF")] {
        let mut cell = with_redis_cell().controlled_clock().option(name, value).start();
        let limits = use_up(&cell, 999, 960);
        // As the page says.
        let mut client = cell.connect();
        client.say(write);
        wait_while_time_passes(&[cell.clock()], "the file is written", || !is_writing_files(&mut client));
        cell.kill_and_restart();
        let ours = Server::builder().files_in(cell.folder()).clock_of(&cell).option(name, value).start();
        assert_same(ours, cell, &limits, &[0, 1, 970, 13]);
    }
}

#[test]
fn the_script_of_the_page_brings_buckets_back_to_redis_cell() {
    let (_, script) =
        include_str!("../docs/how-to/move-from-redis-cell.md").split_once("```lua\n").expect("no script");
    let (script, _) = script.split_once("```").unwrap();
    let (mut pair, mut random) = (Pair::start(), Random::new(64));
    for _ in 0..100 {
        let limit = pair.begin(&mut random, &EXACT);
        let (key, peek) = (&limit.key, limit.call(0));
        pair.client.throttle(&limit.call(random.between(0, limit.capacity)));
        pair.server.clock().advance_us(random.between(0, 500_000));
        let before = pair.client.throttle(&peek);
        let eval = ["EVAL", script, "1", key].into_iter().chain(limit.words.split(' '));
        pair.client.run(&eval.collect::<Vec<_>>());
        let full_at = pair.client.run(&["GET", key]);
        if full_at == Value::Nil {
            assert_eq!((before[2], before[4]), (limit.capacity, 0), "{peek}");
            assert_eq!(text(&pair.client.run(&["TYPE", key])), "none");
            continue;
        }
        let expires_at_ms = pair.client.expires_at_ms(key).expect("no expiry").to_string();
        pair.cell.run(&["SET", key, &text(&full_at)]);
        pair.cell.run(&["PEXPIREAT", key, &expires_at_ms]);
        let back = pair.cell.throttle(&peek);
        // A bucket is full up to a millisecond later, and a token poorer: that is as much as the script is told.
        assert!((before[2] - 1..=before[2]).contains(&back[2]), "{peek}: {before:?} {back:?}");
        let soonest_s = before[4] - i64::from(!pair.rounds_up);
        assert!((soonest_s..=before[4] + 1).contains(&back[4]), "{peek}: {before:?} {back:?}");
    }
}

#[test]
fn whoever_is_loaded_first_has_the_command() {
    let (server, mut client) = Server::builder().option("loadmodule", redis_cell()).start_with_client();
    client.throttle("k 15 30 60");
    assert_eq!(text(&client.say("TYPE k")), "string", "redis-cell has it");
    client.decide("TB.TAKE other 10 1");
    assert!(server.log().contains("tokenbucket did not register cl.throttle: another module has it"));
    let quiet = Server::builder().module_arguments(&["cl-throttle", "no"]);
    let server = quiet.option("loadmodule", redis_cell()).start();
    server.connect().throttle("k 15 30 60");
    assert!(!server.log().contains("tokenbucket leaves"));
    // The other way round: ours keeps it. Whether redis-cell then refuses to load depends on the compiler that built it: it
    // returns one byte where the server reads an int.
    let (_server, mut client) = Server::start_with_client();
    let _ = client.try_run(&["MODULE", "LOAD", &redis_cell()]);
    client.throttle("k 15 30 60");
    assert_eq!(text(&client.say("TYPE k")), "tb-bucket");
}
