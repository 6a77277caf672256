//! A master that a sentinel watches.

use std::time::Duration;

use tokenbucket_client::{Error, Limiter, OnError, Options, Server};

use crate::sentinel::Sentinel;
use crate::servers::{self, ask, wait_for, READY_WITHIN};
use crate::{limit, patient, STILL};

fn limiter(master: &str, sentinels: &[String]) -> Limiter {
    let options = patient().retry_every(Duration::from_millis(20));
    let server = Server::sentinel_with(master, sentinels.iter().map(String::as_str), options).unwrap();
    Limiter::with_options(&server, limit(10, STILL), Options::new().on_error(OnError::Error))
}

#[tokio::test]
async fn the_new_master_goes_on_where_the_old_one_was() {
    let master = servers::Server::start();
    let replica = servers::Server::start();
    ask::<String>(&replica, &["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let sentinel = Sentinel::of(&master);
    let nobody = "redis://127.0.0.1:1".to_owned();
    let limiter = limiter("redis://mymaster", &[nobody, sentinel.url()]);
    assert_eq!(limiter.take("a", 4).await.unwrap().remaining, 6);
    wait_for("the replica", READY_WITHIN, async || {
        ask::<u64>(&replica, &["DBSIZE"]) == 1 && sentinel.knows_a_replica()
    })
    .await;

    master.kill();
    wait_for("the new master", READY_WITHIN, async || limiter.peek("a", 0).await.is_ok()).await;
    wait_for("a decision", READY_WITHIN, async || limiter.take("a", 0).await.is_ok()).await;
    assert_eq!(limiter.take("a", 1).await.unwrap().remaining, 5);
    assert!(ask::<String>(&replica, &["INFO", "replication"]).contains("role:master"));
}

#[tokio::test]
async fn a_master_that_no_sentinel_knows_is_an_error_that_says_so() {
    let master = servers::Server::start();
    let sentinel = Sentinel::of(&master);
    let error = limiter("redis://another", &[sentinel.url()]).take("a", 1).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { server, .. } if server == "master another"), "{error:?}");
    assert!(error.to_string().contains("no sentinel knows a master of this name"), "{error}");
}

#[test]
fn sentinels_need_a_url_and_the_master_a_name() {
    let of = |master: &str, sentinels: &[&str]| Server::sentinel(master, sentinels.iter().copied());
    assert!(of("redis://mymaster", &[]).is_err());
    assert!(of("unix:///tmp/socket", &["redis://127.0.0.1:26379"]).is_err());
    assert!(of("redis://mymaster", &["none"]).is_err());
}
