//! The same from threads.

use std::thread;
use std::time::{Duration, Instant};

use tokenbucket_client::sync::{Limiter, Server};
use tokenbucket_client::{Error, Part};

use crate::{limit, patient, servers, STILL};

#[tokio::test]
async fn every_operation() {
    let server = servers::Server::start();
    let limiter = Limiter::new(&Server::connect_with(server.url(), patient()).unwrap(), limit(10, STILL));
    assert_eq!(limiter.take("a", 4).unwrap().remaining, 6);
    assert_eq!(limiter.peek("a", 1).unwrap().remaining, 5);
    assert_eq!(limiter.take_up_to("a", 2).unwrap().granted, 2);
    assert_eq!(limiter.charge("a", 5).unwrap().remaining, -1);
    assert_eq!(limiter.give("a", 6).unwrap().remaining, 5);
    assert!(limiter.take_all(&[Part::new("b", &limit(1, STILL), 1)]).unwrap().allowed());
    assert!(!limiter.reserve("a", 6, Duration::from_secs(1)).unwrap().allowed);
    let fast = limiter.with_limit(limit(1, "10/s"));
    let began = Instant::now();
    for _ in 0..3 {
        assert!(fast.wait("c", 1, Duration::from_secs(5)).unwrap().allowed);
    }
    assert!(began.elapsed() >= Duration::from_millis(100));
    let hold = limiter.hold("a", 5, Duration::from_millis(900)).unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 0, "renewed");
    hold.set_used(2);
    hold.settle().unwrap();
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 3);
    assert!(limiter.take("a", -1).is_err());
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 3);
    server.signal("STOP");
    let hurried = limiter.within(Duration::from_millis(10)).take("a", 1);
    assert!(matches!(hurried, Err(Error::DeadlinePassed)), "{hurried:?}");
    server.signal("CONT");
    // Late, and given back.
    servers::wait_for("the token", Duration::from_secs(5), async || {
        limiter.peek("a", 0).unwrap().remaining == 3
    })
    .await;
}
