//! Requests, decided by a simulated server whose time stands still, and by real ones.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[path = "../../../clients/rust/tests/servers.rs"]
mod servers;

mod cluster;
mod metrics;
mod replies;
mod reservations;
mod traps;

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::google::protobuf::UInt64Value;
use tokenbucket_client::Server;
use tokenbucket_gate::counters::Counters;
use tokenbucket_gate::decide::{Decider, Policy};
use tokenbucket_gate::limits::{File, Limits, Matched, Options, Rule};
use tokenbucket_gate::messages::{Code, Descriptor, Entry, Request, Response};
use tokenbucket_gate::settings::Arguments;

/// All that is off unless somebody asks for it.
pub fn policy() -> Policy {
    Arguments::read(["gate".into()]).expect("defaults").settings.policy
}

pub fn decider(server: &Server, policy: Policy) -> (Decider, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    (Decider::new(server.clone(), policy, counters.clone()), counters)
}

/// A server, and a decider before it.
pub fn start() -> (servers::Server, Decider) {
    let server = servers::Server::start();
    let (decider, _) = decider(&connect(&server), policy());
    (server, decider)
}

/// A slow machine is no outage.
pub fn connect(server: &servers::Server) -> Server {
    patient(Server::connect(server.url()))
}

pub fn patient(server: redis::RedisResult<Server>) -> Server {
    let server = server.expect("URLs");
    server.with_timeout(Duration::from_secs(10)).with_retry_every(Duration::from_millis(20))
}

pub fn limits(text: &str) -> Limits {
    let file = File { name: "shop.yaml".to_owned(), text: text.to_owned() };
    Limits::read(&[file], &Options::default()).expect("limits")
}

/// `count` an hour: nothing flows in while a test runs.
pub fn hourly(count: u32) -> Rule {
    let text = format!(
        "domain: shop\ndescriptors: [{{key: k, rate_limit: {{unit: hour, requests_per_unit: {count}}}}}]"
    );
    let matched = limits(&text).find("shop", &descriptor("k")).expect("a limit");
    Arc::into_inner(matched.rule).expect("a rule that nobody else has")
}

pub fn quota(count: u32) -> Rule {
    Rule { quota_mode: true, ..hourly(count) }
}

pub fn shadow(count: u32) -> Rule {
    Rule { shadow_mode: true, ..hourly(count) }
}

pub fn rule(rule: Rule, key: &str) -> Option<Matched> {
    let bucket = format!("shop|{{{key}=v}}");
    Some(Matched { rule: Arc::new(rule), bucket, metric: format!("shop.{key}_v") })
}

pub fn descriptor(key: &str) -> Descriptor {
    let entries = vec![Entry { key: key.to_owned(), value: "v".to_owned() }];
    Descriptor { entries, ..Descriptor::default() }
}

/// A descriptor with `hits_addend` of its own.
pub fn hits(key: &str, hits: u64) -> Descriptor {
    Descriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(key) }
}

pub fn request(descriptors: impl IntoIterator<Item = Descriptor>) -> Request {
    Request { domain: "shop".to_owned(), descriptors: descriptors.into_iter().collect(), hits_addend: 0 }
}

/// Decides on one descriptor for each limit.
pub async fn decide(decider: &Decider, found: &[Option<Matched>], hits: &[Option<u64>]) -> Response {
    let descriptors = hits.iter().map(|one| one.map_or(descriptor("k"), |count| self::hits("k", count)));
    decider.decide_by(found.to_vec(), &request(descriptors)).await.expect("a decision")
}

/// Decides on a request that asks for so many hits.
pub async fn take(decider: &Decider, found: &[Option<Matched>], hits_addend: u32) -> Response {
    let asked = Request { hits_addend, ..request(vec![descriptor("k"); found.len()]) };
    decider.decide_by(found.to_vec(), &asked).await.expect("a decision")
}

/// The code and what is left of each descriptor, and whether all of it is over the limit.
pub fn summary(response: &Response) -> (Vec<(bool, u32)>, bool) {
    let is_over = |code: i32| code == i32::from(Code::OverLimit);
    let each = response.statuses.iter().map(|status| (is_over(status.code), status.limit_remaining));
    (each.collect(), is_over(response.overall_code))
}
