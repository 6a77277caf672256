//! Plans which buckets a request asks about, in which calls. Sends nothing.

use std::sync::Arc;
use std::time::Duration;

use super::reservation::Reservation;
use super::Policy;
use crate::counters::{Counters, OfLimit};
use crate::limits::{Matched, Rule};
use crate::messages::{Descriptor, Request};

/// The most tokens that the module takes in one call.
pub(super) const MOST_HITS: u64 = 1_000_000_000_000;

/// The calls of a request, and which of them decide each descriptor.
pub(super) struct Plan {
    /// One for each descriptor, in their order.
    pub(super) dispositions: Vec<Disposition>,
    /// Independent of each other; all are sent at once.
    pub(super) calls: Vec<Call>,
}

/// How one descriptor is decided.
pub(super) enum Disposition {
    /// It has no limit, or another limit of the request replaces its own.
    Passes,
    Unlimited,
    Asked(Asked),
}

/// A descriptor with a limit.
pub(super) struct Asked {
    pub(super) rule: Arc<Rule>,
    pub(super) counters: Arc<OfLimit>,
    pub(super) hits: u64,
    /// Says that this limit denies nothing by itself when it is over.
    pub(super) is_quota: bool,
    /// The indexes of the call and of its part.
    pub(super) place: (usize, usize),
    /// Hits of earlier descriptors on the same bucket.
    pub(super) earlier: u64,
}

pub(super) struct Call {
    pub(super) kind: Kind,
    /// Only [`Kind::Take`] and [`Kind::Hold`] have several.
    pub(super) parts: Vec<Part>,
    /// Says that it is refunded if another plain call of the request is denied. Quotas, shadows and charges are not plain.
    pub(super) is_plain: bool,
}

#[derive(Clone)]
pub(super) struct Part {
    pub(super) rule: Arc<Rule>,
    /// Without the prefix.
    pub(super) bucket: String,
    pub(super) cost: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Takes if every bucket holds enough.
    Take,
    /// Charges whatever the level, into a bounded debt.
    PayAfterwards,
    Give,
    /// Returns whether every bucket holds enough.
    Peek,
    /// Holds if every bucket holds enough.
    Hold(Lease),
}

/// The name and the duration of a reservation's holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) reservation: Reservation,
    pub(super) ttl: Duration,
}

/// What a plan does with the hits of a request.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Takes them now or not at all.
    Takes,
    /// Takes them, or charges reports and what is paid afterwards. Says whether the request may be a report.
    Decides {
        may_be_report: bool,
    },
    Checks,
    Reports,
    Holds(Lease),
    /// Ends a reservation that held them. Only the buckets of the calls matter, not their kind.
    Settles,
}

/// The inputs of a plan, beside the request.
pub(super) struct Terms<'a> {
    pub(super) policy: &'a Policy,
    pub(super) counters: &'a Counters,
    pub(super) way: Way,
    /// Replaces the hits of the request and its descriptors.
    pub(super) amount: Option<u64>,
    /// Says that the buckets of a call must share a hash tag.
    pub(super) is_cluster: bool,
}

impl Plan {
    /// Plans a request; `found` has the limit of each descriptor.
    pub(super) fn new(request: &Request, mut found: Vec<Option<Matched>>, terms: &Terms<'_>) -> Self {
        drop_replaced(&mut found);
        let mut plan = Self { dispositions: Vec::with_capacity(found.len()), calls: Vec::new() };
        for (descriptor, matched) in request.descriptors.iter().zip(found) {
            let disposition = match matched {
                None => Disposition::Passes,
                Some(matched) if matched.rule.unlimited => Disposition::Unlimited,
                Some(matched) => {
                    let hits = terms.amount.unwrap_or_else(|| hits(request, descriptor));
                    Disposition::Asked(plan.add(matched, descriptor, hits, terms))
                }
            };
            plan.dispositions.push(disposition);
        }
        plan
    }

    /// Returns whether there are quotas, and all of them deny: `denies` is asked with the place of a descriptor. In `quota_mode`,
    /// what has no limit is a quota that is left.
    pub(super) fn all_quotas_deny(&self, quota_mode: bool, denies: impl Fn(usize, &Asked) -> bool) -> bool {
        let mut has_quota = false;
        for (place, disposition) in self.dispositions.iter().enumerate() {
            let is_left = match disposition {
                Disposition::Passes => quota_mode,
                Disposition::Asked(asked) if asked.is_quota => {
                    has_quota = true;
                    !denies(place, asked)
                }
                Disposition::Unlimited | Disposition::Asked(_) => false,
            };
            if is_left {
                return false;
            }
        }
        has_quota
    }

    fn add(&mut self, matched: Matched, descriptor: &Descriptor, hits: u64, terms: &Terms<'_>) -> Asked {
        let Matched { rule, bucket, metric } = matched;
        let counters = terms.counters.of_limit(&metric);
        let is_quota = rule.quota_mode || terms.policy.quota_mode;
        let kind = terms.kind(&rule, descriptor, is_quota);
        let most = terms.most_hits(&rule);
        let hits = hits.min(most);
        let part = Part { rule: Arc::clone(&rule), bucket, cost: hits };
        let (place, earlier) = if terms.is_plain(kind, &rule, is_quota) {
            let split_by = terms.is_cluster.then_some(terms.policy.cache_key_prefix.as_str());
            self.add_plain(kind, part, most, split_by)
        } else {
            self.calls.push(Call { kind, parts: vec![part], is_plain: false });
            ((self.calls.len() - 1, 0), 0)
        };
        Asked { rule, counters, hits, is_quota, place, earlier }
    }

    /// Adds a part to the first call that it may share. Returns the place and the cost of earlier descriptors on the same bucket.
    /// `most` bounds their sum; `split_by` is the prefix of all keys if calls need a common hash tag.
    fn add_plain(
        &mut self,
        kind: Kind,
        part: Part,
        most: u64,
        split_by: Option<&str>,
    ) -> ((usize, usize), u64) {
        let shares = |call: &Call| {
            let first = call.parts.first().map_or("", |first| first.bucket.as_str());
            call.is_plain && split_by.is_none_or(|prefix| have_same_tag(prefix, first, &part.bucket))
        };
        let Some((place, call)) = self.calls.iter_mut().enumerate().find(|(_, call)| shares(call)) else {
            self.calls.push(Call { kind, parts: vec![part], is_plain: true });
            return ((self.calls.len() - 1, 0), 0);
        };
        let same = call.parts.iter_mut().enumerate().find(|(_, other)| other.bucket == part.bucket);
        if let Some((index, same)) = same {
            let earlier = same.cost;
            same.cost = same.cost.saturating_add(part.cost).min(most);
            if part.rule.capacity < same.rule.capacity {
                // One of them is an override: both hold if the smaller one does.
                same.rule = part.rule;
            }
            return ((place, index), earlier);
        }
        call.parts.push(part);
        ((place, call.parts.len() - 1), 0)
    }
}

/// Drops each limit that another one of the request replaces.
pub(super) fn drop_replaced(found: &mut [Option<Matched>]) {
    if found.iter().flatten().all(|matched| matched.rule.replaces.is_empty()) {
        return;
    }
    let replaced: Vec<String> =
        found.iter().flatten().flat_map(|matched| matched.rule.replaces.iter().cloned()).collect();
    for matched in found {
        let is_replaced =
            |matched: &Matched| !matched.rule.unlimited && replaced.contains(&matched.rule.name);
        if matched.as_ref().is_some_and(is_replaced) {
            *matched = None;
        }
    }
}

/// Returns the hits of a descriptor. 0 asks without taking, but only in the descriptor: in the request, Envoy sends it for 1.
fn hits(request: &Request, descriptor: &Descriptor) -> u64 {
    descriptor.hits_addend.as_ref().map_or(request.hits_addend.max(1).into(), |own| own.value)
}

/// Returns the most that one reservation holds of a bucket: a part of the capacity, and at least one token.
pub(super) fn most_held(rule: &Rule, policy: &Policy) -> u64 {
    // Casts of floats saturate.
    let part = (rule.capacity * policy.reservation_max_fraction) as u64;
    part.clamp(1, MOST_HITS)
}

impl Terms<'_> {
    /// Returns the most hits that one call has of a bucket.
    fn most_hits(&self, rule: &Rule) -> u64 {
        match self.way {
            Way::Holds(_) => most_held(rule, self.policy),
            // What is charged beyond the hold makes no more debt than a report.
            Way::Settles => (rule.capacity as u64).saturating_add(rule.most_debt).min(MOST_HITS),
            _ => MOST_HITS,
        }
    }

    fn is_plain(&self, kind: Kind, rule: &Rule, is_quota: bool) -> bool {
        let decides_alone = is_quota || rule.shadow_mode;
        match kind {
            Kind::Take => !decides_alone || matches!(self.way, Way::Settles),
            Kind::Hold(_) => !decides_alone,
            Kind::PayAfterwards | Kind::Give | Kind::Peek => false,
        }
    }

    fn kind(&self, rule: &Rule, descriptor: &Descriptor, is_quota: bool) -> Kind {
        match self.way {
            Way::Takes | Way::Settles => Kind::Take,
            Way::Decides { may_be_report } => kind_of_hits(may_be_report || is_quota, rule, descriptor),
            Way::Checks => Kind::Peek,
            Way::Reports if self.amount.is_none() && descriptor.is_negative_hits => Kind::Give,
            Way::Reports => Kind::PayAfterwards,
            Way::Holds(lease) => Kind::Hold(lease),
        }
    }
}

/// Returns whether a request of Envoy's may report the cost of a response. Nothing on the wire says so, but each descriptor of
/// a report has hits of its own.
pub(super) fn may_be_report(request: &Request) -> bool {
    request.descriptors.iter().all(|descriptor| descriptor.hits_addend.is_some())
}

/// Charges hits of a descriptor's own that may be a report. A denial would lose them: the tokens are used.
fn kind_of_hits(may_be_report: bool, rule: &Rule, descriptor: &Descriptor) -> Kind {
    let own = descriptor.hits_addend.as_ref().map(|hits| hits.value);
    match (own, rule.paid_afterwards) {
        (Some(0), _) => Kind::Take,
        _ if descriptor.is_negative_hits => Kind::Give,
        (_, Some(true)) => Kind::PayAfterwards,
        (Some(_), None) if may_be_report => Kind::PayAfterwards,
        _ => Kind::Take,
    }
}

fn have_same_tag(prefix: &str, one: &str, other: &str) -> bool {
    if !prefix.contains('{') {
        return hash_tag(one) == hash_tag(other);
    }
    hash_tag(&format!("{prefix}{one}")) == hash_tag(&format!("{prefix}{other}"))
}

/// Returns the part of a key that decides its slot in a cluster.
fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}
