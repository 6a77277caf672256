//! Long lives: what a write loses adds up, and has to stay within the bound however long it does.

use super::model::{Bucket, Limit, Operation, MILLION};
use tokenbucket_core::bucket::Change;

/// Takes at moments that leave all kinds of fractions behind, from a bucket that never fills up again, so that what is
/// lost adds up.
///
/// So many micro-tokens flow in in so many microseconds. The exact bucket is kept in parts of a micro-token, which are
/// whole at this rate, so that this takes seconds.
fn walk(rate: &str, [micro, us]: [i64; 2], cost_micro: i64, takes: i64) {
    const START_US: i64 = 1_700_000_000_000_000;
    let cost_parts = cost_micro * us;
    // At less than a token a second, a write loses less than what flows in a microsecond; at a whole rate, nothing.
    let lost_parts = if us == 1 { 0 } else { micro.min(us) };
    let (limit, take) = (Limit::new("1e6", rate).module(), Operation::Take { cost_micro });
    let mut stored = Bucket { level_micro: 0, refilled_at_us: START_US };
    let (mut now_us, mut granted) = (START_US, 0);
    let mut random = fastrand::Rng::with_seed(1);
    while granted < takes {
        // Often enough that there is seldom more than a take to grant.
        now_us += random.i64(0..cost_parts / micro * 39 / 20);
        let exact_parts = (now_us - START_US) * micro - granted * cost_parts;
        if let Change::Store { bucket, .. } = limit.decide(Some(stored), take, now_us).unwrap().change {
            assert!(exact_parts >= cost_parts, "granted more than there was after {granted} takes at {rate}");
            (stored, granted) = (bucket, granted + 1);
        } else {
            let lacks_parts = cost_parts - exact_parts;
            assert!(
                lacks_parts > -granted * lost_parts,
                "denied what there was after {granted} takes at {rate}"
            );
        }
    }
    let exact_parts = (stored.refilled_at_us - START_US) * micro - granted * cost_parts;
    let (drift, bound) = (exact_parts - stored.level_micro * us, granted * lost_parts);
    assert!((0..=bound).contains(&drift), "lost {drift} of a bound of {bound} at {rate}");
}

#[test]
fn millions_of_takes_drift_by_less_than_the_bound() {
    walk("3.7", [37, 10], MILLION, 10_000_000);
    walk("1000/h", [5, 18], MILLION / 10, 1_000_000);
    walk("180/m", [3, 1], MILLION, 1_000_000);
}
