//! What is lost when one limit is split over several buckets: the table of `docs/scaling.md`, simulated with the exact
//! model. `UPDATE_EXPECT=1 cargo test --test model split::` writes it into the page.

use super::exact::{Limit, Model};
use super::take;
use fastrand::Rng;

/// Tokens of all buckets together, and how many flow in each second.
const CAPACITY: u64 = 6400;
const BUCKETS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
const SECOND_US: u64 = 1_000_000;
/// How long requests come in where they do not come at once.
const STRETCH_S: u64 = 1;
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/scaling.md");

/// Requests of a token each.
#[derive(Clone, Copy)]
enum Demand {
    /// The whole capacity, at once.
    Burst,
    /// So many times the rate, at any moments, of buckets that are empty at first.
    Steady(u64),
}

impl Demand {
    /// When the requests come, in microseconds.
    fn moments(self, random: &mut Rng) -> Vec<i64> {
        match self {
            Self::Burst => vec![0; CAPACITY as usize],
            Self::Steady(times) => {
                let count = CAPACITY * STRETCH_S * times;
                let mut moments: Vec<_> =
                    (0..count).map(|_| random.u64(0..STRETCH_S * SECOND_US) as i64).collect();
                moments.sort_unstable();
                moments
            }
        }
    }
}

/// The requests that are allowed, when each asks up to `tries` buckets, any of them.
fn allowed(demand: Demand, buckets: u64, tries: usize) -> u64 {
    let mut random = Rng::with_seed(1);
    let moments = demand.moments(&mut random);
    let share = CAPACITY / buckets;
    let limit = Limit::new(&share.to_string(), &share.to_string());
    let mut models: Vec<_> = (0..buckets).map(|_| Model::default()).collect();
    if matches!(demand, Demand::Steady(_)) {
        for model in &mut models {
            model.apply(&limit, take(share as i64), 0, 1, false);
        }
    }
    let request = |now_us| {
        let mut asked = (0..tries).map(|_| random.u64(0..buckets));
        asked.any(|bucket| is_taken(&mut models[bucket as usize], &limit, now_us))
    };
    moments.into_iter().map(request).filter(|is_allowed| *is_allowed).count() as u64
}

/// Takes a token, if there is one.
fn is_taken(model: &mut Model, limit: &Limit, now_us: i64) -> bool {
    // At a whole number of tokens a second there is nothing to round: one answer is right.
    let allowed = model.allowed(limit, take(1), now_us)[0].expect("a take is never refused");
    model.apply(limit, take(1), now_us, allowed, false);
    allowed == 1
}

/// The columns: what is asked, and how often whoever is denied.
const COLUMNS: [(Demand, usize); 5] = [
    (Demand::Burst, 1),
    (Demand::Burst, 2),
    (Demand::Steady(1), 1),
    (Demand::Steady(1), 2),
    (Demand::Steady(2), 1),
];

/// What so many buckets allow less than one does, in per cent.
fn row(buckets: u64, of_one: [u64; COLUMNS.len()]) -> String {
    let of_all = COLUMNS.map(|(demand, tries)| allowed(demand, buckets, tries));
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
    let of_one = COLUMNS.map(|(demand, _)| allowed(demand, 1, 1));
    let rows = BUCKETS.map(|buckets| row(buckets, of_one)).join("\n");
    expect_test::expect_file![PAGE].assert_eq(&format!("{before}{rows}\n\n{after}"));
}
