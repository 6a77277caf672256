//! What the table promises, for random logs.

use proptest::prelude::*;
use tokenbucket_core::bucket::Limit;
use tokenbucket_core::rate::Rate;
use tokenbucket_replay::log::Log;
use tokenbucket_replay::options::Named;
use tokenbucket_replay::replay::{decisions, Replay};
use tokenbucket_replay::table::{needed_micro, Table};

const START_US: i64 = 1_767_225_600_000_007;

/// A request: the number of its key, the time since the one before, and the cost.
type Call = (u8, i64, i64);

pub fn calls() -> impl Strategy<Value = Vec<Call>> {
    let since_us = prop_oneof![Just(0), 1..1000i64, 1..2_000_000i64, 1..10_000_000_000i64];
    let cost_micro =
        prop_oneof![4 => Just(1_000_000), 1 => Just(0), 2 => 1..5_000_000i64, 1 => 1..1_000_000_000_000i64];
    prop::collection::vec((0..5u8, since_us, cost_micro), 1..120)
}

pub fn rates() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "1/m",
        "30/m",
        "7/h",
        "1/d",
        "3",
        "1000",
        "0.7/s",
        "1/7ms",
        "10/3s",
        "1e9",
        "2.10000000001e-9/ms",
        "5@10s",
        "100@d",
        "3@h+05:30",
        "9@w",
        "2@mo",
        "2@mo+14d-05:00",
        "9@w+6d",
        "5@3mo",
    ])
}

pub fn log(calls: &[Call]) -> Log {
    let (mut log, mut at_us) = (Log::default(), START_US);
    for (key, since_us, cost_micro) in calls {
        at_us += since_us;
        log.push(&[*key], at_us, *cost_micro).expect("few");
    }
    log.sort();
    log
}

/// Returns the limit, unless it refills for more than a century.
fn limit(capacity_micro: i64, rate: &Rate) -> Option<Named<Limit>> {
    Some(Named { name: String::new(), value: Limit::new(capacity_micro, *rate)? })
}

proptest! {
    #[test]
    fn the_least_capacity_denies_nothing_and_a_millionth_less_denies(calls in calls(), rate in rates()) {
        let (log, rate) = (log(&calls), Rate::parse(rate.as_bytes()).expect("a rate"));
        for events in log.by_key() {
            let needed = needed_micro(&rate, events);
            let denied = |capacity_micro| {
                let limits = [limit(capacity_micro, &rate)?];
                Some(decisions(&limits, events).filter(|decision| decision.allowed == 0).count())
            };
            prop_assert!(denied(needed).is_none_or(|denied| denied == 0));
            prop_assert!(needed == 0 || denied(needed - 1).is_none_or(|denied| denied > 0));
        }
    }

    #[test]
    fn a_capacity_of_the_table_denies_as_many_keys_as_it_says_and_one_token_less_denies_more(
        calls in calls(), keys in 1..300usize, rate in rates()
    ) {
        let (mut log, mut at_us) = (Log::default(), START_US);
        for (place, (_, since_us, cost_micro)) in calls.iter().cycle().take(4 * keys).enumerate() {
            at_us += since_us;
            log.push(format!("{}", place * place % keys).as_bytes(), at_us, *cost_micro).expect("few");
        }
        log.sort();
        let rate: Named<Rate> = rate.parse().expect("a rate");
        let table = Table::new(&log, std::slice::from_ref(&rate));
        let denied = |capacity: i64| {
            let limits = [limit(capacity * 1_000_000, &rate.value)?];
            Some(Replay::new(&log, &limits, |number| number.to_string()).keys_denied)
        };
        for (part, capacity) in table.denied.iter().zip(&table.rows[0].capacities) {
            let keys = part.keys as u64;
            prop_assert!(denied(*capacity).is_none_or(|denied| denied <= keys));
            prop_assert!(*capacity == 0 || denied(capacity - 1).is_none_or(|denied| denied > keys));
        }
    }
}

#[test]
fn the_rates_of_a_table_span_what_the_log_holds() {
    // One request a minute for a day, and once ten in a second.
    let mut calls: Vec<Call> = vec![(0, 60_000_000, 1_000_000); 1440];
    calls.extend([(0, 100_000, 1_000_000); 10]);
    let table = Table::new(&log(&calls), &[]);
    let names: Vec<&str> = table.rows.iter().map(|row| row.rate.name.as_str()).collect();
    assert_eq!(names, ["1/m", "2/m", "5/m", "10/m", "20/m"]);
}
