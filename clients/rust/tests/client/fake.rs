//! The fake, against the module on a server whose clock the test controls.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use tokenbucket_client::fake::Fake;
use tokenbucket_client::sync::{self, Limiter};
use tokenbucket_client::{Decision, Error, JointDecision, Limit, Part};

use crate::clock::{Clock, START_US};
use crate::servers::Server;
use crate::{limit, patient};

const STEPS: usize = 4000;

/// Walks at random over both, and compares every decision. The arithmetic of both, that of the calendar too, is the core's.
#[tokio::test]
async fn the_fake_decides_as_the_server_does() {
    let limits = [limit(10, "1/s"), limit(7, "3/7s"), limit(1000, "100/m"), limit(30, "20@mo+14d-05:00")];
    let pauses_us = [0, 1, 999, 1000, 250_000, 1_000_003, 30_000_000, 28 * 86_400_000_000 - 1];
    let server = Server::started(&["--clock"]);
    let clock = Clock::new(&server.folder);
    let fake = Fake::at(SystemTime::UNIX_EPOCH + Duration::from_micros(START_US as u64));
    let on_server = patient(&server);
    let on_fake = fake.server();
    let limiters =
        |server: &tokenbucket_client::Server| limits.clone().map(|limit| Limiter::new(server, limit));
    let (real, fakes) = (limiters(&on_server), limiters(&on_fake));
    let (mut real_holds, mut fake_holds) = (Vec::new(), Vec::new());
    let mut rng = Rng::with_seed(7);
    for step in 0..STEPS {
        let by_us = pauses_us[rng.usize(..pauses_us.len())];
        clock.advance_us(by_us);
        fake.advance(Duration::from_micros(by_us as u64));
        let which = rng.usize(..limits.len());
        // Some names change their limit.
        let of_name = if rng.u8(..10) == 0 { rng.usize(..limits.len()) } else { which };
        let call = Call {
            name: format!("{}{of_name}", ["a", "b"][rng.usize(..2)]),
            kind: rng.u8(..9),
            amount: [-0.0, 0.5, 1.0, 2.0, 3.3, 0.000001, 11.0, 12.0 * rng.f64()][rng.usize(..8)],
            most: rng.u64(1..20),
            wait: Duration::from_millis(rng.u64(..20_000)),
        };
        let expected = call.on(&real[which], &limits, &mut real_holds);
        let got = call.on(&fakes[which], &limits, &mut fake_holds);
        assert_eq!(got, expected, "step {step}: {call:?} after {by_us} us");
    }
}

#[derive(Debug)]
struct Call {
    name: String,
    kind: u8,
    amount: f64,
    most: u64,
    wait: Duration,
}

impl Call {
    fn on(&self, limiter: &Limiter, limits: &[Limit], holds: &mut Vec<sync::Hold>) -> Vec<Decision> {
        let Self { name, kind, amount, most, wait } = self;
        let parts = [Part::new("a0", &limits[0], *amount), Part::new("b1", &limits[1], 1)];
        let all = |joint: JointDecision| [vec![joint.binding], joint.each].concat();
        let decision = match kind {
            0 => limiter.take(name, *amount),
            1 => limiter.peek(name, *amount),
            2 => limiter.take_up_to(name, *most),
            3 => limiter.reserve(name, *amount, *wait),
            4 => limiter.charge(name, *amount),
            5 => limiter.give(name, *amount),
            6 => return all(limiter.take_all(&parts).unwrap()),
            // Long enough for no renewal to come in between.
            7 => match limiter.hold_all(&parts, 40 * *wait + Duration::from_secs(600)) {
                Ok(hold) => {
                    holds.push(hold);
                    return all(holds.last().unwrap().decision());
                }
                Err(Error::Denied(denied)) => return all(denied),
                Err(error) => panic!("{error}"),
            },
            _ if holds.is_empty() => return Vec::new(),
            _ => {
                let oldest = holds.remove(0);
                oldest.set_used(*amount).unwrap();
                return all(oldest.settle().unwrap());
            }
        };
        vec![decision.unwrap()]
    }
}

#[tokio::test]
async fn a_wait_advances_the_time_of_the_fake() {
    let fake = Fake::new();
    let limiter = tokenbucket_client::Limiter::new(&fake.server(), limit(1, "1/m"));
    let in_turn = limiter.with_max_wait(Duration::from_secs(61));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    for _ in 0..3 {
        assert!(limiter.wait("a", 1, Duration::from_secs(60)).await.unwrap().allowed);
        assert!(in_turn.take("a", 1).await.unwrap().allowed);
    }
    let hurried = in_turn.with_max_wait(Duration::from_secs(1));
    assert_eq!(hurried.take("a", 1).await.unwrap().retry_after_ms, 59_000);
}

#[test]
fn holds_of_the_fake_are_settled_or_expire() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(10, "0"));
    let ttl = Duration::from_secs(30);
    let first = limiter.hold("jobs", 6, ttl).unwrap();
    fake.advance(Duration::from_secs(10));
    let Err(Error::Denied(denied)) = limiter.hold("jobs", 5, ttl) else { panic!("denied") };
    assert_eq!(denied.binding.retry_after_ms, 20_000);
    drop(first);
    assert_eq!(limiter.peek("jobs", 10).unwrap().remaining, 0, "settled when it was dropped");
    std::mem::forget(limiter.hold("jobs", 6, ttl).unwrap());
    fake.advance(ttl);
    assert!(limiter.peek("jobs", 10).unwrap().allowed);
}

#[test]
fn the_fake_refuses_as_the_server_does() {
    let server = Server::start();
    let real = patient(&server);
    let [ours, expected] = [Fake::new().server(), real].map(|server| {
        match Limiter::new(&server, limit(10, "0")).take("jobs", 1) {
            Err(Error::Refused { error, .. }) => (error.kind(), error.to_string()),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(ours, expected);
}

#[test]
fn the_fake_may_be_away() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(1, "1/m"));
    fake.set_away(true);
    assert!(limiter.take("a", 5).unwrap().degraded);
    fake.set_away(false);
    assert!(limiter.take("a", 1).unwrap().degraded, "until it is time to look");
    fake.advance(Duration::from_millis(500));
    assert!(!limiter.take("a", 1).unwrap().degraded);
}
