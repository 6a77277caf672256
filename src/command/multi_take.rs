//! `TB.MTAKE numkeys key capacity rate cost […]`: several buckets, all or nothing.
//!
//! Requests a minute and tokens a minute, a user's limit and the tenant's: taking one before knowing the other
//! would have to be undone, and undoing is a race.

use super::road::{self, Trace};
use crate::bucket::{Change, Decision, Outcome};
use crate::error::Error;
use crate::redis::spec::{ArgumentSpec, Audience, Command, Keys, Kind, Spec, CAPACITY, COST, KEY, RATE};
use crate::redis::{count, now_us, replicate, Access, Argument, BucketKey, Call};
use crate::request::{self, Request};

pub(crate) struct MultiTake;

impl Command for MultiTake {
    const SPEC: Spec = Spec {
        name: c"TB.MTAKE",
        summary: c"Takes from several buckets, each with its own limit and cost, all or nothing",
        complexity: c"O(N) where N is the number of buckets",
        since: c"0.1.0",
        arity: -6,
        audience: Audience::Writers,
        keys: Keys::CountedEveryFourth,
        arguments: &[
            ArgumentSpec::required(c"numkeys", Kind::Whole),
            ArgumentSpec::required(c"bucket", Kind::Groups(&[KEY, CAPACITY, RATE, COST])),
        ],
    };

    fn run(call: Call) -> Result<(), Error> {
        let requests = request::multi_take(call.arguments())?;
        let now_us = now_us();
        let mut takes = Vec::with_capacity(requests.len());
        for request in &requests {
            takes.push(Take::evaluate(call, request, now_us)?);
        }
        let allowed = takes.iter().all(Take::is_allowed);
        for take in &mut takes {
            take.settle(allowed, now_us)?;
        }
        commit(&call, &mut takes, now_us);
        let outcomes: Vec<Outcome> = takes.into_iter().map(|take| take.outcome).collect();
        for (request, outcome) in requests.iter().zip(&outcomes) {
            road::tell(&call, request, outcome);
        }
        count().decision(allowed);
        reply(&call, allowed, &outcomes);
        Ok(())
    }
}

/// What one of the buckets has to say.
struct Take<'call, 'request> {
    request: &'request Request<'call, Argument<'call>>,
    key: BucketKey<'call>,
    outcome: Outcome,
}

impl<'call, 'request> Take<'call, 'request> {
    fn evaluate(
        call: Call<'call>,
        request: &'request Request<'call, Argument<'call>>,
        now_us: i64,
    ) -> Result<Self, Error> {
        let key = BucketKey::open(call, *request.key, Access::Write)?;
        let outcome = road::decide(&key, request, now_us)?;
        Ok(Self { request, key, outcome })
    }

    fn is_allowed(&self) -> bool {
        self.outcome.decision.allowed != 0
    }

    /// Turns what this bucket would do alone into what it does together with the others.
    fn settle(&mut self, all_allowed: bool, now_us: i64) -> Result<(), Error> {
        if all_allowed {
            road::admit(&self.key, &mut self.outcome)?;
        } else if self.is_allowed() {
            let decision = self.request.limit.describe(self.key.bucket(), now_us);
            self.outcome = Outcome { decision, change: Change::Keep, granted_micro: 0 };
        }
        Ok(())
    }
}

/// Writes all that is to be written, as one unit for replicas.
fn commit(call: &Call, takes: &mut [Take], now_us: i64) {
    let written: Vec<_> = takes
        .iter_mut()
        .filter_map(|take| match road::write(&mut take.key, &take.outcome, now_us) {
            Trace::Written(written) => Some(written),
            Trace::None | Trace::Deleted => None,
        })
        .collect();
    if !written.is_empty() {
        replicate(call, &written);
    }
}

fn reply(call: &Call, allowed: bool, outcomes: &[Outcome]) {
    call.reply_array(5);
    call.reply_decision_fields(&binding(allowed, outcomes));
    call.reply_array(outcomes.len());
    for outcome in outcomes {
        call.reply_decision(&outcome.decision);
    }
}

/// The decision that binds the caller: the tightest of each field over all buckets.
fn binding(allowed: bool, outcomes: &[Outcome]) -> Decision {
    let fields = |field: fn(&Decision) -> i64| outcomes.iter().map(move |outcome| field(&outcome.decision));
    let never = fields(|decision| decision.retry_after_ms).any(|wait_ms| wait_ms < 0);
    let longest_ms = fields(|decision| decision.retry_after_ms).max().unwrap_or(0);
    Decision {
        allowed: i64::from(allowed),
        remaining: fields(|decision| decision.remaining).min().unwrap_or(0),
        retry_after_ms: if never { -1 } else { longest_ms },
        reset_after_ms: fields(|decision| decision.reset_after_ms).max().unwrap_or(0),
    }
}
