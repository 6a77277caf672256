//! Servers without the module.

use std::time::Duration;

use tokenbucket_client::{Fallback, Limiter};

use crate::servers::{ask, module, wait_for, Server};
use crate::{limit, logs, patient, STILL};

#[tokio::test]
async fn the_script_decides_until_a_reconnect_finds_the_module() {
    logs::listen();
    let server = Server::start_without_module();
    let limiter = Limiter::new(&patient(&server).with_fallback(Fallback::Script), limit(10, STILL));
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
