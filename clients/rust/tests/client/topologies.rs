//! Clusters of three masters, a master that a sentinel watches, and servers without the module.

use std::time::Duration;

use tokenbucket_client::{Error, Limiter, OnError, Options, Part, Server};

use crate::sentinel::Sentinel;
use crate::servers::{self, ask, module, wait_for, Cluster};
use crate::{limit, logs, patient, STILL};

const TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_buckets_of_one_call_share_a_hash_tag() {
    for cluster in [Cluster::start(), Cluster::start_without_module()] {
        let server = Server::cluster(cluster.urls().split(',')).unwrap();
        let server = server.with_timeout(TIMEOUT).with_script_fallback();
        let options = Options::new().on_error(OnError::Closed);
        let limiter = Limiter::with_options(&server, limit(10, STILL), options);
        let across = ["a", "b", "c"].map(|name| Part::new(name, limiter.limit(), 1));
        let error = limiter.take_all(&across).await.unwrap_err();
        assert!(matches!(error, Error::CrossSlot), "{error:?}");
        assert!(error.to_string().contains("share a hash tag"), "{error}");
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

#[tokio::test]
async fn the_script_decides_until_a_reconnect_finds_the_module() {
    logs::listen();
    let server = servers::Server::start_without_module();
    let limiter = Limiter::new(&patient(&server).with_script_fallback(), limit(10, STILL));
    assert_eq!(limiter.take("a", 10).await.unwrap().remaining, 0);
    let reserved = limiter.reserve("a", 1, Duration::from_secs(86_400)).await.unwrap();
    assert!(reserved.allowed && (300_000..=360_000).contains(&reserved.retry_after_ms), "{reserved:?}");
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].contains("no tokenbucket module: the script decides"), "{lines:?}");

    ask::<()>(&server, &["MODULE", "LOAD", module().to_str().unwrap()]);
    ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
    wait_for("the module", Duration::from_secs(5), async || {
        limiter.peek("a", 0).await.unwrap().remaining == 10
    })
    .await;
    assert!(limiter.hold("a", 1, Duration::from_secs(10)).await.is_ok());
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].ends_with("the script decides no longer"), "{lines:?}");
}
