//! Waiting for one of few places: in turn, or by asking again and again.

use super::*;
use crate::approaches::waits;
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::collections::BTreeSet;

const CLIENTS: usize = 1000;
const PLACES: u64 = 10;
const PLACE_S: u64 = 600;
/// How long clients pause who ask again.
const PAUSE: Duration = Duration::from_millis(10);
/// Who asked so much later than another who still waits, and is served, has overtaken: less may be due to the network.
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
