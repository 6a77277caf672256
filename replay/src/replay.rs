//! Decides all requests again, by limits that they did not have.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde::Serialize;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Limit, Operation};

use crate::log::{Event, Log};
use crate::options::Named;

const DAY_US: i64 = 86_400_000_000;
/// Lengths of periods, and the longest logs for which they are taken.
const PERIODS: [(&str, i64, i64); 3] =
    [("minute", 60_000_000, DAY_US / 12), ("hour", DAY_US / 24, 14 * DAY_US), ("day", DAY_US, i64::MAX)];
/// The keys that are named.
const MOST_NAMED: usize = 10;

/// What limits would have done. A request must pass all of them.
#[derive(Serialize)]
pub struct Replay {
    pub limits: Vec<Named<Limit>>,
    /// Requests that they deny.
    pub denied: u64,
    /// Keys of which they deny a request.
    pub keys_denied: u64,
    /// The cost of all requests, in tokens.
    cost: f64,
    /// The cost of the allowed requests, in tokens.
    cost_passed: f64,
    /// `minute`, `hour` or `day`.
    period: &'static str,
    periods: Vec<Period>,
    /// The keys that are denied most.
    most_denied: Vec<Denied>,
    /// How many requests of each key are denied.
    #[serde(skip)]
    denied_by_key: Vec<u32>,
}

/// The requests of a minute, an hour or a day, and those that are denied.
#[derive(Clone, Copy, Serialize)]
struct Period {
    from: Timestamp,
    requests: u64,
    denied: u64,
}

#[derive(Serialize)]
struct Denied {
    key: String,
    requests: usize,
    denied: u32,
    first: Timestamp,
    /// The longest time from a denial to the moment at which the bucket would have allowed the request, if only denials are in
    /// between. `None` for ever, if the cost is above the capacity.
    longest_shut_out_s: Option<f64>,
}

/// Decides the requests of one key, which are sorted, as `TB.MTAKE` does: all buckets take the cost, or none does.
pub fn decisions<'a>(limits: &'a [Named<Limit>], events: &'a [Event]) -> impl Iterator<Item = Decision> + 'a {
    let mut buckets: Vec<Option<Bucket>> = vec![None; limits.len()];
    let mut changes = Vec::new();
    events.iter().map(move |event| {
        let operation = Operation::Take { cost_micro: event.cost_micro };
        changes.clear();
        let outcomes = limits.iter().zip(&buckets).filter_map(|(named, bucket)| {
            // Only a charge can fail.
            let outcome = named.value.decide(*bucket, operation, event.at_us).ok()?;
            changes.push(outcome.change);
            Some(outcome.decision)
        });
        let decision = Decision::binding(outcomes);
        if decision.allowed > 0 {
            for (bucket, change) in buckets.iter_mut().zip(&changes) {
                match change {
                    Change::Keep => {}
                    Change::Store { bucket: stored, .. } => *bucket = Some(*stored),
                    Change::Clear => *bucket = None,
                }
            }
        }
        decision
    })
}

impl Replay {
    /// Replays the log. `name` returns how a key is shown.
    pub fn new(log: &Log, limits: &[Named<Limit>], name: impl Fn(u32) -> String) -> Self {
        let (first_us, last_us) = log.span_us();
        let span_us = last_us.saturating_sub(first_us);
        let period = PERIODS.into_iter().find(|(.., longest_us)| span_us <= *longest_us);
        let (period, period_us, _) = period.unwrap_or(PERIODS[2]);
        let first_period = first_us / period_us;
        let periods = (first_period..=last_us / period_us).map(|number| Period {
            from: Timestamp::from_microsecond(number * period_us).unwrap_or_default(),
            requests: 0,
            denied: 0,
        });
        let mut periods: Vec<Period> = periods.collect();
        let (mut cost_micro, mut passed_micro, mut denied_by_key) = (0, 0, Vec::new());
        for events in log.by_key() {
            let mut denied = 0;
            for (event, decision) in events.iter().zip(decisions(limits, events)) {
                let is_denied = decision.allowed == 0;
                let place = usize::try_from(event.at_us / period_us - first_period);
                if let Some(period) = place.ok().and_then(|place| periods.get_mut(place)) {
                    period.requests += 1;
                    period.denied += u64::from(is_denied);
                }
                denied += u32::from(is_denied);
                cost_micro += i128::from(event.cost_micro);
                passed_micro += i128::from(event.cost_micro) * i128::from(!is_denied);
            }
            denied_by_key.push(denied);
        }
        let most_denied = most(&denied_by_key, |denied| *denied);
        let most_denied = most_denied.map(|number| Denied::new(name(number), limits, log.of_key(number)));
        Self {
            limits: limits.to_vec(),
            denied: denied_by_key.iter().copied().map(u64::from).sum(),
            keys_denied: denied_by_key.iter().filter(|denied| **denied > 0).count() as u64,
            cost: cost_micro as f64 / 1e6,
            cost_passed: passed_micro as f64 / 1e6,
            period,
            periods,
            most_denied: most_denied.collect(),
            denied_by_key,
        }
    }
}

impl Denied {
    fn new(key: String, limits: &[Named<Limit>], events: &[Event]) -> Self {
        let (mut denied, mut first_us, mut since_us, mut longest_us) = (0, None, None, Some(0));
        for (event, decision) in events.iter().zip(decisions(limits, events)) {
            if decision.allowed > 0 {
                since_us = None;
                continue;
            }
            denied += 1;
            first_us.get_or_insert(event.at_us);
            let shut_out_us = event.at_us - *since_us.get_or_insert(event.at_us)
                + decision.retry_after_ms.saturating_mul(1000);
            let is_for_ever = decision.retry_after_ms < 0;
            longest_us = longest_us.filter(|_| !is_for_ever).map(|longest: i64| longest.max(shut_out_us));
        }
        Self {
            key,
            requests: events.len(),
            denied,
            first: Timestamp::from_microsecond(first_us.unwrap_or(0)).unwrap_or_default(),
            longest_shut_out_s: longest_us.map(|us| us as f64 / 1e6),
        }
    }
}

/// What changes if one set of limits takes the place of another.
#[derive(Serialize)]
pub struct Versus {
    keys: KeysDenied,
    /// The keys of which they deny the most different numbers of requests.
    changes: Vec<Changed>,
}

/// How many keys both sets of limits deny, and only one of them.
#[derive(Default, Serialize)]
struct KeysDenied {
    both: u64,
    only_first: u64,
    only_second: u64,
}

/// A key that is denied differently.
#[derive(Serialize)]
struct Changed {
    key: String,
    requests: usize,
    denied: (u32, u32),
}

impl Versus {
    /// Compares two replays of a log.
    pub fn new(log: &Log, one: &Replay, other: &Replay, name: impl Fn(u32) -> String) -> Self {
        let denied: Vec<(u32, u32)> =
            one.denied_by_key.iter().copied().zip(other.denied_by_key.iter().copied()).collect();
        let count = |is_counted: fn(&(u32, u32)) -> bool| {
            denied.iter().filter(|pair| is_counted(pair)).count() as u64
        };
        let keys = KeysDenied {
            both: count(|(first, second)| *first > 0 && *second > 0),
            only_first: count(|(first, second)| *first > 0 && *second == 0),
            only_second: count(|(first, second)| *first == 0 && *second > 0),
        };
        let changes = most(&denied, |(first, second)| first.abs_diff(*second)).filter_map(|number| {
            let denied = *denied.get(number as usize)?;
            Some(Changed { key: name(number), requests: log.of_key(number).len(), denied })
        });
        Self { keys, changes: changes.collect() }
    }
}

/// Returns the numbers of the items with the largest sizes above 0, at most ten. The first of equal ones comes first.
fn most<T>(items: &[T], size: impl Fn(&T) -> u32) -> impl Iterator<Item = u32> {
    let mut sizes: Vec<_> =
        items.iter().map(|item| Reverse(size(item))).zip(0..).filter(|(size, _)| size.0 > 0).collect();
    sizes.sort_unstable();
    sizes.into_iter().take(MOST_NAMED).map(|(_, number)| number)
}
