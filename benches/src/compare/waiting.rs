//! Waiting for one of few places: in turn, or by asking again and again.

use super::*;
use crate::approaches::waits;
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

const CLIENTS: usize = 1000;
const PLACES: u64 = 10;
const PLACE_S: u64 = 600;
/// How long clients pause who ask again.
const PAUSE: Duration = Duration::from_millis(10);
/// A call that is served before one that came so much earlier has overtaken it: less may be due to the network.
const LATER: Duration = Duration::from_millis(20);
/// For how long the processor is watched while nothing happens.
const IDLE: Duration = Duration::from_secs(5);

pub fn measure(bench: &mut Bench) -> Table {
    let duration = Duration::from_millis(bench.pick(8000, 1000));
    let columns =
        "way | grants a second | commands a grant | overtaken of 1,000 | p50 wait ms | p99 wait ms | \
                   p99 hand-over us";
    let mut table = Table::new("waiting", Plot::None, columns);
    for way in waits() {
        note(format_args!("waiting: {}", way.name));
        let outcome = contend(bench, &way, PLACES, duration);
        let hand_over = contend(bench, &way, 1, duration / 2).hand_over_us;
        let ms = |quantile| format!("{:.0}", outcome.wait_us.value_at_quantile(quantile) as f64 / 1000.0);
        let figures = [
            whole(outcome.grants as f64 / duration.as_secs_f64()),
            format!("{:.1}", outcome.commands as f64 / outcome.grants as f64),
            format!("{:.1}", outcome.overtaken as f64 * 1000.0 / outcome.grants as f64),
            ms(0.5),
            ms(0.99),
            whole(hand_over.value_at_quantile(0.99)),
        ];
        table.row(&[way.name], figures);
    }
    table
}

/// What it costs a server that many wait, each for a bucket of its own.
pub fn cost(bench: &mut Bench) -> Table {
    let many = bench.pick(10_000, 1000);
    let server = start_apart(Module::Own.server().option("maxclients", many + 100));
    let mut control = server.connect();
    control.say(&format!("CONFIG SET tokenbucket.max-waiters {many}"));
    let limit = Limit { capacity: 1, count: 1, period_s: 3600 };
    let (bytes, alone_percent, percent) = block_on(async {
        let opening = (0..many).map(|number| Client::open(server.port(), number, limit));
        let mut clients = join_all(opening).await;
        for (number, client) in clients.iter_mut().enumerate() {
            client.ask(&["TB.TAKE {key} {capacity} {rate}"], &key(number as u64)).await.unwrap();
        }
        let alone_percent = idle_percent(&server).await;
        let before = control.used_memory();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send("TB.BTAKE {key} {capacity} {rate} 1 3600000", &key(number as u64)).await;
        }
        while control.info("tokenbucket", "tokenbucket_waiting") != many.to_string() {}
        let bytes = (control.used_memory() - before) as f64 / many as f64;
        (bytes, alone_percent, idle_percent(&server).await)
    });
    let columns = "calls that wait | bytes a call | percent of a core | percent, connections alone";
    let mut table = Table::new("waiters", Plot::None, columns);
    table.row(&[&whole(many as f64)], [whole(bytes), format!("{percent:.1}"), format!("{alone_percent:.1}")]);
    table
}

/// How many buckets a call names, each under a limit of its own.
const BUCKETS: usize = 100;
/// Releases that are timed while calls with limits of their own wait.
const RELEASES: usize = 20;

/// What one release costs a server, by how many calls wait.
pub fn release(bench: &mut Bench) -> Table {
    let columns =
        "calls that wait | mutex: CPU us a grant | limits of their own: slowest release ms | slowest PING ms";
    let mut table = Table::new("release", Plot::None, columns);
    for waiters in bench.pick(vec![1000, 4000, 10_000], vec![1000]) {
        note(format_args!("release: {waiters} calls wait"));
        let mutex_us = mutex_cpu_us(waiters);
        let [release_ms, ping_ms] = own_limits_ms(waiters);
        let figures = [format!("{mutex_us:.0}"), format!("{release_ms:.1}"), format!("{ping_ms:.1}")];
        table.row(&[&whole(waiters as f64)], figures);
    }
    table
}

/// A server on which calls wait, in this order, and their clients.
pub(super) async fn with_waiting(
    calls: impl Iterator<Item = String>,
    setup: &[&str],
) -> (Server, Vec<Client>) {
    let server = start_apart(Module::Own.server().option("maxclients", 11_000));
    let mut control = server.connect();
    control.say("CONFIG SET tokenbucket.max-waiters 10000");
    setup.iter().for_each(|call| drop(control.say(call)));
    let limit = Limit { capacity: 1, count: 1, period_s: 1 };
    let mut clients = Vec::new();
    for (number, call) in calls.enumerate() {
        let mut client = Client::open(server.port(), number, limit).await;
        client.send(&call, "").await;
        clients.push(client);
    }
    wait("all wait", || control.info("tokenbucket", "tokenbucket_waiting") == clients.len().to_string());
    (server, clients)
}

/// Processor time of a settlement and the grant that follows, where all wait for one slot.
fn mutex_cpu_us(waiters: usize) -> f64 {
    let calls = (0..waiters).map(|number| format!("TB.BHOLD m 1 0 1 86400000 {number} 86400000"));
    block_on(async {
        let (server, clients) = with_waiting(calls, &["TB.HOLD m 1 0 1 86400000 first"]).await;
        let (mut control, target) = (server.connect(), Target::from(&server));
        let before_s = target.cpu_s();
        control.say("TB.SETTLE m 1 0 first 0");
        (1..waiters).for_each(|number| drop(control.say(&format!("TB.SETTLE m 1 0 {} 0", number - 1))));
        drop(clients);
        (target.cpu_s() - before_s) * 1e6 / waiters as f64
    })
}

/// The slowest reply to a release, and the slowest PING of another client meanwhile.
fn own_limits_ms(waiters: usize) -> [f64; 2] {
    let calls = (0..waiters).map(|number| {
        let buckets: String =
            (0..BUCKETS).map(|bucket| format!(" k{bucket} {} 1000/d 1", 10_000 + number)).collect();
        let (lacked, named) = (["a", "z"][number % 2], BUCKETS + 1);
        format!("TB.BMHOLD {named} 86400000 {number} 86400000 {lacked} 1 0 1{buckets}")
    });
    let holds = ["TB.HOLD a 1 0 1 86400000 first", "TB.HOLD z 1 0 1 86400000 first"];
    block_on(async {
        let (server, clients) = with_waiting(calls, &holds).await;
        let (mut control, mut other) = (server.connect(), server.connect());
        let is_over = AtomicBool::new(false);
        let times = std::thread::scope(|scope| {
            let pings = scope.spawn(|| {
                let ping = || (!is_over.load(Ordering::Relaxed)).then(|| timed(|| drop(other.say("PING"))));
                std::iter::from_fn(ping).max()
            });
            let holders =
                std::iter::once("first".to_owned()).chain((0..).step_by(2).map(|number| number.to_string()));
            let releases = holders.take(RELEASES);
            let slowest =
                releases.map(|id| timed(|| drop(control.say(&format!("TB.SETTLE a 1 0 {id} 0"))))).max();
            is_over.store(true, Ordering::Relaxed);
            [slowest, pings.join().unwrap()]
        });
        drop(clients);
        times.map(|time| time.unwrap_or_default().as_secs_f64() * 1000.0)
    })
}

fn timed(work: impl FnOnce()) -> Duration {
    let since = Instant::now();
    work();
    since.elapsed()
}

/// How much of a core a server takes while nothing happens.
async fn idle_percent(server: &Server) -> f64 {
    let target = Target::from(server);
    let before_s = target.cpu_s();
    tokio::time::sleep(IDLE).await;
    (target.cpu_s() - before_s) / IDLE.as_secs_f64() * 100.0
}

/// What came of clients who all want one of so few places, and give it back at once.
struct Contest {
    grants: u64,
    commands: u64,
    overtaken: u64,
    wait_us: Histogram<u64>,
    /// From the command that gives a place back to the reply that grants one.
    hand_over_us: Histogram<u64>,
    waiting: BTreeSet<(Instant, usize)>,
    given_back: Option<Instant>,
}

fn contend(bench: &mut Bench, way: &Approach, places: u64, duration: Duration) -> Contest {
    let limit = Limit { capacity: places, count: places, period_s: PLACE_S };
    let port = bench.server(way.module).port();
    let histogram = || Histogram::new(3).unwrap();
    let contest = RefCell::new(Contest {
        grants: 0,
        commands: 0,
        overtaken: 0,
        wait_us: histogram(),
        hand_over_us: histogram(),
        waiting: BTreeSet::new(),
        given_back: None,
    });
    block_on(async {
        let clients = join_all((0..CLIENTS).map(|number| Client::open(port, number, limit))).await;
        let end = Instant::now() + duration;
        let rivals = clients.into_iter().enumerate();
        join_all(rivals.map(|(number, client)| rival(way, number, client, end, &contest))).await;
    });
    contest.into_inner()
}

/// One client: waits for a place, and gives it back.
async fn rival(way: &Approach, number: usize, mut client: Client, end: Instant, contest: &RefCell<Contest>) {
    while Instant::now() < end {
        let asked = Instant::now();
        contest.borrow_mut().waiting.insert((asked, number));
        while !way.keep(&mut client, &key(0)).await.unwrap() {
            tokio::time::sleep(PAUSE).await;
        }
        contest.borrow_mut().granted(asked, number, end);
        contest.borrow_mut().given_back = Some(Instant::now());
        way.give_back(&mut client, &key(0)).await;
    }
    contest.borrow_mut().commands += client.sent;
}

impl Contest {
    fn granted(&mut self, asked: Instant, number: usize, end: Instant) {
        let now = Instant::now();
        self.waiting.remove(&(asked, number));
        if let Some(given_back) = self.given_back.take() {
            self.hand_over_us.record((now - given_back).as_micros() as u64).unwrap();
        }
        if now < end {
            let is_before = |(first, _): &(Instant, usize)| *first + LATER < asked;
            self.overtaken += u64::from(self.waiting.first().is_some_and(is_before));
            self.wait_us.record((now - asked).as_micros() as u64).unwrap();
            self.grants += 1;
        }
    }
}
