//! A cluster of three masters without replicas.

use std::time::{Duration, Instant};

use tokenbucket_client::{sync, Limiter, OnError, Options, Part, Server};

use crate::servers::{info, wait_for, Cluster};
use crate::{limit, patient, STILL};

fn name_on(cluster: &Cluster, node: usize) -> String {
    let names = (0..).map(|number| format!("{{{number}}}"));
    names.into_iter().find(|name| cluster.node_of(&format!("tb:{name}")) == node).expect("a name")
}

fn closed() -> Options {
    patient().on_error(OnError::Closed)
}

#[tokio::test]
async fn buckets_are_spread_over_the_nodes_and_joint_calls_find_theirs() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let tasks = Server::cluster(urls.split(','), Duration::from_secs(10)).unwrap();
    let tasks = Limiter::with_options(&tasks, limit(10, STILL), closed());
    let threads = sync::Server::cluster(urls.split(',')).unwrap();
    let threads = sync::Limiter::with_options(&threads, limit(10, STILL), closed());
    for node in 0..3 {
        let name = name_on(&cluster, node);
        assert_eq!(tasks.take(&name, 4).await.unwrap().remaining, 6);
        assert_eq!(threads.take(&name, 4).unwrap().remaining, 2);
        let parts = ["r", "t"].map(|which| Part::new(format!("{name}:{which}"), &limit(10, STILL), 3));
        assert!(tasks.take_all(&parts).await.unwrap().allowed());
        let joint = threads.take_all(&parts).unwrap();
        assert_eq!(joint.binding.remaining, 4);
        let hold = tasks.hold_all(&parts, Duration::from_secs(60)).await.unwrap();
        hold.settle().await.unwrap();
    }
    let across = [0, 1].map(|node| Part::new(name_on(&cluster, node), &limit(10, STILL), 1));
    assert!(tasks.take_all(&across).await.is_err(), "buckets of one call have to share a slot");
}

#[tokio::test]
async fn a_node_that_is_away_is_an_outage_of_its_buckets_alone() {
    let mut cluster = Cluster::start().await;
    let urls = cluster.urls();
    let tasks = Server::cluster(urls.split(','), Duration::from_secs(10)).unwrap();
    let tasks = Limiter::with_options(&tasks, limit(10, STILL), closed());
    let threads = sync::Server::cluster(urls.split(',')).unwrap();
    let threads = sync::Limiter::with_options(&threads, limit(10, STILL), closed());
    let names = [0, 1, 2].map(|node| name_on(&cluster, node));
    for name in &names {
        assert!(tasks.take(name, 1).await.unwrap().allowed);
        assert!(threads.take(name, 1).unwrap().allowed);
    }
    cluster.nodes[1].process.kill();
    let began = Instant::now();
    for (node, name) in names.iter().enumerate() {
        assert_eq!(tasks.take(name, 1).await.unwrap().degraded, node == 1, "tasks, node {node}");
        assert_eq!(threads.take(name, 1).unwrap().degraded, node == 1, "threads, node {node}");
    }
    for _ in 0..50 {
        assert!(tasks.take(&names[1], 1).await.unwrap().degraded);
        assert!(threads.take(&names[1], 1).unwrap().degraded);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    cluster.nodes[1].restart().await;
    wait_for("the node", Duration::from_secs(30), async || info(&cluster.nodes[1]).contains("state:ok"))
        .await;
    wait_for("limiting by tasks", Duration::from_secs(2), async || {
        !tasks.take(&names[1], 1).await.unwrap().degraded
    })
    .await;
    wait_for("limiting by threads", Duration::from_secs(2), async || {
        !threads.take(&names[1], 1).unwrap().degraded
    })
    .await;
}
