//! Reserve and Commit, on real servers.

use std::sync::Arc;
use std::time::Duration;

use tokenbucket_client::OnError;
use tokenbucket_gate::counters::Counters;
use tokenbucket_gate::decide::{Decider, Policy, Refusal};
use tokenbucket_gate::limits::Limits;
use tokenbucket_gate::messages::{self, Code, CommitRequest, Request, ReserveRequest, ReserveResponse};

use crate::servers::{ask, wait_for, Cluster, Server, READY_WITHIN};
use crate::{connect, decider, descriptor, hits, limits, policy, request};

/// Nothing flows in while a test runs.
const LIMITS: &str = "domain: shop
descriptors:
  - {key: a, rate_limit: {unit: month, requests_per_unit: 1000}}
  - {key: b, rate_limit: {unit: month, requests_per_unit: 100}}
  - {key: shadow, rate_limit: {unit: month, requests_per_unit: 100}, shadow_mode: true}
  - {key: q1, rate_limit: {unit: month, requests_per_unit: 100}, quota_mode: true}
  - {key: q2, rate_limit: {unit: month, requests_per_unit: 100}, quota_mode: true}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: nothing, rate_limit: {unit: month, requests_per_unit: 0}}
  - {key: instead, rate_limit: {unit: month, requests_per_unit: 1000, replaces: [{name: old}]}}
  - {key: old, rate_limit: {unit: month, requests_per_unit: 10, name: old}}
  - {key: small, rate_limit: {unit: month, requests_per_unit: 100, replaces: [{name: large}]}}
  - {key: large, rate_limit: {unit: month, requests_per_unit: 1000, name: large}}
";

/// A gate, as its services use it.
struct Gate {
    decider: Decider,
    counters: Arc<Counters>,
    limits: Limits,
}

impl Gate {
    fn with(server: &tokenbucket_client::Server, policy: Policy) -> Self {
        let (decider, counters) = decider(server, policy);
        Self { decider, counters, limits: limits(LIMITS) }
    }

    fn new(server: &Server) -> Self {
        Self::with(&connect(server), policy())
    }

    async fn try_reserve(&self, keys: &[&str], amount: u64, ms: u64) -> Result<ReserveResponse, Refusal> {
        let ttl = messages::Duration { seconds: 0, nanos: i32::try_from(ms * 1_000_000).unwrap_or(i32::MAX) };
        let Request { domain, descriptors, .. } = request(keys.iter().map(|key| descriptor(key)));
        let asked = ReserveRequest { domain, descriptors, amount, ttl: (ms > 0).then_some(ttl) };
        self.decider.reserve(Some(&self.limits), asked).await
    }

    /// The id of a reservation of the longest time, if the request may pass.
    async fn reserve(&self, keys: &[&str], amount: u64) -> Option<String> {
        let reserved = self.try_reserve(keys, amount, 0).await.expect("a decision");
        (reserved.code() == Code::Ok).then_some(reserved.reservation_id)
    }

    async fn try_commit(&self, keys: &[&str], id: &str, used: u64) -> Result<bool, Refusal> {
        let Request { domain, descriptors, .. } = request(keys.iter().map(|key| descriptor(key)));
        let asked = CommitRequest { domain, descriptors, reservation_id: id.to_owned(), actual_amount: used };
        self.decider.commit(Some(&self.limits), asked).await
    }

    async fn commit(&self, keys: &[&str], id: &str, used: u64) -> bool {
        self.try_commit(keys, id, used).await.expect("a decision")
    }

    fn metric(&self, name: &str) -> u64 {
        let line = format!("ratelimit_service_{name}{{domain=\"shop\"}} ");
        let text = self.counters.render();
        text.lines().find_map(|text| text.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
    }
}

fn start() -> (Server, Gate) {
    let server = Server::start();
    let gate = Gate::new(&server);
    (server, gate)
}

fn bucket(key: &str) -> String {
    format!("shop|{{{key}=v}}")
}

/// What is left of a bucket of this capacity.
fn left_of(server: &Server, key: &str, capacity: u32) -> i64 {
    let rate = format!("{capacity}/30d");
    ask::<Vec<i64>>(server, &["TB.PEEK", &bucket(key), &capacity.to_string(), &rate, "0"])[1]
}

fn left(server: &Server, key: &str) -> i64 {
    left_of(server, key, if key == "a" { 1000 } else { 100 })
}

fn command_stats(server: &Server) -> String {
    ask::<String>(server, &["INFO", "commandstats"]).to_lowercase()
}

/// Id, amount and time of each hold.
fn holds(server: &Server, key: &str) -> Vec<(String, String, u64)> {
    ask(server, &["TB.HOLDS", &bucket(key)])
}

#[tokio::test]
async fn a_commit_refunds_what_was_not_used_and_charges_what_was_used_beyond() {
    let (server, gate) = start();
    let id = gate.reserve(&["a"], 300).await.unwrap();
    assert_eq!(left(&server, "a"), 700);
    assert!(gate.commit(&["a"], &id, 100).await);
    assert_eq!(left(&server, "a"), 900);
    let id = gate.reserve(&["a"], 100).await.unwrap();
    assert!(gate.commit(&["a"], &id, 250).await);
    assert_eq!(left(&server, "a"), 650);
    // A model that failed.
    let id = gate.reserve(&["a"], 100).await.unwrap();
    assert!(gate.commit(&["a"], &id, 0).await);
    assert_eq!(left(&server, "a"), 650);
    let stats = ["reserved_tokens", "committed_tokens", "underestimated_tokens", "overestimated_tokens"];
    assert_eq!(stats.map(|stat| gate.metric(stat)), [500, 350, 150, 300]);
    let stats = command_stats(&server);
    for command in ["tb.hold:calls=3,", "tb.settle:calls=3,"] {
        assert!(stats.contains(command), "{stats}");
    }
}

/// What is counted is what one bucket holds: of all that a call has, the largest.
#[tokio::test]
async fn metrics_count_what_is_held() {
    let server = Server::start();
    for (keys, amount, used, counted) in [
        // The large limit is replaced.
        (["small", "large"], 400, 20, [50, 20, 0, 30]),
        // Two descriptors of one bucket hold twice the amount.
        (["a", "a"], 40, 50, [80, 100, 20, 0]),
    ] {
        let gate = Gate::new(&server);
        let id = gate.reserve(&keys, amount).await.unwrap();
        assert!(gate.commit(&keys, &id, used).await);
        let stats = ["reserved_tokens", "committed_tokens", "underestimated_tokens", "overestimated_tokens"];
        assert_eq!(stats.map(|stat| gate.metric(stat)), counted, "{keys:?}");
    }
}

#[tokio::test]
async fn commits_at_once_leave_a_bounded_debt() {
    let (server, gate) = start();
    for _ in 0..5 {
        let ids = (0..96).map(|_| gate.try_reserve(&["a"], 10, 0));
        let ids =
            futures_util::future::join_all(ids).await.into_iter().map(|reply| reply.unwrap().reservation_id);
        let ids: Vec<String> = ids.collect();
        let commits = ids.iter().map(|id| gate.commit(&["a"], id, 1_000_000_000));
        assert!(futures_util::future::join_all(commits).await.iter().all(|is_released| *is_released));
        assert_eq!(left(&server, "a"), -1000);
        ask::<()>(&server, &["DEL", &bucket("a")]);
    }
}

/// A bucket that has all the holds that it may have is over its limit, for shadows too, which pass.
#[tokio::test]
async fn a_bucket_has_a_bounded_number_of_reservations() {
    let (server, gate) = start();
    ask::<()>(&server, &["CONFIG", "SET", "tokenbucket.max-holds", "2"]);
    for keys in [&["b"][..], &["a", "b"]] {
        let ids = [gate.reserve(&["b"], 1).await, gate.reserve(&["b"], 1).await].map(Option::unwrap);
        let denied = gate.try_reserve(keys, 1, 0).await.unwrap();
        assert_eq!((denied.code(), &*denied.reservation_id), (Code::OverLimit, ""));
        assert_eq!((holds(&server, "b").len(), holds(&server, "a").len()), (2, 0));
        for id in ids {
            assert!(gate.commit(&["b"], &id, 0).await);
        }
    }
    let text = gate.counters.render();
    assert!(text.contains("over_limit{domain=\"shop\",key1=\"b\"} 2\n"), "{text}");
    for _ in 0..3 {
        assert!(gate.reserve(&["shadow"], 1).await.is_some());
    }
}

/// Refuses some commands, or no longer.
fn permit(server: &Server, commands: &[&str], may: char) {
    let commands = commands.iter().map(|command| format!("{may}{command}"));
    let words: Vec<String> =
        ["ACL", "SETUSER", "default"].map(str::to_owned).into_iter().chain(commands).collect();
    ask::<()>(server, &words.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The reservation is over, and the report of what was used fails: the gateway commits again.
#[tokio::test]
async fn an_expired_reservation_is_reported_once_redis_accepts_it() {
    let (server, gate) = start();
    let id = gate.try_reserve(&["a"], 300, 50).await.unwrap().reservation_id;
    wait_for("the end", READY_WITHIN, async || left(&server, "a") == 1000).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    permit(&server, &["tb.reserve"], '-');
    for _ in 0..2 {
        assert!(gate.try_commit(&["a"], &id, 100).await.is_err());
    }
    permit(&server, &["tb.reserve"], '+');
    for _ in 0..2 {
        assert!(!gate.commit(&["a"], &id, 100).await);
    }
    assert_eq!(left(&server, "a"), 900);
    assert_eq!(["expired_tokens", "committed_tokens"].map(|stat| gate.metric(stat)), [300, 0]);
}

/// Holds that a hung Redis makes after the policy has let their requests pass.
#[tokio::test]
async fn holds_that_come_too_late_are_released() {
    let server = Server::start();
    let client = connect(&server).with_timeout(Duration::from_millis(100));
    let gate = Gate::with(&client, Policy { on_error: OnError::Open, ..policy() });
    gate.reserve(&["a"], 0).await;
    server.signal("STOP");
    let replies = futures_util::future::join_all((0..40).map(|_| gate.reserve(&["a"], 10))).await;
    assert_eq!(replies, vec![Some(String::new()); 40]);
    server.signal("CONT");
    wait_for("the holds", READY_WITHIN, async || command_stats(&server).contains("tb.hold:calls=40,")).await;
    wait_for("their release", READY_WITHIN, async || left(&server, "a") == 1000).await;
    assert_eq!(holds(&server, "a").len(), 0);
}

#[tokio::test]
async fn a_second_commit_charges_nothing() {
    let server = Server::start();
    let (gate, other) = (Gate::new(&server), Gate::new(&server));
    let id = gate.reserve(&["a"], 300).await.unwrap();
    // At another gate than it was reserved, and then at both.
    assert!(other.commit(&["a"], &id, 100).await);
    for again in [&gate, &other, &gate] {
        assert!(!again.commit(&["a"], &id, 100).await);
    }
    assert_eq!(left(&server, "a"), 900);
    // All at once.
    let id = gate.reserve(&["a"], 300).await.unwrap();
    let commits = [&gate, &other, &gate, &other].map(|gate| gate.commit(&["a"], &id, 100));
    let released = futures_util::future::join_all(commits).await;
    assert_eq!(released.iter().filter(|released| **released).count(), 1);
    assert_eq!(left(&server, "a"), 800);
}

#[tokio::test]
async fn a_gate_that_has_not_read_the_limit_yet_ends_no_reservation() {
    let (server, gate) = start();
    let mut late = Gate::new(&server);
    let id = gate.reserve(&["a"], 300).await.unwrap();
    late.limits = limits("domain: shop");
    assert!(!late.commit(&["a"], &id, 100).await);
    late.limits = limits(LIMITS);
    assert!(late.commit(&["a"], &id, 100).await);
    assert_eq!(left(&server, "a"), 900);
}

#[tokio::test]
async fn all_limits_reserve_or_none() {
    let (server, gate) = start();
    let id = gate.reserve(&["a", "b"], 40).await.unwrap();
    for key in ["a", "b"] {
        let held = holds(&server, key);
        assert_eq!((held.len(), &held[0].0, &*held[0].1), (1, &id, "40"));
    }
    assert!(command_stats(&server).contains("tb.mhold:calls=1,"));
    assert!(id.len() == 64 && gate.reserve(&["a"], 1).await.unwrap() != id);
    assert!(gate.reserve(&["a", "b"], 40).await.is_some());
    let denied = gate.try_reserve(&["a", "b"], 40, 0).await.unwrap();
    assert_eq!((denied.code(), &*denied.reservation_id), (Code::OverLimit, ""));
    assert_eq!((left(&server, "a"), left(&server, "b")), (919, 20));
    assert!(gate.reserve(&["a", "nothing"], 1).await.is_none());
    assert_eq!(left(&server, "a"), 919);
}

#[tokio::test]
async fn amounts_and_times_are_bounded() {
    let (server, gate) = start();
    let id = gate.reserve(&["a", "b"], u64::MAX).await.unwrap();
    assert_eq!((left(&server, "a"), left(&server, "b")), (500, 50));
    let (_, _, ms) = holds(&server, "a")[0];
    assert!((50_000..=60_000).contains(&ms), "{ms}");
    assert!(gate.commit(&["a", "b"], &id, 0).await);
    // Two descriptors of one bucket do not reserve twice the most.
    assert!(gate.reserve(&["b", "b"], 40).await.is_some());
    assert_eq!(left(&server, "b"), 50);
    for seconds in [-1, 3600, i64::MAX] {
        let Request { domain, descriptors, .. } = request([descriptor("a")]);
        let ttl = Some(messages::Duration { seconds, nanos: 0 });
        let asked = ReserveRequest { domain, descriptors, amount: 1, ttl };
        gate.decider.reserve(Some(&gate.limits), asked).await.unwrap();
    }
    assert!(holds(&server, "a").iter().all(|(_, _, ms)| *ms <= 60_000));
}

#[tokio::test]
async fn no_amount_asks_as_a_check_does() {
    let (server, gate) = start();
    let check = async || {
        let asked = request([descriptor("b")]);
        gate.decider.check(Some(&gate.limits), &asked).await.unwrap().overall_code()
    };
    assert_eq!(gate.reserve(&["b"], 0).await.as_deref(), Some(""));
    assert_eq!((check().await, ask::<u64>(&server, &["DBSIZE"])), (Code::Ok, 0));
    let report = request([hits("b", 100)]);
    gate.decider.report(Some(&gate.limits), &report).await.unwrap();
    assert_eq!((check().await, left(&server, "b")), (Code::OverLimit, 0));
    assert!(gate.reserve(&["b"], 0).await.is_none());
    let Request { domain, descriptors, .. } = request([descriptor("b")]);
    let asked = ReserveRequest { domain, descriptors, ..ReserveRequest::default() };
    let with_headers = Policy { limit_response_headers_enabled: true, ..policy() };
    let with_headers = Gate::with(&connect(&server), with_headers);
    let reserved = with_headers.decider.reserve(Some(&gate.limits), asked).await.unwrap();
    let headers = reserved.response_headers_to_add.iter().map(|header| (&*header.key, &*header.value));
    assert_eq!(headers.collect::<Vec<_>>()[..2], [("RateLimit-Limit", "100"), ("RateLimit-Remaining", "0")]);
}

#[tokio::test]
async fn without_a_reservation_a_commit_is_a_report_of_bounded_debt() {
    let (server, gate) = start();
    let huge = format!("{:0>32}-{:x}-1", "1", 1);
    let made_up = format!("{:032x}{:016x}{:016x}", 1, 1, u64::MAX);
    for (id, used, then) in
        [("", 100, 900), ("none", 50, 850), (&*huge, 100, 750), ("1-2-3", 0, 750), (&*made_up, 50, 700)]
    {
        assert!(!gate.commit(&["a"], id, used).await);
        assert_eq!(left(&server, "a"), then, "{id}");
    }
    assert_eq!(gate.metric("expired_tokens"), 500, "more than a reservation holds");
    assert!(!gate.commit(&["a"], "", u64::MAX).await);
    assert_eq!(left(&server, "a"), -1000);
    let id = gate.reserve(&["b"], 50).await.unwrap();
    assert!(gate.commit(&["b"], &id, u64::MAX).await);
    assert_eq!(left(&server, "b"), -100);
    // It denies nothing.
    let response = gate.decider.report(Some(&gate.limits), &request([descriptor("b")])).await.unwrap();
    assert_eq!(response.overall_code(), Code::Ok);
}

#[tokio::test]
async fn shadows_and_quotas_decide_alone() {
    let (server, gate) = start();
    for _ in 0..2 {
        assert!(gate.reserve(&["shadow", "q1"], 50).await.is_some_and(|id| !id.is_empty()));
    }
    // The shadow is over and passes. It reserves nothing, so what was used is charged.
    let id = gate.reserve(&["shadow", "a"], 50).await.unwrap();
    assert!(gate.commit(&["shadow", "a"], &id, 30).await);
    assert_eq!((left(&server, "shadow"), left(&server, "a")), (-30, 970));
    assert_eq!(gate.reserve(&["shadow"], 50).await.as_deref(), Some(""), "nothing is reserved");
    // One of two quotas is left, then none.
    assert!(gate.reserve(&["q1", "q2"], 50).await.is_some());
    assert!(gate.reserve(&["q1", "q2"], 50).await.is_some());
    assert!(gate.reserve(&["q1", "q2"], 50).await.is_none());
    // What was reserved beside a limit that denies is released.
    ask::<()>(&server, &["DEL", &bucket("shadow")]);
    gate.reserve(&["b"], 50).await.unwrap();
    gate.reserve(&["b"], 50).await.unwrap();
    assert!(gate.reserve(&["shadow", "b"], 50).await.is_none());
    wait_for("the release", READY_WITHIN, async || left(&server, "shadow") == 100).await;
    assert_eq!(gate.reserve(&["free", "unknown"], 50).await.as_deref(), Some(""));
    let id = gate.reserve(&["instead", "old"], 50).await.unwrap();
    assert_eq!((left_of(&server, "instead", 1000), left_of(&server, "old", 10)), (950, 10));
    assert!(gate.commit(&["instead", "old"], &id, 1).await);
    assert_eq!(left_of(&server, "instead", 1000), 999);
}

#[tokio::test]
async fn a_commit_while_redis_is_away_is_sent_again_and_charges_once() {
    let server = Server::start();
    let client = || connect(&server).with_timeout(Duration::from_millis(100));
    for (on_error, left_after) in [(OnError::Error, 900), (OnError::Open, 800), (OnError::Closed, 700)] {
        let gate = Gate::with(&client(), Policy { on_error, ..policy() });
        let [first, second] = [gate.reserve(&["a"], 100).await, gate.reserve(&["a"], 100).await];
        server.signal("STOP");
        // The reply to the first is lost. The second finds Redis away.
        for id in [first, second].map(Option::unwrap) {
            for _ in 0..2 {
                let used = 50;
                match gate.try_commit(&["a"], &id, used).await {
                    Err(Refusal::Redis(_)) if on_error == OnError::Error => {}
                    Ok(is_released) if on_error != OnError::Error => assert!(!is_released),
                    reply => panic!("{reply:?}"),
                }
            }
        }
        server.signal("CONT");
        wait_for("both", READY_WITHIN, async || gate.metric("commits_sent_again") == 2).await;
        assert_eq!((left(&server, "a"), holds(&server, "a").len()), (left_after, 0), "{on_error:?}");
        assert_eq!(gate.metric("committed_tokens"), 100);
    }
}

#[tokio::test]
async fn a_commit_is_sent_again_until_its_reservation_is_over() {
    let mut server = Server::start();
    let client = connect(&server).with_timeout(Duration::from_millis(100));
    let gate = Gate::with(&client, policy());
    let id = gate.try_reserve(&["a"], 100, 900).await.unwrap().reservation_id;
    server.kill();
    wait_for("the outage", READY_WITHIN, async || gate.try_reserve(&["a"], 1, 1).await.is_err()).await;
    assert!(gate.try_commit(&["a"], &id, 50).await.is_err());
    assert_eq!(gate.metric("commits_lost"), 0);
    wait_for("its end", READY_WITHIN, async || gate.metric("commits_lost") == 1).await;
    // It was never sent, so the gateway may commit again, as late as it is.
    server.start_again();
    wait_for("Redis", READY_WITHIN, async || gate.try_commit(&["a"], &id, 50).await.is_ok()).await;
    assert!(!gate.commit(&["a"], &id, 50).await);
    assert_eq!(left(&server, "a"), 950);
}

#[tokio::test]
async fn a_reservation_that_nobody_waits_for_is_released() {
    let (server, gate) = start();
    gate.reserve(&["a"], 0).await;
    server.signal("STOP");
    let dropped = tokio::time::timeout(Duration::from_millis(50), gate.reserve(&["a"], 100)).await;
    assert!(dropped.is_err());
    server.signal("CONT");
    wait_for("the release", READY_WITHIN, async || {
        command_stats(&server).contains("tb.settle:calls=1,") && left(&server, "a") == 1000
    })
    .await;
}

#[tokio::test]
async fn on_a_cluster_all_nodes_reserve_or_none() {
    let cluster = Cluster::start();
    let gate = Gate::with(&crate::cluster::connect(&cluster), policy());
    let keys = ["a", "b", "shadow", "q1"];
    let node = |key: &str| &cluster.nodes[cluster.node_of(&bucket(key))];
    let nodes: std::collections::HashSet<usize> =
        keys.iter().map(|key| cluster.node_of(&bucket(key))).collect();
    assert!(nodes.len() > 1, "all keys are on one node");
    let id = gate.reserve(&keys, 50).await.unwrap();
    assert!(keys.iter().all(|key| holds(node(key), key)[0].0 == id));
    assert!(gate.commit(&keys, &id, 20).await);
    assert_eq!(keys.map(|key| left(node(key), key)), [980, 80, 80, 80]);
    assert!(gate.reserve(&["b"], 50).await.is_some());
    assert!(gate.reserve(&keys, 50).await.is_none());
    wait_for("the release", READY_WITHIN, async || keys.map(|key| left(node(key), key)) == [980, 30, 80, 80])
        .await;
}

/// One node ends its hold, and the other refuses for a while.
#[tokio::test]
async fn on_a_cluster_each_node_is_charged_once() {
    let cluster = Cluster::start();
    let gate = Gate::with(&crate::cluster::connect(&cluster), policy());
    let keys = ["a", "b"];
    let nodes = keys.map(|key| &cluster.nodes[cluster.node_of(&bucket(key))]);
    let left = || [left(nodes[0], "a"), left(nodes[1], "b")];
    assert_ne!(nodes[0].port, nodes[1].port, "all keys are on one node");
    for (turn, (refusing, settling)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        let before = left();
        let id = gate.reserve(&keys, 10).await.unwrap();
        permit(nodes[refusing], &["tb.settle", "tb.msettle"], '-');
        for _ in 0..2 {
            assert!(gate.try_commit(&keys, &id, 20).await.is_err());
        }
        assert_eq!(left()[settling], before[settling] - 20);
        permit(nodes[refusing], &["tb.settle", "tb.msettle"], '+');
        let done = turn as u64 + 1;
        wait_for("the charge", READY_WITHIN, async || gate.metric("commits_sent_again") == done).await;
        let released = gate.commit(&keys, &id, 20).await;
        assert_eq!((released, left()), (false, before.map(|level| level - 20)));
    }
}
