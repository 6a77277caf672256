//! What is lost when one limit is split over several buckets: the table of `docs/operate/scaling.md`, simulated with the exact
//! model. `UPDATE_EXPECT=1 cargo test -p tokenbucket-core --test pure split::` writes it into the page.

use super::model::{Limit, Model};
use super::take;
use fastrand::Rng;

/// Tokens of all buckets together, and how many flow in each second.
const CAPACITY: u64 = 6400;
const BUCKETS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operate/scaling.md");

/// Requests of a token each, as many as the capacity, at once.
const BURST: u64 = 0;

/// The columns: how many times the rate is asked for, at any moments of a second, of buckets that are empty at first, or a
/// burst; and how many buckets whoever is denied asks.
const COLUMNS: [(u64, usize); 5] = [(BURST, 1), (BURST, 2), (1, 1), (1, 2), (2, 1)];

/// When the requests come, in microseconds.
fn moments(times: u64, random: &mut Rng) -> Vec<i64> {
    if times == BURST {
        return vec![0; CAPACITY as usize];
    }
    let mut moments: Vec<_> = (0..CAPACITY * times).map(|_| random.u64(0..1_000_000) as i64).collect();
    moments.sort_unstable();
    moments
}

/// The requests that are allowed, when each asks up to `tries` buckets, any of them.
fn allowed((times, tries): (u64, usize), buckets: u64) -> u64 {
    let mut random = Rng::with_seed(1);
    let moments = moments(times, &mut random);
    let share = CAPACITY / buckets;
    let limit = Limit::new(&share.to_string(), &share.to_string());
    let mut full_or_empty = Model::default();
    if times != BURST {
        full_or_empty.apply(&limit, take(share as i64), 0, 1, false);
    }
    let mut models = vec![full_or_empty; buckets as usize];
    let mut is_taken = |bucket: u64, now_us| {
        let model = &mut models[bucket as usize];
        // At a whole number of tokens a second there is nothing to round: one answer is right.
        let allowed = model.allowed(&limit, take(1), now_us)[0].expect("a take is never refused");
        model.apply(&limit, take(1), now_us, allowed, false);
        allowed == 1
    };
    let mut request = |now_us| (0..tries).any(|_| is_taken(random.u64(0..buckets), now_us));
    moments.into_iter().filter(|now_us| request(*now_us)).count() as u64
}

/// What so many buckets allow less than one does, in per cent.
fn row(buckets: u64, of_one: [u64; COLUMNS.len()]) -> String {
    let of_all = COLUMNS.map(|column| allowed(column, buckets));
    let cells = of_one.iter().zip(of_all).map(|(one, all)| {
        assert!(all <= *one, "{buckets} buckets allow {all}, and one {one}");
        format!("{:.1}", (one - all) as f64 * 100.0 / *one as f64)
    });
    format!("| {buckets} | {} | {} |", CAPACITY / buckets, cells.collect::<Vec<_>>().join(" | "))
}

#[test]
fn the_page_has_what_a_limit_loses_when_it_is_split() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once("| 1 | 6400 |").expect("the page has the table");
    let (_, after) = rest.split_once("\n\n").expect("something stands behind the table");
    let of_one = COLUMNS.map(|(times, _)| allowed((times, 1), 1));
    let rows = BUCKETS.map(|buckets| row(buckets, of_one)).join("\n");
    expect_test::expect_file![PAGE].assert_eq(&format!("{before}{rows}\n\n{after}"));
}
