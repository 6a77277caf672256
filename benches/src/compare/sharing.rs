//! Shares: two tenants over ten thousand grants, a loud tenant beside a quiet one, and what a grant costs.

use super::waiting::with_waiting;
use super::*;
use crate::common::Connection;
use futures_util::FutureExt;

const GRANTS: u64 = 10_000;
/// The grants of a row.
const STEP: u64 = 1000;
const LARGEST_COST: u64 = 10;
const WEIGHTS: [u64; 2] = [1, 3];
/// Granted tokens divided by weight may differ by at most this.
const BOUND: f64 = (2 * LARGEST_COST / WEIGHTS[0]) as f64;
/// Calls of both tenants that wait at any time.
const CALLS: usize = 100;
/// The tenants of the waiting calls whose grants are timed.
const TENANTS: u64 = 100;
/// Without tokens, and none flow in.
const EMPTY: &str = "TB.TAKE shared 10 1/3650d 10";
const GIVE: &str = "TB.GIVE shared 10 1/3650d 1";

fn call(cost: u64, share: &str) -> String {
    format!("TB.BTAKE shared 10 1/3650d {cost} 86400000{share}")
}

/// Two tenants of different weights with calls of random cost.
pub fn by_weight(_: &mut Bench) -> Table {
    const COLUMNS: [&str; 4] =
        ["weight 1: tokens / weight", "weight 3: tokens / weight", "largest difference", "bound"];
    const PANELS: &[(&str, &[&str])] =
        &[("tokens granted / weight", COLUMNS.split_at(2).0), ("their difference", COLUMNS.split_at(2).1)];
    note("shares");
    let plot = Plot::Columns("Two tenants of weights 1 and 3, over the grants", PANELS);
    let mut table = Table::new("shares", plot, &format!("grants | {}", COLUMNS.join(" | ")));
    let mut random = Rng::with_seed(1);
    let mut costs: Vec<u64> = (0..CALLS).map(|_| random.u64(1..=LARGEST_COST)).collect();
    let words =
        |number: usize, cost| call(cost, &format!(" SHARE {} WEIGHT {}", number % 2, WEIGHTS[number % 2]));
    let calls: Vec<_> = costs.iter().enumerate().map(|(number, cost)| words(number, *cost)).collect();
    block_on(async {
        let (server, mut clients) = with_waiting(calls.into_iter(), &[EMPTY]).await;
        let mut control = server.connect();
        let (mut given, mut tokens, mut largest) = (0, [0; 2], 0.0_f64);
        for grant in 1..=GRANTS {
            let served = loop {
                given += 1;
                if let Some(served) = give(&mut control, &mut clients).await {
                    break served;
                }
            };
            tokens[served % 2] += costs[served];
            assert_eq!(given, tokens[0] + tokens[1], "each grant is seen when it is made");
            let by_weight = [0, 1].map(|tenant| tokens[tenant] as f64 / WEIGHTS[tenant] as f64);
            largest = largest.max((by_weight[0] - by_weight[1]).abs());
            assert!(largest <= BOUND, "after {grant} grants the tenants differ by {largest}");
            if grant % STEP == 0 {
                let figures =
                    [by_weight[0], by_weight[1], largest, BOUND].map(|figure| format!("{figure:.1}"));
                table.row(&[&whole(grant as f64)], figures);
                largest = 0.0;
            }
            costs[served] = random.u64(1..=LARGEST_COST);
            clients[served].send(&words(served, costs[served]), "").await;
        }
    });
    table
}

/// Adds a token. Returns the client whose call it served.
async fn give(control: &mut Connection, clients: &mut [Client]) -> Option<usize> {
    control.say(GIVE);
    // The server has sent the reply of the call before it reads this.
    control.say("PING");
    tokio::task::yield_now().await;
    clients.iter_mut().position(|client| client.exchange(&[], 1).now_or_never().is_some())
}

/// Returns the last words of a call, given its number.
type Words<'a> = &'a dyn Fn(usize, &mut Rng) -> String;

/// What a grant costs among many calls that wait, and when one call of another tenant is served, with shares and without.
pub fn cost(bench: &mut Bench) -> Table {
    let columns = "calls that wait | CPU us a grant | with 100 tenants | times | \
                   place of the quiet call | with SHARE";
    let mut table = Table::new("sharing", Plot::None, columns);
    for waiters in bench.pick(vec![1000, 10_000], vec![1000]) {
        let share =
            |_, random: &mut Rng| format!(" SHARE {} WEIGHT {}", random.u64(..TENANTS), random.u64(1..=4));
        let ways: [Words<'_>; 2] = [&|_, _| String::new(), &share];
        let rounds = bench
            .in_turns(bench.rounds, &format!("sharing of {waiters}"), &ways, |_, way| grant_us(waiters, way));
        let [alone_us, shared_us] = [0, 1].map(|way| median(rounds[way].clone()));
        let ratio = shared_us / alone_us;
        assert!(ratio <= 2.0, "shares make a grant cost {ratio:.2} times as much");
        let places = [["", ""], [" SHARE loud", " SHARE quiet"]].map(|shares| place(waiters, shares));
        let figures = [format!("{alone_us:.1}"), format!("{shared_us:.1}"), times(ratio)];
        let places = places.map(|place| whole(place as f64));
        table.row(&[&whole(waiters as f64)], figures.into_iter().chain(places));
    }
    table
}

/// Processor time of a call that adds a token and the grant that follows: of half of the calls.
fn grant_us(waiters: usize, share: impl Fn(usize, &mut Rng) -> String) -> f64 {
    let mut random = Rng::with_seed(1);
    let calls = (0..waiters).map(|number| call(1, &share(number, &mut random)));
    block_on(async {
        let (server, clients) = with_waiting(calls, &[EMPTY]).await;
        let (mut control, target) = (server.connect(), Target::from(&server));
        let before_s = target.cpu_s();
        (0..waiters / 2).for_each(|_| drop(control.say(GIVE)));
        let cpu_s = target.cpu_s() - before_s;
        assert_eq!(control.info("tokenbucket", "tokenbucket_waiting"), (waiters - waiters / 2).to_string());
        drop(clients);
        cpu_s * 1e6 / (waiters / 2) as f64
    })
}

/// Returns how many grants it takes to serve the last of many calls: all others are of another tenant.
fn place(waiters: usize, [loud, quiet]: [&str; 2]) -> usize {
    let calls = (1..=waiters).map(|number| call(1, if number < waiters { loud } else { quiet }));
    block_on(async {
        let (server, mut clients) = with_waiting(calls, &[EMPTY]).await;
        let mut control = server.connect();
        let mut place = 1;
        while give(&mut control, &mut clients[waiters - 1..]).await.is_none() {
            place += 1;
        }
        place
    })
}
