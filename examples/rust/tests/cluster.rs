//! The same app with a cluster: three masters without replicas.

mod common;

use std::time::{Duration, Instant};

use common::{ask, burst, info, wait_for, App, Cluster, STILL};

/// A client whose bucket is on this node.
fn client_of(cluster: &Cluster, node: usize) -> [u8; 4] {
    let clients = (1..=255).map(|last| [127, 0, 0, last]);
    clients.into_iter().find(|client| cluster.node_of(&ip_bucket(*client)) == node).expect("a client")
}

fn ip_bucket([a, b, c, d]: [u8; 4]) -> String {
    format!("tb:ip:{a}.{b}.{c}.{d}")
}

#[tokio::test]
async fn buckets_are_spread_over_the_nodes_and_none_is_over_granted() {
    let cluster = Cluster::start();
    let limit = format!("10 {STILL}");
    let environment = [("REDIS_CLUSTER_URLS", cluster.urls().leak() as &str), ("IP_LIMIT", &limit)];
    let (one, other) = (App::start(&environment).await, App::start(&environment).await);
    assert_eq!(burst(&[&one, &other], 50, "/").await, (10, 40));

    for (index, node) in cluster.nodes.iter().enumerate() {
        let client = client_of(&cluster, index);
        let answer = one.get_as("/", client).await;
        assert_eq!(answer.status, if client == [127, 0, 0, 1] { 429 } else { 200 });
        assert_eq!(ask::<String>(node, &["TYPE", &ip_bucket(client)]), "tb-bucket");
    }
    assert_eq!(one.warnings(), [] as [&str; 0]);
}

#[tokio::test]
async fn one_url_is_enough_to_find_the_others() {
    let cluster = Cluster::start();
    let limit = format!("1 {STILL}");
    let app = App::start(&[("REDIS_CLUSTER_URLS", &cluster.nodes[2].url()), ("IP_LIMIT", &limit)]).await;
    for index in 0..3 {
        let client = client_of(&cluster, index);
        assert_eq!(app.get_as("/", client).await.status, 200);
        assert_eq!(app.get_as("/", client).await.status, 429);
    }
}

#[tokio::test]
async fn a_node_that_is_away_is_an_outage_of_its_buckets_alone() {
    let mut cluster = Cluster::start();
    let limit = format!("3 {STILL}");
    let app =
        App::start(&[("REDIS_CLUSTER_URLS", &cluster.urls()), ("IP_LIMIT", &limit), ("ON_ERROR", "closed")])
            .await;
    let clients = [0, 1, 2].map(|node| client_of(&cluster, node));
    for client in clients {
        assert_eq!(app.get_as("/", client).await.rate_limit("r"), 2);
    }

    cluster.nodes[1].kill();
    let began = Instant::now();
    assert_eq!(app.get_as("/", clients[1]).await.status, 503);
    assert!(began.elapsed() < Duration::from_secs(5), "at once; nobody waits for the timeout");
    for client in [clients[0], clients[2]] {
        assert_eq!(app.get_as("/", client).await.rate_limit("r"), 1);
    }
    assert_eq!(app.get_as("/", clients[1]).await.status, 503);
    assert_eq!(app.warnings().len(), 1, "one outage, though others answered in between");

    cluster.nodes[1].start_again();
    // A master that comes back waits a little before it takes writes: by its own word it is back.
    wait_for("the node", Duration::from_secs(30), async || info(&cluster.nodes[1]).contains("state:ok"))
        .await;
    wait_for("limiting after its return", Duration::from_secs(1), async || {
        app.get_as("/", clients[1]).await.header("ratelimit").is_some()
    })
    .await;
    for client in [clients[0], clients[2]] {
        assert_eq!(app.get_as("/", client).await.rate_limit("r"), 0, "kept all the while");
    }
}

#[tokio::test]
async fn a_node_that_hangs_does_not_hold_up_the_others() {
    let cluster = Cluster::start();
    let limit = format!("30 {STILL}");
    let app = App::start(&[
        ("REDIS_CLUSTER_URLS", &cluster.urls()),
        ("IP_LIMIT", &limit),
        ("REDIS_TIMEOUT_MS", "2000"),
        ("ON_ERROR", "closed"),
    ])
    .await;
    let [before, hanging, after] = [0, 1, 2].map(|node| client_of(&cluster, node));
    cluster.nodes[1].signal("STOP");
    let others = async {
        for _ in 0..10 {
            assert_eq!(app.get_as("/", before).await.status, 200);
            assert_eq!(app.get_as("/", after).await.status, 200);
        }
    };
    let (answer, ()) = tokio::join!(app.get_as("/", hanging), others);
    assert_eq!(answer.status, 503);

    cluster.nodes[1].signal("CONT");
    wait_for("limiting after its return", Duration::from_secs(1), async || {
        app.get_as("/", hanging).await.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_call_that_a_node_keeps_waiting_is_answered_within_the_timeout_all_the_same() {
    let cluster = Cluster::start();
    let app = App::start(&[("REDIS_CLUSTER_URLS", &cluster.urls())]).await;
    let client = client_of(&cluster, 0);
    cluster.nodes[0].signal("STOP");
    let wake = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        cluster.nodes[0].signal("CONT");
    };
    let (answer, ()) = tokio::join!(app.get_as("/", client), wake);
    assert!(answer.header("ratelimit").is_some(), "{answer:?}");
}

#[tokio::test]
async fn the_whole_cluster_can_go_and_come_back() {
    let mut cluster = Cluster::start();
    let limit = format!("3 {STILL}");
    let app = App::start(&[("REDIS_CLUSTER_URLS", &cluster.urls()), ("IP_LIMIT", &limit)]).await;
    assert_eq!(app.statuses(4, "/").await, [200, 200, 200, 429]);

    cluster.nodes.iter_mut().for_each(|node| node.kill());
    let began = Instant::now();
    assert_eq!(app.statuses(5, "/").await, [200, 200, 200, 429, 429], "this process limits alone");
    assert!(began.elapsed() < Duration::from_secs(5), "at once; nobody waits for the timeout");

    for node in &mut cluster.nodes {
        node.start_again();
    }
    for node in &cluster.nodes {
        wait_for("the node", Duration::from_secs(30), async || info(node).contains("state:ok")).await;
    }
    wait_for("limiting after its return", Duration::from_secs(1), async || {
        app.get("/").await.header("ratelimit").is_some()
    })
    .await;
}

#[tokio::test]
async fn a_bucket_that_moves_to_another_node_keeps_its_level() {
    let cluster = Cluster::start();
    let limit = format!("3 {STILL}");
    let app = App::start(&[("REDIS_CLUSTER_URLS", &cluster.urls()), ("IP_LIMIT", &limit)]).await;
    let client = client_of(&cluster, 0);
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    assert_eq!(app.get_as("/", client).await.rate_limit("r"), 2);

    let bucket = ip_bucket(client);
    let slot: u16 = ask(from, &["CLUSTER", "KEYSLOT", &bucket]);
    let (slot, port) = (&slot.to_string(), &to.port.to_string());
    let (from_id, to_id): (String, String) = (ask(from, &["CLUSTER", "MYID"]), ask(to, &["CLUSTER", "MYID"]));
    ask::<()>(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]);
    ask::<()>(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]);
    ask::<()>(from, &["MIGRATE", "127.0.0.1", port, &bucket, "0", "5000"]);
    assert_eq!(app.get_as("/", client).await.rate_limit("r"), 1, "by ASK");
    for node in [to, from] {
        ask::<()>(node, &["CLUSTER", "SETSLOT", slot, "NODE", &to_id]);
    }
    assert_eq!(app.get_as("/", client).await.rate_limit("r"), 0, "by MOVED");
    assert_eq!(app.get_as("/", client).await.status, 429);
    assert_eq!(app.warnings(), [] as [&str; 0]);
}
