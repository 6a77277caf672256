//! Servers without the module.

use std::time::Duration;

use tokenbucket_client::{Error, Fallback, Limiter, Options, Part, ServerOptions};

use crate::servers::{ask, module, wait_for, Server};
use crate::{limit, limiter, limiter_with, logs, patient, STILL};

fn with_script() -> ServerOptions {
    patient().fallback(Fallback::Script)
}

#[tokio::test]
async fn the_script_decides_where_there_is_no_module() {
    logs::listen();
    let with_module = Server::start();
    decides(&limiter_with(&with_module, limit(10, STILL), Options::new(), with_script())).await;
    let keys: Vec<String> = ask(&with_module, &["KEYS", "*"]);
    assert!(!keys.iter().any(|key| key.ends_with(":script")), "{keys:?}");

    let server = Server::start_without_module();
    let error = limiter(&server, limit(10, STILL), Options::new()).take("a", 1).await.unwrap_err();
    assert!(matches!(error, Error::ModuleMissing(_)), "{error:?}");
    assert!(error.to_string().ends_with("has not loaded the tokenbucket module"), "{error}");
    let limiter = limiter_with(&server, limit(10, STILL), Options::new(), with_script());
    decides(&limiter).await;
    let error = limiter.hold("a", 1, Duration::from_secs(1)).await.err().expect("an error");
    assert!(error.to_string().starts_with("holds need the tokenbucket module"), "{error}");
    let keys: Vec<String> = ask(&server, &["KEYS", "*"]);
    assert!(keys.iter().all(|key| key.ends_with(":script")), "{keys:?}");
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].contains("no tokenbucket module: the script decides"), "{lines:?}");

    ask::<()>(&server, &["SCRIPT", "FLUSH"]);
    assert!(!limiter.take("a", 1).await.unwrap().degraded, "it is loaded again");
}

/// What either replies.
async fn decides(limiter: &Limiter) {
    assert_eq!(limiter.take("a", 4).await.unwrap().remaining, 6);
    assert_eq!(limiter.peek("a", 1).await.unwrap().remaining, 5);
    assert_eq!(limiter.take_up_to("a", 10).await.unwrap().granted, 6);
    let denied = limiter.take_up_to("a", 10).await.unwrap();
    assert_eq!((denied.allowed, denied.granted, denied.retry_after_s()), (false, 0, Some(360)));
    assert_eq!(limiter.take("a", 1).await.unwrap().retry_after_s(), Some(360));
    let reserved = limiter.reserve("a", 1, Duration::from_secs(86_400)).await.unwrap();
    assert_eq!((reserved.allowed, reserved.retry_after_s()), (true, Some(360)));
    assert_eq!(limiter.charge("a", 1).await.unwrap().remaining, -2);
    assert_eq!(limiter.give("a", 4).await.unwrap().remaining, 2);
    let parts = [Part::new("a", limiter.limit(), 2), Part::new("b", &limit(5, STILL), 5)];
    let all = limiter.take_all(&parts).await.unwrap();
    assert!(all.allowed() && all.each.iter().all(|one| one.remaining == 0), "{all:?}");
    let error = limiter.take("a", -1).await.unwrap_err();
    assert!(matches!(error, Error::BadArgument(_)) && error.to_string().contains("cost"), "{error}");
}

#[tokio::test]
async fn a_server_that_gains_the_module_is_asked_for_it_after_a_reconnect() {
    logs::listen();
    let server = Server::start_without_module();
    let limiter = limiter_with(&server, limit(10, STILL), Options::new(), with_script());
    assert_eq!(limiter.take("a", 4).await.unwrap().remaining, 6);
    ask::<()>(&server, &["MODULE", "LOAD", module().to_str().unwrap()]);
    assert_eq!(limiter.take("a", 1).await.unwrap().remaining, 5, "the script, until it looks again");
    ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
    wait_for("the module", Duration::from_secs(5), async || {
        limiter.peek("a", 0).await.unwrap().remaining == 10
    })
    .await;
    assert!(limiter.hold("a", 1, Duration::from_secs(10)).await.is_ok());
    let lines = logs::lines(&server);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].ends_with("has the tokenbucket module: the script decides no longer"), "{lines:?}");
}
