//! Clusters of three masters.

use std::time::Duration;

use tokenbucket_client::{Error, Fallback, Limiter, OnError, Options, Part, Server, ServerOptions};

use crate::servers::{ask, wait_for, Cluster};
use crate::{limit, patient, STILL};

/// One on each node.
fn names(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|node| {
        let mut names = (0..).map(|number| format!("{{{number}}}"));
        names.find(|name| cluster.node_of(&format!("tb:{name}")) == node).expect("a name")
    })
}

/// Ten tokens, and no decision without the server.
fn cluster_limiter(cluster: &Cluster, options: ServerOptions) -> Limiter {
    let urls = cluster.urls();
    let server = Server::cluster_with(urls.split(','), options).unwrap();
    Limiter::with_options(&server, limit(10, STILL), Options::new().on_error(OnError::Closed))
}

fn parts_of(name: &str) -> [Part; 2] {
    ["r", "t"].map(|which| Part::new(format!("{name}:{which}"), &limit(10, STILL), 3))
}

#[tokio::test]
async fn buckets_are_spread_over_the_nodes_and_those_of_one_call_share_a_hash_tag() {
    let cluster = Cluster::start();
    let limiter = cluster_limiter(&cluster, patient());
    for name in names(&cluster) {
        assert_eq!(limiter.take(&name, 4).await.unwrap().remaining, 6);
        let hold = limiter.hold(&name, 2, Duration::from_secs(60)).await.unwrap();
        hold.set_used(1).unwrap();
        hold.settle().await.unwrap();

        let parts = parts_of(&name);
        assert!(limiter.take_all(&parts).await.unwrap().allowed());
        limiter.hold_all(&parts, Duration::from_secs(60)).await.unwrap().settle().await.unwrap();
    }
    let across = names(&cluster).map(|name| Part::new(name, &limit(10, STILL), 1));
    let error = limiter.take_all(&across).await.unwrap_err();
    assert!(matches!(error, Error::CrossSlot) && error.to_string().contains("share a hash tag"), "{error}");
    let hold = limiter.hold_all(&across, Duration::from_secs(60)).await;
    assert!(matches!(hold, Err(Error::CrossSlot)));
}

#[tokio::test]
async fn without_the_module_the_script_decides_on_every_node() {
    let cluster = Cluster::start_without_module();
    let limiter = cluster_limiter(&cluster, patient().fallback(Fallback::Script));
    // Of those without a hash tag, the script's key may be on another node than the module's.
    let untagged = ["a", "b", "c", "d", "e", "f", "g", "h"].map(str::to_owned);
    for name in names(&cluster).into_iter().chain(untagged) {
        assert_eq!(limiter.take(&name, 4).await.unwrap().remaining, 6);
        assert!(!limiter.take(&name, 7).await.unwrap().allowed);
    }
    let parts = parts_of("{a}");
    assert_eq!(limiter.take_all(&parts).await.unwrap().binding.remaining, 7);
    let across = names(&cluster).map(|name| Part::new(name, &limit(10, STILL), 1));
    assert!(matches!(limiter.take_all(&across).await, Err(Error::CrossSlot)));
    let hold = limiter.hold("a", 1, Duration::from_secs(60)).await;
    assert!(matches!(hold, Err(Error::ModuleMissing(_))));
    let limiter = cluster_limiter(&cluster, patient());
    assert!(matches!(limiter.take("a", 1).await, Err(Error::ModuleMissing(_))));
}

#[tokio::test]
async fn a_node_that_is_away_is_an_outage_of_its_buckets_alone_until_its_replica_takes_over() {
    let cluster = Cluster::start();
    let replica = cluster.replica_of(1);
    let limiter = cluster_limiter(&cluster, patient().retry_every(Duration::from_millis(20)));
    let names = names(&cluster);
    for name in &names {
        assert_eq!(limiter.take(name, 4).await.unwrap().remaining, 6);
    }
    wait_for("the replica", Duration::from_secs(10), async || {
        ask::<String>(&replica, &["INFO", "replication"]).contains("master_link_status:up")
            && ask::<u64>(&replica, &["DBSIZE"]) == 1
    })
    .await;
    cluster.nodes[1].kill();
    for _ in 0..10 {
        for (node, name) in names.iter().enumerate() {
            assert_eq!(limiter.peek(name, 1).await.unwrap().degraded, node == 1, "node {node}");
        }
    }
    cluster.take_over(&replica);
    wait_for("limiting", Duration::from_secs(10), async || {
        !limiter.peek(&names[1], 0).await.unwrap().degraded
    })
    .await;
    assert_eq!(limiter.take(&names[1], 1).await.unwrap().remaining, 5, "what was taken before is known");
}
