//! Kuadrant's service: a budget of tokens that slow models share, over three gates.

use std::str::FromStr;
use std::time::Duration;

use futures_util::future::join_all;
use tokenbucket_gate::messages::{
    self, Code, CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use tokio::sync::watch;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::asks;
use crate::gate::{memory_mib, request, wait_until, Gate, Setup, PATIENCE};
use crate::sentinel::Sentinel;
use crate::servers::{ask, try_ask, Server};

/// Nothing flows in while a test runs.
const BUDGET: &str = "domain: llm
descriptors:
  - {key: user, rate_limit: {unit: month, requests_per_unit: 1000}}
";
const CAPACITY: usize = 1000;
const CALLERS: usize = 64;

/// What each caller reserves, and what its model uses.
const ESTIMATE: usize = 50;
const USED: usize = 30;

/// A gate as a client sees it.
#[derive(Clone)]
struct Client(Channel);

impl Client {
    fn of(gate: &Gate) -> Self {
        let url = format!("http://127.0.0.1:{}", gate.grpc);
        Self(Endpoint::new(url).expect("a URL").timeout(PATIENCE).connect_lazy())
    }

    async fn call<A, R>(&self, method: &str, asked: A) -> Result<R, Status>
    where
        A: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}");
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_str(&path).expect("a path");
        let reply = grpc.unary(Request::new(asked), path, ProstCodec::<A, R>::default()).await;
        reply.map(tonic::Response::into_inner)
    }

    async fn decide(&self, method: &str, of: messages::Request, hits_addend: usize) -> Result<Code, Status> {
        let hits_addend = u32::try_from(hits_addend).expect("few");
        let asked = messages::Request { hits_addend, ..of };
        self.call::<_, messages::Response>(method, asked).await.map(|reply| reply.overall_code())
    }

    async fn reserve(&self, ttl_s: i64) -> Result<ReserveResponse, Status> {
        self.reserve_for(by_user(), ESTIMATE, ttl_s).await
    }

    async fn reserve_for(
        &self,
        of: messages::Request,
        amount: usize,
        ttl_s: i64,
    ) -> Result<ReserveResponse, Status> {
        let messages::Request { domain, descriptors, .. } = of;
        let ttl = Some(messages::Duration { seconds: ttl_s, nanos: 0 });
        self.call("Reserve", ReserveRequest { domain, descriptors, amount: amount as u64, ttl }).await
    }

    async fn commit(&self, id: &str, used: usize) -> Result<bool, Status> {
        self.commit_for(by_user(), id, used).await
    }

    async fn commit_for(&self, of: messages::Request, id: &str, used: usize) -> Result<bool, Status> {
        let messages::Request { domain, descriptors, .. } = of;
        let (reservation_id, actual_amount) = (id.to_owned(), used as u64);
        let asked = CommitRequest { domain, descriptors, reservation_id, actual_amount };
        self.call("Commit", asked).await.map(|reply: CommitResponse| reply.reservation_released)
    }
}

fn by_user() -> messages::Request {
    request("llm", &[&[("user", "ada")]])
}

fn start(setup: &Setup) -> Vec<Gate> {
    let gates: Vec<Gate> = (0..3).map(|_| setup.clone().file("llm.yaml", BUDGET).start()).collect();
    gates.iter().for_each(Gate::wait_until_healthy);
    gates
}

/// A slow machine is no outage.
fn with(redis: &Server) -> Vec<Gate> {
    start(&Setup::redis(&redis.url()).set("REDIS_TIMEOUT", "10s"))
}

fn left(redis: &Server) -> i64 {
    ask::<Vec<i64>>(redis, &LEFT)[1]
}

/// Says whether it answers that so much is left.
fn has_left(redis: &Server, left: i64) -> bool {
    try_ask::<Vec<i64>>(redis, &LEFT).is_ok_and(|reply| reply[1] == left)
}

const LEFT: [&str; 5] = ["TB.PEEK", "llm|{user=ada}", "1000", "1000/30d", "0"];

/// All callers at once. Returns the ids of those that may call their model.
async fn reserve_all(clients: &[Client], ttl_s: i64) -> Vec<String> {
    let calls = (0..CALLERS).map(|caller| clients[caller % clients.len()].reserve(ttl_s));
    let granted = join_all(calls).await.into_iter().flatten().filter(|reply| reply.code() == Code::Ok);
    granted.map(|reply| reply.reservation_id).collect()
}

/// Commits at one gate after the other until one replies, then at all gates again. Returns how many calls released.
async fn commit_everywhere(clients: &[Client], place: usize, id: &str) -> usize {
    let mut released = 0;
    let mut has_reply = false;
    for client in clients.iter().cycle().skip(place).take(50 * clients.len()) {
        match client.commit(id, USED).await {
            Ok(is_released) => (has_reply, released) = (true, released + usize::from(is_released)),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        if has_reply {
            break;
        }
    }
    assert!(has_reply, "no gate replied");
    let again = join_all(clients.iter().map(|client| client.commit(id, USED))).await;
    released + again.into_iter().flatten().filter(|is_released| *is_released).count()
}

/// The lowest level that the bucket has until the sender goes.
async fn lowest(redis: &Server, mut until: watch::Receiver<()>) -> i64 {
    let mut lowest = i64::MAX;
    while until.has_changed().is_ok() {
        lowest = lowest.min(left(redis));
        let _ = tokio::time::timeout(Duration::from_millis(5), until.changed()).await;
    }
    lowest
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_never_use_more_than_there_is() {
    let redis = Server::start();
    let mut gates = with(&redis);
    let clients: Vec<Client> = gates.iter().map(Client::of).collect();
    let (running, until) = watch::channel(());
    let all = async {
        let granted = reserve_all(&clients, 60).await;
        assert_eq!(granted.len() * ESTIMATE, CAPACITY);
        // The models run, and a gate ends without a word.
        tokio::time::sleep(Duration::from_millis(200)).await;
        gates[0].kill();
        let commits = granted.iter().enumerate().map(|(place, id)| commit_everywhere(&clients, place, id));
        assert!(join_all(commits).await.iter().all(|released| *released <= 1));
        let used = granted.len() * USED;
        assert_eq!(left(&redis), (CAPACITY - used) as i64);
        // Now a gate ends while its callers reserve.
        gates[0].start_again();
        gates[0].wait_until_healthy();
        let kill = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            gates[1].kill();
        };
        let (granted, ()) = tokio::join!(reserve_all(&clients, 2), kill);
        assert!(granted.len() * ESTIMATE <= CAPACITY - used, "{} of {}", granted.len(), CAPACITY - used);
        // Nobody commits, and all of it comes back.
        wait_until("the refund", || left(&redis) == (CAPACITY - used) as i64);
        drop(running);
    };
    let ((), lowest) = tokio::join!(all, lowest(&redis, until));
    assert!(lowest >= 0, "{lowest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_survive_a_failover() {
    let (master, replica) = (Server::start(), Server::start());
    let _: String = ask(&replica, &["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let sentinel = Sentinel::of(&master);
    let url = format!("mymaster,127.0.0.1:{}", sentinel.port);
    let setup = Setup::redis(&url).set("REDIS_TYPE", "SENTINEL").set("REDIS_TIMEOUT", "500ms");
    let gates = start(&setup);
    let clients: Vec<Client> = gates.iter().map(Client::of).collect();
    wait_until("the replica", || sentinel.knows_a_replica());
    let granted = reserve_all(&clients, 25).await;
    assert!(granted.len() * ESTIMATE <= CAPACITY);
    // A call that took longer than its timeout holds without having been granted.
    let after = left(&master);
    // Sentinel may cut the connection to a replica.
    wait_until("the replica", || has_left(&replica, after));
    let (commits, crashed) = granted.split_at(granted.len() / 2);
    master.kill();
    // Each is sent once by a client, and again by its gate.
    let first = join_all(commits.iter().map(|id| clients[0].commit(id, USED))).await;
    assert!(first.iter().all(Result::is_err));
    let committed = commits.iter().enumerate().map(|(place, id)| commit_everywhere(&clients, place, id));
    assert!(join_all(committed).await.iter().all(|released| *released <= 1));
    let more = reserve_all(&clients, 1).await;
    assert!(more.len() * ESTIMATE + commits.len() * USED + crashed.len() * ESTIMATE <= CAPACITY);
    let refunded = (CAPACITY - commits.len() * USED) as i64;
    wait_until("the refund", || has_left(&replica, refunded));
    let sent_again = |gate: &Gate| gate.metric("ratelimit_service_commits_sent_again{domain=\"llm\"}");
    assert!(gates.iter().map(sent_again).sum::<u64>() > 0);
}

/// The tokens are used, whether or not the proxy waits for the reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_waits_for_charges() {
    let redis = Server::start();
    let gates = with(&redis);
    let client = Client::of(&gates[0]);
    let id = client.reserve(60).await.expect("a reply").reservation_id;
    redis.signal("STOP");
    for method in ["Commit", "Report"] {
        let call = async {
            match method {
                "Commit" => client.commit(&id, USED).await.map(|_| ()),
                _ => client.decide(method, by_user(), USED).await.map(|_| ()),
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err());
    }
    redis.signal("CONT");
    wait_until("both charges", || left(&redis) == (CAPACITY - 2 * USED) as i64);
}

/// More commits than there is memory for, while Redis is away. The log has one line for each cause for which they wait: Redis
/// refuses them, and may go in the middle of a reply.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_wait_are_bounded() {
    let redis = Server::start();
    let gate = Setup::redis(&redis.url()).file("llm.yaml", BUDGET).set("RESERVATION_MAX_TTL", "1h").start();
    gate.wait_until_healthy();
    let client = Client::of(&gate);
    let id = client.reserve(3_600).await.expect("a reply").reservation_id;
    let _: () = ask(&redis, &["ACL", "SETUSER", "default", "-tb.settle"]);
    let commit = async |number: usize| client.commit(&format!("{number:032x}{}", &id[32..]), USED).await;
    for begin in (0..100).step_by(50) {
        join_all((begin..begin + 50).map(commit)).await;
    }
    gate.wait_for_line("commits wait: ");
    redis.kill();
    let before = memory_mib(&gate, "VmRSS");
    for begin in (100..17_000).step_by(250) {
        join_all((begin..begin + 250).map(commit)).await;
    }
    let grown = memory_mib(&gate, "VmRSS").saturating_sub(before);
    let lost = gate.metric("ratelimit_service_commits_lost{domain=\"llm\"}");
    assert!((500..1_000).contains(&lost) && grown < 24, "{lost} lost, {grown} MiB");
    let lines = gate.log().into_iter().filter(|line| line.contains("commit")).collect::<Vec<_>>();
    let causes: Vec<_> =
        lines.iter().filter_map(|line| line.split_once("commits wait: ")).map(|(_, why)| why).collect();
    let [first, others @ ..] = &causes[..] else { panic!("{lines:#?}") };
    assert!(causes.len() == lines.len() && first.contains("NoPerm"), "{lines:#?}");
    assert!(
        others.len() <= 1 && others.iter().all(|other| other.contains("the reply was lost")),
        "{lines:#?}"
    );
}

/// limitador's file, where the program runs.
const LIMITS: &str = "../../limits.yaml";

/// As Kuadrant's operator writes them, where it writes them.
const OF_OPERATOR: &str = r#"
- namespace: ns/gateway
  max_value: 10
  seconds: 86400
  name: per_user
  conditions:
  - descriptors[0]["limit.per_user__11"] == "1"
  variables:
  - descriptors[0]["auth.identity.userid"]
- namespace: ns/gateway
  max_value: 15
  seconds: 86400
  name: global
  conditions:
  - descriptors[0]["limit.global__65"] == "1"
  variables: []
"#;

/// A descriptor that has the entries of two limits, as Kuadrant's gateways send it to all methods.
#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_of_two_limits_is_decided_under_both() {
    let redis = Server::start();
    let setup = Setup::redis(&redis.url()).set("REDIS_TIMEOUT", "10s").file("llm.yaml", BUDGET);
    let gate = setup.file(LIMITS, OF_OPERATOR).set("LIMITADOR_LIMITS_FILE", "limits.yaml").start();
    gate.wait_until_healthy();
    let client = Client::of(&gate);
    let of = |user: &str| {
        let entries =
            [("limit.per_user__11", "1"), ("auth.identity.userid", user), ("limit.global__65", "1")];
        request("ns/gateway", &[&entries])
    };
    let mut envoy = gate.client().await;
    let mut decide =
        async || envoy.should_rate_limit(of("ada")).await.expect("a reply").into_inner().overall_code();
    let check = async |of| client.decide("CheckRateLimit", of, 1).await.expect("a reply");
    for number in 0..20 {
        assert_eq!(decide().await, if number < 10 { Code::Ok } else { Code::OverLimit });
    }
    assert_eq!([check(of("ada")).await, check(of("bob")).await], [Code::OverLimit, Code::Ok]);
    // A reservation holds under both, and its commit ends both.
    let id = client.reserve_for(of("bob"), 3, 60).await.expect("a reply").reservation_id;
    assert!(client.commit_for(of("bob"), &id, 1).await.expect("a reply"));
    // 4 of 15 are left for all, 9 of 10 for bob.
    client.decide("Report", of("bob"), 4).await.expect("a reply");
    assert_eq!(check(of("eve")).await, Code::OverLimit);
    let counted = |name: &str| gate.metric(&format!("ratelimit_service_rate_limit_{name}"));
    assert_eq!(counted("total_hits{domain=\"ns/gateway\",key1=\"per_user\"}"), 20 + 1 + 3 + 4);
    assert!(gate.rlconfig().contains("ns/gateway.per_user: "));
    // A file that changes is used, beside those of the gate's own format.
    gate.write(LIMITS, &OF_OPERATOR.replace("15", "1500").replace("per_user__11", "per_user__12"));
    let reloaded = async {
        while decide().await != Code::Ok {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reloaded).await.expect("a reload");
    assert_eq!(check(by_user()).await, Code::Ok);
}

/// Expressions as large as the gate accepts them. It reads and evaluates them by recursion, at the start and after a reload.
#[test]
fn the_largest_expressions_exhaust_no_stack() {
    let expressions = [
        "(".repeat(32) + "true" + &")".repeat(32),
        "(!".repeat(32) + "true" + &")".repeat(32),
        "(!!".repeat(8) + "true" + &")".repeat(8),
        "!".repeat(17) + "true",
        "-".repeat(16) + "1 == 1",
        "1+".repeat(507) + "1 == 508",
        "true&&".repeat(170) + "true",
        "false||".repeat(145) + "true",
        "false?true:".repeat(92) + "true",
        "[".repeat(31) + "1" + &"]".repeat(31) + " != []",
        "{1:".repeat(31) + "1" + &"}".repeat(31) + " != {}",
        "descriptors[0]".to_owned() + &".x".repeat(505),
    ];
    let limit = |expression| serde_json::json!({"namespace": "d", "max_value": 2, "seconds": 60, "conditions": [expression]});
    let limits: Vec<_> = expressions.into_iter().map(limit).collect();
    let redis = Server::start();
    let setup = Setup::redis(&redis.url()).set("REDIS_TIMEOUT", "10s");
    let setup = setup.file(LIMITS, &serde_json::to_string(&limits).expect("JSON"));
    let gate = setup.set("LIMITADOR_LIMITS_FILE", "limits.yaml").start();
    gate.wait_until_healthy();
    gate.signal("HUP");
    gate.wait_for_line("loaded ");
    assert_eq!([(); 3].map(|()| gate.json(&asks("a")).status), [200, 200, 429]);
}

/// An empty file is what a mount that failed looks like; a file without limits is a list.
#[test]
fn an_empty_file_of_limits_is_refused() {
    let with = |text| Setup::new().set("LIMITADOR_LIMITS_FILE", "limits.yaml").file(LIMITS, text);
    let (code, line) = with("\n").refused();
    assert!(code == 1 && line.ends_with("limits.yaml: the file is empty; without limits it is []"), "{line}");
    with("[]\n").start();
}
