//! Decides all requests again, by limits that they did not have.

use tokenbucket_core::bucket::{Bucket, Change, Decision, Limit, Operation};

use crate::log::{Event, Log};

const MINUTE_US: i64 = 60_000_000;
const HOUR_US: i64 = 60 * MINUTE_US;
const DAY_US: i64 = 24 * HOUR_US;
/// The keys that are named.
const MOST_NAMED: usize = 10;

/// What limits would have done.
#[derive(Default)]
pub struct Replayed {
    /// Requests that they deny.
    pub denied: u64,
    /// Keys of which they deny a request.
    pub keys: u64,
    /// The cost of all requests, and that of the allowed ones, in micro-tokens.
    pub cost_micro: i128,
    /// The cost of the allowed requests.
    pub passed_micro: i128,
    /// The length of a period: a minute, an hour or a day.
    pub period_us: i64,
    /// Where the first period begins.
    pub first_period_us: i64,
    /// Requests of each period, and those that are denied.
    pub periods: Vec<(u64, u64)>,
    /// The keys that are denied most.
    pub most_denied: Vec<Denied>,
}

/// A key that is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// Its number.
    pub key: u32,
    /// Its requests.
    pub requests: u64,
    /// Those that are denied.
    pub denied: u64,
    /// The time of the first of these.
    pub first_us: i64,
    /// The longest time from a denial to the moment at which the bucket would have allowed the request, if only denials are in
    /// between. `None` for ever, if the cost is above the capacity.
    pub longest_us: Option<i64>,
}

/// The buckets of one key, one for each limit.
struct Buckets<'a> {
    limits: &'a [Limit],
    stored: Vec<Option<Bucket>>,
    changes: Vec<Change>,
}

impl<'a> Buckets<'a> {
    fn new(limits: &'a [Limit]) -> Self {
        Self { limits, stored: vec![None; limits.len()], changes: Vec::new() }
    }

    /// Decides a request by all limits, as `TB.MTAKE` does: all of them take the cost, or none does.
    fn take(&mut self, event: &Event) -> Decision {
        let operation = Operation::Take { cost_micro: event.cost_micro };
        self.changes.clear();
        let outcomes = self.limits.iter().zip(&self.stored).filter_map(|(limit, stored)| {
            // Only a charge can fail.
            let outcome = limit.decide(*stored, operation, event.at_us).ok()?;
            self.changes.push(outcome.change);
            Some(outcome.decision)
        });
        let decision = Decision::binding(outcomes);
        if decision.allowed > 0 {
            for (stored, change) in self.stored.iter_mut().zip(&self.changes) {
                match change {
                    Change::Keep => {}
                    Change::Store { bucket, .. } => *stored = Some(*bucket),
                    Change::Clear => *stored = None,
                }
            }
        }
        decision
    }
}

/// Decides the requests of one key, which are sorted.
pub fn decisions<'a>(limits: &'a [Limit], events: &'a [Event]) -> impl Iterator<Item = Decision> + 'a {
    let mut buckets = Buckets::new(limits);
    events.iter().map(move |event| buckets.take(event))
}

/// Replays the log, in which a request must pass all limits.
#[must_use]
pub fn replay(log: &Log, limits: &[Limit]) -> Replayed {
    let (first_us, last_us) = log.span_us();
    let period_us = match last_us.saturating_sub(first_us) {
        ..=7_200_000_000 => MINUTE_US,
        span if span <= 14 * DAY_US => HOUR_US,
        _ => DAY_US,
    };
    let first_period_us = first_us - first_us % period_us;
    let count = last_us.saturating_sub(first_period_us) / period_us + 1;
    let periods = vec![(0, 0); usize::try_from(count).unwrap_or(0)];
    let mut all = Replayed { period_us, first_period_us, periods, ..Replayed::default() };
    for events in log.by_key() {
        let denied = all.add(events, decisions(limits, events));
        all.denied += denied.denied;
        all.keys += u64::from(denied.denied > 0);
        keep_most(&mut all.most_denied, denied, |denied| denied.denied);
    }
    all
}

impl Replayed {
    /// Returns the length of a period in words.
    #[must_use]
    pub fn period(&self) -> &'static str {
        match self.period_us {
            MINUTE_US => "minute",
            HOUR_US => "hour",
            _ => "day",
        }
    }

    /// Counts the decisions on the requests of one key.
    fn add(&mut self, events: &[Event], decisions: impl Iterator<Item = Decision>) -> Denied {
        let key = events.first().map_or(0, |event| event.key);
        let mut all = Denied { key, longest_us: Some(0), ..Denied::default() };
        let mut since_us = None;
        for (event, decision) in events.iter().zip(decisions) {
            let is_denied = decision.allowed == 0;
            let period = usize::try_from((event.at_us - self.first_period_us) / self.period_us);
            if let Some((requests, denied)) = period.ok().and_then(|period| self.periods.get_mut(period)) {
                *requests += 1;
                *denied += u64::from(is_denied);
            }
            self.cost_micro += i128::from(event.cost_micro);
            all.requests += 1;
            if !is_denied {
                self.passed_micro += i128::from(event.cost_micro);
                since_us = None;
                continue;
            }
            if all.denied == 0 {
                all.first_us = event.at_us;
            }
            all.denied += 1;
            let since_us = *since_us.get_or_insert(event.at_us);
            let shut_out_us = event.at_us - since_us + decision.retry_after_ms.saturating_mul(1000);
            let is_for_ever = decision.retry_after_ms < 0;
            all.longest_us = all.longest_us.filter(|_| !is_for_ever).map(|longest| longest.max(shut_out_us));
        }
        all
    }
}

/// What changes if one set of limits takes the place of another.
#[derive(Default)]
pub struct Versus {
    /// Keys that both deny, only the first, and only the second.
    pub keys: [u64; 3],
    /// Keys of whose requests one denies more than the other: the key, its requests, and the denied ones of both.
    pub changes: Vec<(u32, u64, [u64; 2])>,
}

/// Compares two sets of limits.
#[must_use]
pub fn versus(log: &Log, one: &[Limit], other: &[Limit]) -> Versus {
    let mut all = Versus::default();
    for events in log.by_key() {
        let [first, second] = [one, other].map(|limits| count_denied(limits, events));
        let [both, only_first, only_second] = &mut all.keys;
        match (first > 0, second > 0) {
            (true, true) => *both += 1,
            (true, false) => *only_first += 1,
            (false, true) => *only_second += 1,
            (false, false) => {}
        }
        let key = events.first().map_or(0, |event| event.key);
        let change = (key, events.len() as u64, [first, second]);
        keep_most(&mut all.changes, change, |(_, _, [first, second])| first.abs_diff(*second));
    }
    all
}

fn count_denied(limits: &[Limit], events: &[Event]) -> u64 {
    decisions(limits, events).filter(|decision| decision.allowed == 0).count() as u64
}

/// Adds an item to the largest ones, which are few and sorted; the first of equal ones stays first. Leaves out those of 0.
fn keep_most<T>(items: &mut Vec<T>, item: T, size: impl Fn(&T) -> u64) {
    let place = items.partition_point(|other| size(other) >= size(&item));
    if place < MOST_NAMED && size(&item) > 0 {
        items.insert(place, item);
        items.truncate(MOST_NAMED);
    }
}
