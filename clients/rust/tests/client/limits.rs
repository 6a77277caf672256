//! What is a limit, and what headers say of it.

use tokenbucket_client::fake::Fake;
use tokenbucket_client::sync::Limiter;
use tokenbucket_client::Limit;

use crate::limit;

#[test]
fn limits_are_what_the_commands_take() {
    for text in [
        "10 5",
        "0 1",
        "0.5 0.25",
        "1e3 1e-3/m",
        "+10 100/m",
        "10 10/10s",
        "10 1/250ms",
        "10 5000/h",
        "10 2/0.5d",
        "10 1/1e-3s",
        "10 0",
        "10 1000@d",
        "10 10@15m",
        "10 5@250ms",
        "10 1@mo",
        "10 1@y",
        "10 1@w",
        "10 1@d+09:00",
        "10 1@d-05:30",
    ] {
        let limit: Limit = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(limit.to_string(), text);
    }
    for text in [
        "",
        "10",
        "10 5 5",
        "-1 5",
        "ten 5",
        "10 -5",
        "10 5/",
        "10 5/w",
        "10 5/y",
        "10 0/s",
        "10 5/0s",
        "10 5/x",
        "10 5@1.5d",
        "10 5@d+9",
        "10 5@d+0900",
        "10 5/d+09:00",
        "10 inf",
        "10 nan",
        "0x10 5",
        "1e13 5",
        "10 2e12",
        "1000000 1/d",
        ". 5",
    ] {
        let limit = text.parse::<Limit>();
        assert!(limit.is_err(), "{limit:?}");
    }
}

#[test]
fn what_is_wrong_with_a_limit_is_said() {
    assert_eq!(
        Limit::new("ten", 5).unwrap_err().to_string(),
        "capacity must be a decimal number of tokens from 0 to 1e12, not 'ten'"
    );
    assert_eq!(
        Limit::new(10, "5/fortnight").unwrap_err().to_string(),
        "rate: unknown unit 'fortnight' in '5/fortnight', use ms, s, m, h or d"
    );
}

#[test]
fn headers_are_those_of_the_draft() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.sync_server(), limit(100, "100/m"));
    let limit = limiter.limit();
    let allowed = limiter.take("a", 49.5).unwrap();
    assert_eq!(
        allowed.headers(limit, "default", 0.0),
        [
            ("ratelimit-policy", r#""default";q=100;w=60"#.into()),
            ("ratelimit", r#""default";r=50;t=30"#.into())
        ]
    );
    let denied = limiter.take("a", 99.5).unwrap();
    assert_eq!(denied.retry_after_ms, 29_400);
    let headers = denied.headers(limit, "api", 0.0);
    assert_eq!(headers[1], ("ratelimit", r#""api";r=50;t=30"#.into()));
    assert_eq!(headers[2], ("retry-after", "30".into()), "rounded up");

    let never = limiter.take("a", 101).unwrap();
    assert_eq!(never.headers(limit, "default", 0.0).len(), 2, "waiting does not help");
    fake.set_away(true);
    let degraded = limiter.take("a", 1).unwrap();
    assert_eq!(degraded.headers(limit, "default", 0.0), [], "nobody has looked");
}

#[test]
fn headers_of_a_pool_name_no_window() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.sync_server(), limit(10, "0"));
    let headers = limiter.peek("a", 1).unwrap().headers(limiter.limit(), "default", 0.0);
    assert_eq!(headers[0].1, r#""default";q=10"#);
}

#[test]
fn jitter_makes_nobody_come_back_earlier() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.sync_server(), limit(1000, "1/s"));
    limiter.take("a", 1000).unwrap();
    let denied = limiter.take("a", 1000).unwrap();
    let waits: Vec<u64> = (0..200)
        .map(|_| denied.headers(limiter.limit(), "default", 0.5)[2].1.parse().expect("seconds"))
        .collect();
    assert!(waits.iter().all(|wait| (1000..=1500).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait < 1250) && waits.iter().any(|wait| *wait > 1250), "{waits:?}");
}
