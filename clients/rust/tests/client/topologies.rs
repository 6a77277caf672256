//! Clusters of three masters, a master that a sentinel watches, and servers without the module.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokenbucket_client::{Error, Limiter, OnError, Options, Part, Server};
use tokio::net::TcpListener;

use crate::replies::{serve, Reply};
use crate::sentinel::Sentinel;
use crate::servers::{self, ask, try_ask, wait_for, Cluster};
use crate::turns::take;
use crate::{calls, id_of, limit, patient, stat, STILL};

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_buckets_of_one_call_share_a_hash_tag() {
    let of = |cluster: &Cluster| Server::cluster(cluster.urls().split(',')).unwrap().with_timeout(TIMEOUT);
    let clusters = [Cluster::start(), Cluster::started(&["--cluster", "--without-module"])];
    for server in [of(&clusters[0]), of(&clusters[1]).by_script()] {
        let options = Options::new().on_error(OnError::Closed);
        let limiter = Limiter::with_options(&server, limit(10, STILL), options);
        let across = ["a", "b", "c"].map(|name| Part::new(name, limiter.limit(), 1));
        let error = limiter.take_all(&across).await.unwrap_err();
        assert!(matches!(error, Error::CrossSlot), "{error:?}");
        assert!(error.to_string().contains("share a hash tag"), "{error}");
    }
}

#[tokio::test]
async fn a_node_that_lost_its_slots_keeps_no_connection() {
    let cluster = Cluster::start();
    let server = Server::cluster([cluster.nodes[0].url()]).unwrap().with_timeout(TIMEOUT);
    let limiter = Limiter::with_options(&server, limit(100, STILL), Options::new().on_error(OnError::Error));
    let mut names = (0..).map(|at: usize| at.to_string());
    // Of slots that no call has asked for: a call of another may have followed its slot without a new look.
    let mut of_the_node =
        names.by_ref().filter(|name| cluster.node_of(&format!("tb:{name}")) == 1).take(5).collect::<Vec<_>>();
    let take = async |names: &[String]| {
        for name in names {
            // The cluster may be down for a moment after a node was replaced.
            drop(limiter.take(name, 1).await);
        }
        ask::<String>(&cluster.nodes[1], &["CLIENT", "LIST"]).to_lowercase().contains("cmd=tb.take")
    };
    assert!(take(&of_the_node).await);

    cluster.replace(1);
    wait_for("the end of its connection", Duration::from_secs(10), async || {
        of_the_node = names.by_ref().take(15).collect();
        !take(&of_the_node).await
    })
    .await;
}

/// The others say that it has the slot.
#[tokio::test]
async fn a_slot_that_its_node_has_given_up_is_asked_for_in_no_circle() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        ask::<()>(node, &["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let server = Server::cluster(cluster.urls().split(',')).unwrap().with_timeout(TIMEOUT);
    let limiter = Limiter::with_options(&server, limit(100, STILL), Options::new().on_error(OnError::Open));
    let name = name_on(&cluster, 0);
    assert!(!limiter.take(&name, 1).await.unwrap().degraded);
    let slot: u64 = ask(&cluster.nodes[0], &["CLUSTER", "KEYSLOT", &format!("tb:{name}")]);
    ask::<()>(&cluster.nodes[0], &["CLUSTER", "DELSLOTS", &slot.to_string()]);
    let sent = || cluster.nodes.iter().map(|node| calls(node, "tb.take")).sum::<u64>();
    let before = sent();
    for _ in 0..10 {
        assert!(limiter.take(&name, 1).await.unwrap().degraded, "the policy decides");
    }
    let sent = sent() - before;
    assert!((10..=40).contains(&sent), "{sent} commands of 10 takes");
}

#[tokio::test]
async fn a_node_that_never_answered_delays_one_call() {
    let cluster = Cluster::start();
    let names: Vec<String> = names_on(&cluster, 1).take(14).collect();
    cluster.nodes[1].signal("STOP");
    let timeout = Duration::from_millis(500);
    // The first to be asked for slots may be any.
    for _ in 0..8 {
        let server = Server::cluster([1, 0].map(|node| cluster.nodes[node].url())).unwrap();
        let server = server.with_timeout(timeout).with_retry_every(TIMEOUT);
        let limiter = Limiter::new(&server, limit(10, STILL));
        let began = Instant::now();
        for name in &names {
            assert!(limiter.take(name, 1).await.unwrap().degraded);
        }
        let took = began.elapsed();
        assert!(took < 10 * timeout, "{took:?}");
    }
}

#[tokio::test]
async fn a_node_that_is_silent_from_the_start_delays_the_calls_of_others_by_a_timeout() {
    let cluster = Cluster::start();
    let name = name_on(&cluster, 0);
    cluster.nodes[1].signal("STOP");
    let began = Instant::now();
    // Either may be the first to be asked.
    for _ in 0..40 {
        let server = Server::cluster([1, 0].map(|node| cluster.nodes[node].url())).unwrap();
        let decision = Limiter::new(&server, limit(100, STILL)).take(&name, 1).await.unwrap();
        assert!(!decision.degraded);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
}

#[tokio::test]
async fn a_first_call_asks_few_of_the_nodes_that_are_silent() {
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let urls = silent.iter().map(|node| format!("redis://{}", node.local_addr().unwrap()));
    let server = Server::cluster(urls).unwrap();
    assert!(Limiter::new(&server, limit(1, STILL)).take("a", 1).await.unwrap().degraded);
    let mut context = Context::from_waker(Waker::noop());
    let asked = silent.iter().filter(|node| node.poll_accept(&mut context).is_ready()).count();
    // The call asks five, and one may be asked for the slots.
    assert!((1..=6).contains(&asked), "{asked} of 12");
}

/// Names whose buckets that node has.
fn names_on(cluster: &Cluster, node: usize) -> impl Iterator<Item = String> + '_ {
    (0..).map(|at: usize| at.to_string()).filter(move |name| cluster.node_of(&format!("tb:{name}")) == node)
}

fn name_on(cluster: &Cluster, node: usize) -> String {
    names_on(cluster, node).next().unwrap()
}

#[tokio::test]
async fn nodes_that_left_their_cluster_are_asked_no_more() {
    let cluster = Cluster::start();
    let names: Vec<String> = names_on(&cluster, 1).take(2).collect();
    // Each tries the nodes in an order of its own.
    let limiters: Vec<Limiter> = (0..8)
        .map(|_| {
            let server = Server::cluster(cluster.urls().split(',')).unwrap().with_timeout(TIMEOUT);
            Limiter::with_options(&server, limit(100, STILL), Options::new().on_error(OnError::Open))
        })
        .collect();
    let asking = || limiters.iter().zip(names.iter().cycle());
    for (limiter, name) in asking() {
        assert!(!limiter.take(name, 0).await.unwrap().degraded);
    }
    // One slot is then on a node that they know, and the other on one that they do not.
    cluster.move_slot_of(&format!("tb:{}", names[0]), 0);
    for left in [1, 2] {
        cluster.replace(left);
    }
    for left in [1, 2] {
        let leave = async || try_ask::<()>(&cluster.nodes[left], &["CLUSTER", "RESET", "HARD"]).is_ok();
        wait_for("its departure", TIMEOUT, leave).await;
    }
    for (limiter, name) in asking() {
        // The cluster may be down for a moment after a node was replaced.
        wait_for("a decision", TIMEOUT, async || !limiter.take(name, 0).await.unwrap().degraded).await;
        let asked = || [1, 2].map(|left| calls(&cluster.nodes[left], "tb.take"));
        wait_for("a call that asks none of them", TIMEOUT, async || {
            let before = asked();
            assert!(!limiter.take(name, 0).await.unwrap().degraded);
            asked() == before
        })
        .await;
    }
}

fn of_master(master: &str, sentinels: &[String]) -> Limiter {
    let server = Server::sentinel(master, sentinels.iter().map(String::as_str)).unwrap();
    let server = server.with_timeout(TIMEOUT).with_retry_every(Duration::from_millis(20));
    Limiter::with_options(&server, limit(10, STILL), Options::new().on_error(OnError::Error))
}

#[tokio::test]
async fn a_master_that_no_sentinel_knows_is_an_error_that_says_so() {
    let master = servers::Server::start();
    let sentinel = Sentinel::of(&master);
    let error = of_master("redis://another", &[sentinel.url()]).take("a", 1).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { server, .. } if server == "master another"), "{error:?}");
    assert!(error.to_string().contains("no sentinel knows a master of this name"), "{error}");
}

/// As after a planned failover: for seconds the old master does not know.
#[tokio::test]
async fn calls_and_waits_follow_the_sentinels_from_a_master_that_serves() {
    for is_cut in [false, true] {
        let masters = [servers::Server::start(), servers::Server::start()];
        let sentinel = Sentinel::of(&masters[0]);
        let limiter = of_master("redis://mymaster", &[sentinel.url()]);
        for master in &masters {
            ask::<()>(master, &["TB.TAKE", "tb:a", "10", STILL, "10"]);
        }
        let waits = |at: usize| stat(&masters[at], "tokenbucket_waiting") == 1;
        let call = take(&masters[0], &limiter).await;
        if is_cut {
            // The other connection: that of the wait is not told where the calls are now.
            ask::<u64>(&masters[0], &["CLIENT", "KILL", "ID", &id_of(&masters[0], "tb.take").unwrap()]);
        }
        assert!(limiter.take("b", 1).await.unwrap().allowed);
        assert_eq!(calls(&masters[1], "tb.take"), 1);

        sentinel.monitor(&masters[1]);
        wait_for("the wait at the new master", TIMEOUT, async || waits(1)).await;
        wait_for("a take at the new master", TIMEOUT, async || {
            limiter.take("b", 1).await.unwrap();
            ask::<Vec<i64>>(&masters[1], &["TB.PEEK", "tb:b", "10", STILL, "0"])[1] < 10
        })
        .await;
        ask::<()>(&masters[1], &["TB.GIVE", "tb:a", "10", STILL, "1"]);
        let granted = call.await.unwrap().unwrap();
        assert!(granted.allowed && !granted.degraded, "{granted:?}");
    }
}

/// A sentinel that a test decides.
#[derive(Default)]
struct Says {
    /// Where the master is; 0 while it knows none.
    port: AtomicU16,
    pause_ms: AtomicU64,
    asked: AtomicU64,
}

impl Says {
    fn reply(&self, command: &str) -> Reply {
        if command != "SENTINEL" {
            return Reply::Text("+OK\r\n".to_owned());
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let pause = Duration::from_millis(self.pause_ms.load(Ordering::Relaxed));
        match self.port.load(Ordering::Relaxed) {
            0 => Reply::Late(pause, "*-1\r\n".to_owned()),
            port => Reply::Late(pause, format!("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n{port}\r\n")),
        }
    }
}

#[tokio::test]
async fn sentinels_that_disagree_move_no_call_until_the_master_is_away() {
    let masters = [servers::Server::start(), servers::Server::start()];
    let says = [0, 1].map(|_| Arc::new(Says::default()));
    let name = |by: usize, port| says[by].port.store(port, Ordering::Relaxed);
    let answers_first = |by: usize| {
        for at in [0, 1] {
            says[at].pause_ms.store(if at == by { 0 } else { 200 }, Ordering::Relaxed);
        }
    };
    let ports = [0, 1].map(|at| masters[at].port);
    let [first, second] = says.clone();
    let sentinels = [
        serve(move |_, command| first.reply(command)).await,
        serve(move |_, command| second.reply(command)).await,
    ];
    let limiter = of_master("redis://mymaster", &sentinels);
    let takes = async || limiter.take("b", 0).await.is_ok();
    let is_at = async |at: usize| {
        let before = calls(&masters[at], "tb.take");
        takes().await && calls(&masters[at], "tb.take") > before
    };
    for at in [0, 1] {
        name(at, ports[at]);
        ask::<()>(&masters[at], &["TB.TAKE", "tb:a", "10", STILL, "10"]);
    }
    answers_first(0);
    assert!(is_at(0).await);
    let waits = |at: usize| stat(&masters[at], "tokenbucket_waiting") == 1;
    let call = take(&masters[0], &limiter).await;

    answers_first(1);
    let asked = says[0].asked.load(Ordering::Relaxed);
    wait_for("looks", TIMEOUT, async || {
        assert!(is_at(0).await && waits(0));
        says[0].asked.load(Ordering::Relaxed) >= asked + 3
    })
    .await;
    assert_eq!(calls(&masters[1], "tb.take"), 1, "that of the test");
    name(0, 0);
    wait_for("the master of the other, as the first knows none", TIMEOUT, async || is_at(1).await).await;
    wait_for("the wait there", TIMEOUT, async || waits(1)).await;
    call.abort();

    name(0, ports[0]);
    ask::<()>(&masters[1], &["REPLICAOF", "127.0.0.1", &ports[0].to_string()]);
    wait_for("the first, as the other is a replica", TIMEOUT, async || is_at(0).await).await;
    ask::<()>(&masters[1], &["REPLICAOF", "NO", "ONE"]);
    answers_first(0);
    masters[0].kill();
    wait_for("the other, as the first is away", TIMEOUT, async || takes().await).await;
}

#[tokio::test]
async fn a_reset_by_the_script_deletes_its_bucket_alone() {
    let server = servers::Server::start();
    let of_module = Limiter::new(&patient(&server), limit(10, STILL));
    let limiter = Limiter::new(&patient(&server).by_script(), limit(10, STILL));
    for limiter in [&of_module, &limiter] {
        assert_eq!(limiter.take("a", 10).await.unwrap().remaining, 0);
    }
    limiter.reset("a").await.unwrap();
    assert_eq!(limiter.peek("a", 0).await.unwrap().remaining, 10);
    assert_eq!(of_module.peek("a", 0).await.unwrap().remaining, 0);
}

#[tokio::test]
async fn the_script_says_that_it_has_no_alternatives() {
    let server = Server::connect("redis://127.0.0.1:1").unwrap().by_script();
    let limiter = Limiter::new(&server, limit(1, STILL));
    let error = limiter.take_any(&[vec![Part::new("a", limiter.limit(), 1)]]).await.unwrap_err();
    assert!(error.to_string().contains("alternatives need the module"), "{error}");
}
