//! Clusters of three masters, a master that a sentinel watches, and servers without the module.

use std::time::Duration;

use tokenbucket_client::{Error, Limiter, OnError, Options, Part, Server};

use crate::sentinel::Sentinel;
use crate::servers::{self, ask, wait_for, Cluster};
use crate::{limit, patient, STILL};

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_buckets_of_one_call_share_a_hash_tag() {
    let of = |cluster: &Cluster| Server::cluster(cluster.urls().split(',')).unwrap().with_timeout(TIMEOUT);
    let clusters = [Cluster::start(), Cluster::start_without_module()];
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
