//! Clusters of three masters.

use std::time::Duration;

use tokenbucket_client::{Error, Fallback, Limiter, OnError, Options, Part, Server};

use crate::servers::Cluster;
use crate::{limit, STILL};

#[tokio::test]
async fn the_buckets_of_one_call_share_a_hash_tag() {
    for (cluster, fallback) in
        [(Cluster::start(), Fallback::None), (Cluster::start_without_module(), Fallback::Script)]
    {
        let server = Server::cluster(cluster.urls().split(','))
            .unwrap()
            .with_timeout(Duration::from_secs(10))
            .with_fallback(fallback);
        let options = Options::new().on_error(OnError::Closed);
        let limiter = Limiter::with_options(&server, limit(10, STILL), options);
        let across = ["a", "b", "c"].map(|name| Part::new(name, limiter.limit(), 1));
        let error = limiter.take_all(&across).await.unwrap_err();
        assert!(matches!(error, Error::CrossSlot), "{error:?}");
        assert!(error.to_string().contains("share a hash tag"), "{error}");
        if fallback == Fallback::None {
            let hold = limiter.hold_all(&across, Duration::from_secs(60)).await;
            assert!(matches!(hold, Err(Error::CrossSlot)));
        }
    }
}
