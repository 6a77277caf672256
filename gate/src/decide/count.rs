//! Counts the hits of a request on its limits.

use super::outcome::Outcome;
use crate::counters::add;

/// Counts the hits of one descriptor. A charge into debt straddles the limit: each side gets its part. A denied call took
/// nothing, so all of it is over.
pub(super) fn count(outcome: &Outcome<'_>, near_limit_ratio: f64) {
    let (asked, counters) = (outcome.asked, &outcome.asked.counters);
    if outcome.is_uncounted {
        return;
    }
    add(&counters.total_hits, asked.hits);
    let Some(left) = outcome.left_before else { return };
    let left = u64::try_from(left).unwrap_or(0);
    let within = if outcome.is_taken { asked.hits.min(left) } else { 0 };
    if outcome.is_over {
        let over = asked.hits - within;
        add(&counters.over_limit, over);
        if outcome.decision.remembered {
            add(&counters.over_limit_with_local_cache, over);
        }
        if asked.rule.shadow_mode {
            add(&counters.shadow_mode, over);
        }
    } else if outcome.is_taken {
        add(&counters.within_limit, asked.hits);
    }
    add(&counters.near_limit, near(outcome, left, within, near_limit_ratio));
}

/// Counts the hits `within` the limit that are beyond `NEAR_LIMIT_RATIO` of it, given what was `left` before.
fn near(outcome: &Outcome<'_>, left: u64, within: u64, near_limit_ratio: f64) -> u64 {
    let capacity = outcome.asked.rule.capacity as f32;
    let far = (capacity * near_limit_ratio as f32).floor();
    // Casts of floats saturate.
    let near = (capacity.floor() - far) as u64;
    within.saturating_sub(left.saturating_sub(near))
}
