//! Long lives: what a write loses adds up, and has to stay within the bound however long it does.

use super::exact::{Bucket, Limit, Operation, MILLION};
use tokenbucket::bucket::Change;

/// Takes at moments that leave all kinds of fractions behind.
///
/// The exact bucket is kept in parts of a micro-token, which are whole at this rate, so that this takes seconds.
struct LongRun {
    rate: &'static str,
    cost_micro: i64,
    /// The same rate: so many parts of a micro-token per microsecond.
    parts_per_us: i64,
    /// So many parts make a micro-token.
    parts: i64,
    /// What a write may lose.
    lost_parts: i64,
}

impl LongRun {
    /// Walks until so many takes were due by a model that decides for itself, from a bucket that never fills up again, so
    /// that what is lost adds up.
    fn walk(&self, takes: i64) {
        let start_us = 1_700_000_000_000_000;
        let (mut now_us, mut written_at_us, mut due_at_us) = (start_us, start_us, start_us);
        let limit = Limit::new("1e6", self.rate).module();
        let mut stored = Bucket { level_micro: 0, refilled_at_us: start_us };
        let take = Operation::Take { cost_micro: self.cost_micro };
        let cost = self.cost_micro * self.parts;
        let (mut exact, mut own, mut granted, mut due) = (0i64, 0i64, 0i64, 0i64);
        let mut random = fastrand::Rng::with_seed(1);
        while due < takes {
            // Often enough that there is seldom more than a take to grant.
            now_us += random.i64(0..cost / self.parts_per_us * 39 / 20);
            own += (now_us - due_at_us) * self.parts_per_us;
            due_at_us = now_us;
            if own >= cost {
                own -= cost;
                due += 1;
            }
            if let Change::Store { bucket, .. } = limit.decide(Some(stored), take, now_us).unwrap().change {
                stored = bucket;
                exact += (now_us - written_at_us) * self.parts_per_us - cost;
                written_at_us = now_us;
                granted += 1;
                assert!(exact >= 0, "granted more than there was after {granted} takes");
            }
            assert!(granted <= due, "granted {granted} takes where the model grants {due}");
        }
        let carried = (written_at_us - stored.refilled_at_us) * self.parts_per_us;
        let (drift, bound) = (exact - stored.level_micro * self.parts - carried, granted * self.lost_parts);
        assert!((0..=bound).contains(&drift), "lost {drift} of a bound of {bound} at {}", self.rate);
        // What was lost may be all that is missing for the next.
        assert!(due == granted || (due - granted - 1) * cost < bound, "{granted} of {due} at {}", self.rate);
    }
}

/// At less than a token a second, a write loses less than what flows in a microsecond; at a whole rate, nothing.
#[test]
fn millions_of_takes_drift_by_less_than_the_bound() {
    LongRun { rate: "3.7", cost_micro: MILLION, parts_per_us: 37, parts: 10, lost_parts: 10 }
        .walk(10_000_000);
    LongRun { rate: "1000/h", cost_micro: MILLION / 10, parts_per_us: 5, parts: 18, lost_parts: 5 }
        .walk(1_000_000);
    LongRun { rate: "180/m", cost_micro: MILLION, parts_per_us: 3, parts: 1, lost_parts: 0 }.walk(1_000_000);
}
