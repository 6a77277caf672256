//! A master that a sentinel watches.

use std::time::Duration;

use tokenbucket_client::{Error, Limiter, OnError, Options, Server};

use crate::sentinel::Sentinel;
use crate::servers;
use crate::{limit, STILL};

fn limiter(master: &str, sentinels: &[String]) -> Limiter {
    let server = Server::sentinel(master, sentinels.iter().map(String::as_str)).unwrap();
    let server = server.with_timeout(Duration::from_secs(10)).with_retry_every(Duration::from_millis(20));
    Limiter::with_options(&server, limit(10, STILL), Options::new().on_error(OnError::Error))
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
