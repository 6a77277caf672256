//! Makes the reply to a request from the replies of Redis.

use super::headers::{headers, metadata};
use super::outcome::Outcome;
use super::plan::{Disposition, Plan};
use super::Policy;
use crate::messages::{Code, Request, Response, Status};

/// Returns the reply, and whether only `SHADOW_MODE` lets the request pass.
pub(super) fn reply(
    request: &Request,
    plan: &Plan,
    outcomes: &[Option<Outcome<'_>>],
    policy: &Policy,
) -> (Response, bool) {
    let pairs = plan.dispositions.iter().zip(outcomes);
    let statuses: Vec<Status> = pairs.map(|(disposition, outcome)| status(disposition, outcome)).collect();
    let is_over = is_over(plan, outcomes, policy);
    let is_shadowed = is_over && policy.shadow_mode;
    let overall = if is_over && !is_shadowed { Code::OverLimit } else { Code::Ok };
    let response_headers_to_add = match policy.headers() {
        Some(names) => headers(&names, &statuses, outcomes, overall == Code::OverLimit),
        None => Vec::new(),
    };
    let dynamic_metadata = policy.response_dynamic_metadata.then(|| metadata(request, outcomes));
    let response = Response {
        overall_code: overall.into(),
        statuses,
        response_headers_to_add,
        dynamic_metadata,
        ..Response::default()
    };
    (response, is_shadowed)
}

fn status(disposition: &Disposition, outcome: &Option<Outcome<'_>>) -> Status {
    match (disposition, outcome) {
        (Disposition::Unlimited, _) => {
            Status { code: Code::Ok.into(), limit_remaining: u32::MAX, ..Status::default() }
        }
        (_, Some(outcome)) => outcome.status(),
        (_, None) => Status { code: Code::Ok.into(), ..Status::default() },
    }
}

/// Returns whether the request is over: one plain limit over is enough, but all quotas must be over.
fn is_over(plan: &Plan, outcomes: &[Option<Outcome<'_>>], policy: &Policy) -> bool {
    outcomes.iter().flatten().any(|outcome| !outcome.asked.is_quota && outcome.denies())
        || plan.all_quotas_deny(policy.quota_mode, |place, _| {
            outcomes.get(place).and_then(Option::as_ref).is_some_and(Outcome::denies)
        })
}
