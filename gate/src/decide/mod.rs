//! Decides on requests.

mod ask;
mod causes;
mod commits;
mod count;
mod headers;
mod outcome;
mod plan;
mod recent;
mod refusal;
mod reply;
mod reservation;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokenbucket_client::{Error, Limit, Limiter, OnError, Options, Server};

use self::ask::Answer;
use self::causes::{problem_of, Causes};
use self::commits::{Commit, Commits, End};
use self::plan::{may_be_report, most_held, Kind, Lease, Plan, Terms, Way, MOST_HITS};
use self::recent::Recent;
pub use self::refusal::Refusal;
use self::reservation::Reservation;
use crate::counters::{add, Counters};
use crate::limits::yaml::shown;
use crate::limits::{Limits, Matched, Rule};
use crate::messages::{
    Code, CommitRequest, Descriptor, Entry, Request, ReserveRequest, ReserveResponse, Response,
};
pub use crate::settings::Policy;

/// Decides on requests; shared by all services.
pub struct Decider {
    server: Server,
    /// Has no limit of its own: each call sets one.
    limiter: Limiter,
    policy: Policy,
    counters: Arc<Counters>,
    commits: Arc<Commits>,
    causes: Arc<Causes>,
    /// Descriptors without a limit that were logged, by domain and keys. Callers make up any number of them.
    unlimited: Recent,
    gaps: Causes,
    has_seen_refund: AtomicBool,
}

/// The limit of each descriptor, in their order.
type Found = Vec<Option<Matched>>;

/// The most descriptors of a request.
pub(crate) const MOST_DESCRIPTORS: usize = 1000;

/// The most entries of all descriptors of a request together.
pub(crate) const MOST_ENTRIES: usize = 10_000;

/// The memory of a denial that is remembered.
const BYTES_OF_DENIAL: usize = 256;

/// The longest time that a bucket stays denied here after it was deleted or refunded elsewhere.
const REMEMBER_FOR: Duration = Duration::from_secs(5);

/// The pauses between attempts to reach Redis at the start: each is twice the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Decider {
    /// Creates a decider for this server and policy.
    pub fn new(server: Server, policy: Policy, counters: Arc<Counters>) -> Self {
        let options = Options::new()
            .prefix(&*policy.cache_key_prefix)
            .on_error(policy.on_error)
            .remember_denials(policy.local_cache_size_in_bytes / BYTES_OF_DENIAL)
            .remember_denials_for(REMEMBER_FOR);
        let limiter = Limiter::with_options(&server, no_limit(), options);
        let causes = Arc::<Causes>::default();
        Self {
            server,
            commits: Commits::new(limiter.clone(), policy.clone(), causes.clone()),
            limiter,
            policy,
            counters,
            causes,
            unlimited: Recent::new(),
            gaps: Causes::default(),
            has_seen_refund: AtomicBool::new(false),
        }
    }

    /// Decides on one request by these limits; `None` if none have been loaded.
    ///
    /// May be dropped at any await: loses what Redis then grants, and still charges what is paid afterwards.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn decide(&self, limits: Option<&Limits>, request: &Request) -> Result<Response, Refusal> {
        let _timing = self.counters.time_request();
        let (request, found) = self.found(limits, Cow::Borrowed(request))?;
        self.decide_by(found, &request).await
    }

    /// Decides on a request that reports nothing: takes its cost now or not at all.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn decide_now(&self, limits: Option<&Limits>, request: &Request) -> Result<Response, Refusal> {
        let _timing = self.counters.time_request();
        self.decide_on((Way::Takes, None), limits, request).await
    }

    /// Returns whether one more hit would pass, whatever the request says, and takes nothing.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn check(&self, limits: Option<&Limits>, request: &Request) -> Result<Response, Refusal> {
        self.decide_on((Way::Checks, Some(1)), limits, request).await
    }

    /// Charges what a request used, whatever is left.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn report(&self, limits: Option<&Limits>, request: &Request) -> Result<Response, Refusal> {
        let charged = self.decide_on((Way::Reports, None), limits, request).await?;
        // It denies nothing: the request is over.
        Ok(Response { overall_code: Code::Ok.into(), response_headers_to_add: Vec::new(), ..charged })
    }

    /// Reserves an amount under all limits of a request, or under none.
    ///
    /// May be dropped at any await: releases what Redis then holds.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn reserve(
        &self,
        limits: Option<&Limits>,
        asked: ReserveRequest,
    ) -> Result<ReserveResponse, Refusal> {
        let ReserveRequest { domain, descriptors, amount, ttl } = asked;
        let request = Request { domain, descriptors, hits_addend: 0 };
        let (request, mut found) = self.found(limits, Cow::Owned(request))?;
        if amount == 0 {
            let way = (Way::Checks, Some(1));
            let (Response { overall_code: code, response_headers_to_add, .. }, ..) =
                self.answer(way, found, &request).await?;
            return Ok(ReserveResponse { code, response_headers_to_add, ..ReserveResponse::default() });
        }
        let (_, held) = self.most_reserved(&mut found, amount);
        let ttl = ttl.as_ref().and_then(reservation::ttl).unwrap_or(Duration::MAX);
        let ttl = ttl.min(self.policy.reservation_max_ttl);
        let reservation = Reservation::new(held, ttl);
        let reservation =
            reservation.ok_or(Refusal::Service("no random numbers for a reservation".into()))?;
        let way = (Way::Holds(Lease { reservation, ttl }), Some(amount));
        let (response, plan, answers) = self.answer(way, found, &request).await?;
        let mut reserved = ReserveResponse {
            code: response.overall_code,
            response_headers_to_add: response.response_headers_to_add,
            ..ReserveResponse::default()
        };
        if reserved.code() != Code::Ok {
            ask::undo(&self.limiter, &plan.calls, answers);
        } else if answers.iter().any(|answer| answer.binding.allowed && !answer.binding.degraded) {
            add(&self.counters.of_reservations(&request.domain).reserved, reservation.amount());
            reserved.reservation_id = reservation.id();
        }
        Ok(reserved)
    }

    /// Ends a reservation with what was used, and returns whether it was there. Without one, charges like a report.
    ///
    /// Must not be dropped: the tokens are used, even if the proxy no longer waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn commit(&self, limits: Option<&Limits>, asked: CommitRequest) -> Result<bool, Refusal> {
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = asked;
        let request = Request { domain, descriptors, hits_addend: 0 };
        let (request, found) = self.found(limits, Cow::Owned(request))?;
        let Some(reservation) = Reservation::parse(&reservation_id) else {
            if actual_amount > 0 {
                // Boxed: seldom needed, and large.
                Box::pin(self.answer((Way::Reports, Some(actual_amount)), found, &request)).await?;
            }
            return Ok(false);
        };
        let Some(first) = self.commits.first(&reservation) else { return Ok(false) };
        let mut is_first = false;
        let reply = first.get_or_init(|| {
            is_first = true;
            self.end(reservation, actual_amount, found, &request)
        });
        reply.await.clone().map(|is_released| is_released && is_first)
    }

    /// Ends a reservation, and returns whether it was there.
    async fn end(
        &self,
        reservation: Reservation,
        amount: u64,
        mut found: Found,
        request: &Request,
    ) -> Result<bool, Refusal> {
        let (times, most) = self.most_reserved(&mut found, reservation.amount());
        let counters = if found.iter().any(Option::is_some) {
            self.counters.of_reservations(&request.domain)
        } else {
            Arc::default()
        };
        let Plan { calls, .. } = Plan::new(request, found, &self.terms(Way::Settles, Some(amount)));
        let used = amount.saturating_mul(times).min(MOST_HITS);
        let commit = Commit::new(reservation, used, calls, counters.clone());
        match self.commits.end(commit).await.map_err(|error| self.refuse(&error))? {
            End::Released => return Ok(true),
            End::EndedBefore => {}
            // Callers make up ids, but no more than a reservation holds.
            End::Expired => add(&counters.expired, reservation.amount().min(most)),
            End::Unsent => add(&self.counters.redis_errors, 1),
        }
        Ok(false)
    }

    /// Drops replaced limits. Returns the most descriptors that share a bucket, and the most that a reservation of this
    /// amount holds of one.
    fn most_reserved(&self, found: &mut Found, amount: u64) -> (u64, u64) {
        plan::drop_replaced(found);
        let mut shares = HashMap::<&str, (u64, &Rule)>::new();
        for matched in found.iter().flatten().filter(|matched| !matched.rule.unlimited) {
            shares.entry(&matched.bucket).or_insert((0, &matched.rule)).0 += 1;
        }
        let held =
            |(times, rule): &(u64, &Rule)| amount.saturating_mul(*times).min(most_held(rule, &self.policy));
        let times = shares.values().map(|(times, _)| *times).max().unwrap_or(1);
        (times, shares.values().map(held).max().unwrap_or(0))
    }

    /// Returns the limits of a request. Under a file of limitador's it has one descriptor for each, since all descriptors
    /// together have these limits.
    fn found<'r>(
        &self,
        limits: Option<&Limits>,
        request: Cow<'r, Request>,
    ) -> Result<(Cow<'r, Request>, Found), Refusal> {
        let limits = judge(limits, &request).inspect_err(|_| add(&self.counters.service_errors, 1))?;
        let Request { domain, descriptors, hits_addend } = &*request;
        if let Some(found) = limits.find_all(domain, descriptors) {
            let found: Found = found.map_err(|error| self.fail(error))?.into_iter().map(Some).collect();
            if found.is_empty() {
                self.note_unlimited(true, domain, descriptors.iter().flat_map(|one| &one.entries));
            }
            let descriptors = vec![Descriptor::default(); found.len()];
            let request = Request { domain: domain.clone(), descriptors, hits_addend: *hits_addend };
            return Ok((Cow::Owned(request), found));
        }
        let is_known = limits.has_domain(domain);
        let find = |descriptor: &Descriptor| {
            let found = limits.find(domain, descriptor);
            if found.is_none() {
                self.note_unlimited(is_known, domain, descriptor.entries.iter());
            }
            found
        };
        let found = descriptors.iter().map(find).collect();
        Ok((request, found))
    }

    /// Counts descriptors without a limit, and logs the first of each domain and keys: a name may be mistyped.
    fn note_unlimited<'e>(&self, is_known: bool, domain: &str, entries: impl Iterator<Item = &'e Entry>) {
        if !is_known {
            self.counters.domain_not_found(domain);
            if self.unlimited.insert(domain) {
                self.gaps.note(format!("no file has the domain '{}': its requests pass", shown(domain)));
            }
            return;
        }
        self.counters.descriptor_not_found(domain);
        let keys: Vec<&str> = entries.map(|entry| entry.key.as_str()).collect();
        if self.unlimited.insert(&(domain, &keys)) {
            let (domain, keys) = (shown(domain), shown(&keys.join(", ")));
            self.gaps.note(format!("domain '{domain}' has no limit for a descriptor of '{keys}': it passes"));
        }
    }

    /// Refuses a call for which an expression failed.
    fn fail(&self, error: String) -> Refusal {
        add(&self.counters.service_errors, 1);
        self.causes.note(format!("no decision: {error}"));
        Refusal::Service(error.into())
    }

    /// Decides on a request whose descriptors have these limits, in their order.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis is away or refuses.
    pub async fn decide_by(&self, found: Found, request: &Request) -> Result<Response, Refusal> {
        let way = Way::Decides { may_be_report: !self.policy.paid_beforehand && may_be_report(request) };
        self.answer((way, None), found, request).await.map(|(response, ..)| response)
    }

    async fn decide_on(
        &self,
        way: (Way, Option<u64>),
        limits: Option<&Limits>,
        request: &Request,
    ) -> Result<Response, Refusal> {
        let (request, found) = self.found(limits, Cow::Borrowed(request))?;
        self.answer(way, found, &request).await.map(|(response, ..)| response)
    }

    fn terms(&self, way: Way, amount: Option<u64>) -> Terms<'_> {
        let is_cluster = self.server.is_cluster();
        Terms { policy: &self.policy, counters: &self.counters, way, amount, is_cluster }
    }

    /// Returns the reply, the plan behind it and what Redis answered. An amount replaces all hits.
    async fn answer(
        &self,
        (way, amount): (Way, Option<u64>),
        found: Found,
        request: &Request,
    ) -> Result<(Response, Plan, Vec<Answer>), Refusal> {
        let plan = Plan::new(request, found, &self.terms(way, amount));
        self.warn_of_refunds(&plan);
        let answers = ask::ask(&self.limiter, &plan, self.policy.quota_mode).await;
        let answers = answers.map_err(|error| self.refuse(&error))?;
        if answers.iter().any(|answer| answer.binding.degraded) {
            add(&self.counters.redis_errors, 1);
        }
        let outcomes = outcome::outcomes(&plan, &answers);
        for outcome in outcomes.iter().flatten() {
            count::count(outcome, self.policy.near_limit_ratio);
        }
        let (response, is_shadowed) = reply::reply(request, &plan, &outcomes, &self.policy);
        drop(outcomes);
        add(&self.counters.global_shadow_mode, is_shadowed.into());
        Ok((response, plan, answers))
    }

    /// Counts and logs a request without a decision. The client logs when Redis goes away and when it is back.
    fn refuse(&self, error: &Error) -> Refusal {
        add(&self.counters.redis_errors, 1);
        if !matches!(error, Error::ServerAway(_)) {
            self.causes.log("no decision", error);
        }
        Refusal::Redis(problem_of(error))
    }

    fn warn_of_refunds(&self, plan: &Plan) {
        let has_refund = plan.calls.iter().any(|call| call.kind == Kind::Give);
        if has_refund && !self.has_seen_refund.swap(true, Ordering::Relaxed) {
            log::warn!("a proxy sends is_negative_hits: it also refunds denied requests, which took nothing");
        }
    }

    /// Waits until Redis has answered once.
    pub async fn warm_up(&self) {
        let limiter = Limiter::with_options(
            &self.server,
            no_limit(),
            Options::new().prefix(&*self.policy.cache_key_prefix).on_error(OnError::Error),
        );
        let mut pause = FIRST_PAUSE;
        // Takes nothing, and needs a server that decides.
        while let Err(error) = limiter.take("warm-up", 0).await {
            if is_about_key(&error) {
                // The user may only use keys of limits: Redis knows the command.
                break;
            }
            self.causes.log("waiting for Redis", &error);
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        if self.server.is_cluster() {
            // Spread over the nodes. One that is away does not delay the start.
            let names: Vec<String> = (0..64).map(|number| format!("warm-up {number}")).collect();
            join_all(names.iter().map(|name| limiter.take(name, 0))).await;
        }
    }
}

/// Returns whether Redis refuses a key to this user, which it does after looking up the command.
fn is_about_key(error: &Error) -> bool {
    let Error::Refused { error, .. } = error else { return false };
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM") && detail.contains("key")
}

/// Returns the limits, if the request is valid and limits are loaded.
fn judge<'a>(limits: Option<&'a Limits>, request: &Request) -> Result<&'a Limits, Refusal> {
    let descriptors = &request.descriptors;
    let mistake = if request.domain.is_empty() {
        "rate limit domain must not be empty"
    } else if descriptors.is_empty()
        && !limits.is_some_and(|limits| limits.takes_no_descriptors(&request.domain))
    {
        "rate limit descriptor list must not be empty"
    } else if descriptors.len() > MOST_DESCRIPTORS {
        "rate limit descriptor list must not have more than 1000 descriptors"
    } else if descriptors.iter().map(|descriptor| descriptor.entries.len()).sum::<usize>() > MOST_ENTRIES {
        "rate limit descriptors must not have more than 10000 entries"
    } else {
        return limits.ok_or(Refusal::Service("no rate limit configuration loaded".into()));
    };
    Err(Refusal::Service(mistake.into()))
}

/// Returns a limit in whose place each call sets its own.
fn no_limit() -> Limit {
    Limit::new(0, 1).unwrap_or_else(|_| unreachable!("a capacity and a rate"))
}
