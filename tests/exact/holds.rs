//! Holds: amounts that are taken under a name, and come back at a moment unless they are settled before.

use super::limit::{End, Limit};
use super::Exact;
use std::collections::BTreeMap;

/// What is held of a bucket, by its id.
pub type Holds = BTreeMap<String, End>;

/// What has come back of holds by a moment, in micro-tokens.
pub fn ended(holds: &Holds, now_us: i64) -> Exact {
    holds.values().filter(|end| end.at_us <= now_us).map(|end| &end.micro).sum()
}

/// When holds end, the next to end first.
pub fn ends(holds: &Holds) -> Vec<End> {
    let mut ends: Vec<End> = holds.values().cloned().collect();
    ends.sort_by_key(|end| end.at_us);
    ends
}

/// What is wanted of a hold.
#[derive(Clone, Debug)]
pub enum Holding {
    Set { id: String, amount_micro: i64, ttl_ms: i64 },
    Settle { id: String, used_micro: i64 },
}

impl Holding {
    /// The whole call.
    pub fn words(&self, key: &str, limit: &Limit) -> String {
        match self {
            Self::Set { id, amount_micro, ttl_ms } => {
                format!("TB.HOLD {key} {} {amount_micro}e-6 {ttl_ms} {id}", limit.words)
            }
            Self::Settle { id, used_micro } => {
                format!("TB.SETTLE {key} {} {id} {used_micro}e-6", limit.words)
            }
        }
    }
}
