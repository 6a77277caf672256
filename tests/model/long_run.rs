//! Long lives: what a write loses adds up, and has to stay within the bound however long it does.

use super::exact::{Bucket, Limit, Operation, MILLION};
use tokenbucket::bucket::Change;

/// Takes at moments that leave all kinds of fractions behind.
///
/// The exact bucket is kept in parts of a micro-token, which are whole at this rate, so that this takes seconds.
struct LongRun {
    limit: Limit,
    cost_micro: i64,
    /// The rate: so many parts of a micro-token per microsecond.
    parts_per_us: i64,
    /// So many parts make a micro-token.
    parts: i64,
    longest_pause_us: i64,
}

/// What came of a long run.
#[derive(Debug)]
struct Drift {
    granted: i64,
    /// What a model that decides for itself granted.
    due: i64,
    /// Parts of a micro-token by which the module's level is below the exact one.
    parts: i64,
}

impl LongRun {
    /// Walks until so many takes were due, from a bucket that never fills up again, so that what is lost adds up.
    fn walk(&self, takes: i64) -> Drift {
        let start_us = 1_700_000_000_000_000;
        let (mut now_us, mut written_at_us, mut due_at_us) = (start_us, start_us, start_us);
        let limit = self.limit.module();
        let mut stored = Bucket { level_micro: 0, refilled_at_us: start_us };
        let take = Operation::Take { cost_micro: self.cost_micro };
        let cost = self.cost_micro * self.parts;
        let (mut exact, mut own, mut drift) = (0i64, 0i64, Drift { granted: 0, due: 0, parts: 0 });
        let mut random = fastrand::Rng::with_seed(1);
        while drift.due < takes {
            now_us += random.i64(0..self.longest_pause_us);
            own += (now_us - due_at_us) * self.parts_per_us;
            due_at_us = now_us;
            if own >= cost {
                own -= cost;
                drift.due += 1;
            }
            if let Change::Store { bucket, .. } = limit.decide(Some(stored), take, now_us).unwrap().change {
                stored = bucket;
                exact += (now_us - written_at_us) * self.parts_per_us - cost;
                written_at_us = now_us;
                drift.granted += 1;
                assert!(exact >= 0, "granted more than there was after {drift:?}");
            }
            assert!(drift.granted <= drift.due, "granted more often than the model: {drift:?}");
        }
        let carried = (written_at_us - stored.refilled_at_us) * self.parts_per_us;
        Drift { parts: exact - stored.level_micro * self.parts - carried, ..drift }
    }
}

impl LongRun {
    /// Takes of so many millionths of a token at `parts_per_us` by `parts`.
    fn new(limit: Limit, cost_micro: i64, [parts_per_us, parts]: [i64; 2], longest_pause_us: i64) -> Self {
        Self { limit, cost_micro, parts_per_us, parts, longest_pause_us }
    }
}

#[test]
fn ten_million_takes_at_3_7_a_second_drift_by_less_than_the_bound() {
    let run = LongRun::new(Limit::new("1e6", "3.7"), MILLION, [37, 10], 530_000);
    let drift = run.walk(10_000_000);
    let bound = drift.granted * run.parts;
    assert!((0..=bound).contains(&drift.parts), "{drift:?}");
    assert!((drift.due - drift.granted - 1) * run.cost_micro * run.parts <= bound, "{drift:?}");
}

/// At less than a token a second, a write loses less than what flows in a microsecond.
#[test]
fn a_million_takes_at_1000_an_hour_drift_by_less_than_a_microsecond_each() {
    let run = LongRun::new(Limit::new("1e5", "1000/h"), MILLION / 10, [5, 18], 700_000);
    let drift = run.walk(1_000_000);
    assert!((0..=drift.granted * run.parts_per_us).contains(&drift.parts), "{drift:?}");
}

#[test]
fn a_million_takes_at_a_whole_rate_do_not_drift() {
    let drift = LongRun::new(Limit::new("1e6", "180/m"), MILLION, [3, 1], 650_000).walk(1_000_000);
    assert_eq!((drift.parts, drift.granted), (0, drift.due));
}
