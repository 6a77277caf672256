//! Every state that three clients can bring the queue into, up to a number of events: at a bucket and a pool, or at a bucket
//! that two tenants share.
//!
//! The driver of the queue asserts at each event, and at each step of a turn, that calls are served in the model's order and
//! that none is left whose turn it is. From each new state time alone then ends all waits.

use super::model::MILLION;
use super::turns::{self, limit, part};
use super::waiting::{Part, Server};
use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Mutex;
use std::time::Instant;
use tokenbucket_core::queue::Arrival;

const CLIENTS: usize = 3;
const MAX_WAIT_US: i64 = 3 * MILLION;

/// Odd: a turn examines one call at a time.
const START_US: i64 = 1_700_000_000 * MILLION + 1;

/// Numbers of calls and of keys are above these in the queue. No other number in it is between them and the next thousand.
const FIRST_CALL: usize = 1000;
const FIRST_KEY: usize = 2 * FIRST_CALL;

/// What a call wants.
#[derive(Clone, Copy)]
struct Kind {
    tokens: i64,
    is_hold: bool,
    /// Slots of the pool, which are always a hold; `None` if the call is only for the bucket.
    slots: Option<i64>,
    /// A tenant, and its weight.
    share: Option<(u8, i64)>,
}

const fn of_both(tokens: i64, is_hold: bool, slots: i64) -> Kind {
    Kind { tokens, is_hold, slots: Some(slots), share: None }
}

const fn of_bucket(tokens: i64, is_hold: bool, share: Option<(u8, i64)>) -> Kind {
    Kind { tokens, is_hold, slots: None, share }
}

/// Calls of a bucket and a pool.
const TOGETHER: [Kind; 4] =
    [of_both(1, false, 0), of_both(2, false, 1), of_both(0, true, 1), of_both(1, true, 2)];

/// Calls of a bucket that two tenants share, with weights 1 and 3.
const SHARED: [Kind; 4] = [
    of_bucket(1, false, Some((1, MILLION))),
    of_bucket(2, false, Some((2, 3 * MILLION))),
    of_bucket(1, true, Some((2, 3 * MILLION))),
    of_bucket(1, false, None),
];

#[derive(Clone, Copy, Debug)]
enum Event {
    Call {
        client: usize,
        kind: usize,
    },
    /// A client that waits disconnects. One that does not settles its holds.
    End {
        client: usize,
    },
    Give,
    Second,
}

/// Three clients at a bucket that refills one token a second and a pool, both of two tokens.
#[derive(Clone)]
struct Clients {
    kinds: &'static [Kind],
    server: Server,
    waits: [Option<Arrival>; CLIENTS],
    /// How many of them have called. Those that have not are all the same.
    known: usize,
    events: Vec<Event>,
}

fn bucket(tokens: i64, id: Option<u8>) -> Part {
    part(b"a", limit(2, "1"), tokens * MILLION, id)
}

fn pool(slots: i64, client: usize) -> Part {
    part(b"b", limit(2, "0"), slots * MILLION, Some(client as u8))
}

impl Clients {
    fn new(kinds: &'static [Kind]) -> Self {
        let mut server = Server::default();
        server.world.now_us = START_US;
        let mut number = 0;
        while number < FIRST_CALL {
            let parts = [b"x", b"y"].map(|key| part(key, limit(1, "1"), 0, None));
            number = server.queue.enter(0, parts.into(), 0, None, &mut server.world) as usize;
            server.queue.leave(number as Arrival);
        }
        Self { kinds, server, waits: [None; CLIENTS], known: 0, events: Vec::new() }
    }

    fn events(&self) -> impl Iterator<Item = Event> + use<> {
        let (kinds, waits, known) = (self.kinds.len(), self.waits, self.known);
        let of = move |client: usize| {
            let calls = (0..kinds).map(move |kind| Event::Call { client, kind });
            let end = (client < known).then_some(Event::End { client });
            calls.filter(move |_| waits[client].is_none()).chain(end)
        };
        (0..CLIENTS.min(known + 1)).flat_map(of).chain([Event::Give, Event::Second])
    }

    fn make(&mut self, event: Event) {
        match event {
            Event::Call { client, kind } => {
                let Kind { tokens, is_hold, slots, share } = self.kinds[kind];
                let mut parts = vec![bucket(tokens, is_hold.then_some(client as u8))];
                parts.extend(slots.map(|slots| pool(slots, client)));
                let share = share.map(|(tenant, weight_micro)| turns::share(&[tenant], weight_micro));
                self.known = self.known.max(client + 1);
                self.waits[client] = self.server.call_with(0, &parts, Some(MAX_WAIT_US), share).1;
            }
            Event::End { client } => match self.waits[client] {
                Some(arrival) => self.server.disconnect(arrival),
                None => [bucket(0, Some(client as u8)), pool(0, client)]
                    .iter()
                    .for_each(|part| self.server.settle(0, part)),
            },
            Event::Give => self.server.give(0, &bucket(0, None), MILLION),
            Event::Second => self.server.sleep(MILLION),
        }
        let waits = |arrival: &Arrival| self.server.waiting.calls.iter().any(|call| call.arrival == *arrival);
        self.waits = self.waits.map(|arrival| arrival.filter(waits));
        self.server.served.clear();
        self.events.push(event);
    }

    /// Hashes all that what happens next depends on: with times as seen from now, and the numbers of calls and keys by their
    /// order.
    fn fingerprint(&self) -> u64 {
        let (world, queue) = (&self.server.world, format!("{:?}", self.server.queue));
        // Hash maps have no order. What they hold is also in the lines.
        let (_, queue) = queue.split_once(", lines: ").unwrap();
        let (lines, queue) = queue.split_once(", claims: ").unwrap();
        let (_, queue) = queue.split_once(", deadlines: ").unwrap();
        let (queue, _) = queue.split_once(", arrivals: ").unwrap();
        let lines = without_maps(lines);
        let mut text = format!("{lines}{queue}{:?}{}", self.waits, self.known);
        for part in [bucket(0, None), pool(0, 0)] {
            write!(text, "{:?}", world.outlook(0, &part)).unwrap();
        }
        let numbers = || text.split(|char: char| !char.is_ascii_digit());
        let is_name = |number: usize| (FIRST_CALL..FIRST_KEY + FIRST_CALL).contains(&number);
        let names = numbers().filter_map(|digits| digits.parse().ok()).filter(|number| is_name(*number));
        let mut names: Vec<usize> = names.collect();
        names.sort_unstable();
        names.dedup();
        let mut hasher = DefaultHasher::new();
        for digits in numbers() {
            match digits.parse::<usize>() {
                Ok(number) if is_name(number) => {
                    (number < FIRST_KEY, names.binary_search(&number)).hash(&mut hasher);
                }
                Ok(number) if (1 << 50..1 << 60).contains(&number) => {
                    (number as i64 - world.now_us).hash(&mut hasher);
                }
                _ => digits.hash(&mut hasher),
            }
        }
        text.split(|char: char| char.is_ascii_digit()).for_each(|between| between.hash(&mut hasher));
        hasher.finish()
    }

    /// Returns what an event makes of it.
    fn after(&self, event: Event) -> Self {
        let mut after = self.clone();
        after.make(event);
        after
    }
}

/// Removes the tenants of each key, which are also in its places.
fn without_maps(lines: &str) -> String {
    let mut parts = lines.split(", tenants: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(", places: ").map_or("", |(_, rest)| rest))
}

/// Tries one event more after some states. Returns the new states that it leads to, unless it is the last one, and how many
/// events it tried.
fn step(states: &[Clients], seen: &Mutex<HashSet<u64>>, is_last: bool) -> (Vec<Clients>, usize) {
    let (mut found, mut tried) = (Vec::new(), 0);
    for clients in states {
        for event in clients.events() {
            tried += 1;
            let after = catch_unwind(AssertUnwindSafe(|| {
                let after = clients.after(event);
                let is_new = seen.lock().unwrap().insert(after.fingerprint());
                is_new.then(|| {
                    let mut end = after.clone();
                    end.server.sleep(MAX_WAIT_US);
                    end.server.assert_empty();
                    after
                })
            }));
            let Ok(after) = after else { panic!("after {:?}, {event:?}", clients.events) };
            found.extend(after.filter(|_| !is_last));
        }
    }
    (found, tried)
}

#[test]
fn every_state_serves_in_order_and_ends() {
    search(&TOGETHER);
}

#[test]
fn every_state_serves_by_shares_and_ends() {
    search(&SHARED);
}

/// Searches to a depth of `DEPTH` events, which takes seconds unless told: `make test-states`.
fn search(kinds: &'static [Kind]) {
    let depth = std::env::var("DEPTH").map_or(5, |depth| depth.parse().unwrap());
    let began = Instant::now();
    let (mut states, mut tried) = (vec![Clients::new(kinds)], 0);
    let seen = Mutex::new(HashSet::from([states[0].fingerprint()]));
    for events in 1..=depth {
        let share = states.len().div_ceil(std::thread::available_parallelism().map_or(1, usize::from));
        let steps = std::thread::scope(|scope| {
            let shares: Vec<_> = states
                .chunks(share)
                .map(|share| scope.spawn(|| step(share, &seen, events == depth)))
                .collect();
            shares.into_iter().map(|share| share.join().expect("a state is wrong")).collect::<Vec<_>>()
        });
        tried += steps.iter().map(|(_, tried)| tried).sum::<usize>();
        states = steps.into_iter().flat_map(|(found, _)| found).collect();
        let (all, seconds) = (seen.lock().unwrap().len(), began.elapsed().as_secs_f64());
        println!("{all} states within {events} events, {tried} steps, {seconds:.1} s");
    }
    assert!(seen.lock().unwrap().len() > 1000, "these are not all states");
}
