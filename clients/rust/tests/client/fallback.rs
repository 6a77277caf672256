//! Servers without the module.

use std::time::Duration;

use tokenbucket_client::{Fallback, Options};

use crate::servers::{ask, module, wait_for, Server};
use crate::{limit, limiter_with, logs, patient, STILL};

#[tokio::test]
async fn the_script_decides_until_a_reconnect_finds_the_module() {
    logs::listen();
    let server = Server::start_without_module();
    let options = patient().fallback(Fallback::Script);
    let limiter = limiter_with(&server, limit(10, STILL), Options::new(), options);
    assert_eq!(limiter.take("a", 10).await.unwrap().remaining, 0);
    let denied = limiter.peek("a", 1).await.unwrap();
    assert_eq!((denied.allowed, denied.retry_after_s()), (false, Some(360)));
    let reserved = limiter.reserve("a", 1, Duration::from_secs(86_400)).await.unwrap();
    assert_eq!((reserved.allowed, reserved.retry_after_s()), (true, Some(360)));
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
