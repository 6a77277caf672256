//! What is a limit, and what headers say of it.

use std::time::Duration;

use tokenbucket_client::fake::Fake;
use tokenbucket_client::sync::Limiter;
use tokenbucket_client::{Error, Limit, Server};

use crate::limit;

/// The rules are those of the core, which tests them.
#[test]
fn limits_are_what_the_commands_take() {
    for text in ["10 5", "+10 100/m", "1e3 1e-3/m", "10 1/250ms", "10 0", "10 1@mo", "10 1@3mo+14d-05:30"] {
        assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
    }
    for (text, error) in [
        ("10", "\"10\" is not a capacity and a rate, like 20 10/s"),
        ("10 5 5", "\"10 5 5\" is not a capacity and a rate, like 20 10/s"),
        ("ten 5", "capacity must be a decimal number of tokens from 0 to 1e12, not 'ten'"),
        ("10 5/fortnight", "rate: unknown unit 'fortnight' in '5/fortnight', use ms, s, m, h or d"),
    ] {
        assert_eq!(text.parse::<Limit>().unwrap_err().to_string(), error);
    }
}

#[test]
fn a_mistake_is_one_line_that_names_it() {
    let write = "invalid URL: write redis://host:port, rediss://host:port for TLS, or unix:///path";
    for url in ["localhost:6379", "http://localhost", ""] {
        let error = Server::connect(url).unwrap_err().to_string();
        assert!(error.starts_with(write), "{error}");
    }
    for (master, sentinel, problem) in [
        ("redis://main", Some("localhost:26379"), write),
        ("redis://main", None, "sentinels need a URL"),
        ("unix:///tmp/socket", Some("redis://localhost"), "the URL of the master needs its name as the host"),
    ] {
        let error = Server::sentinel(master, sentinel).unwrap_err().to_string();
        assert!(error.starts_with(problem), "{error}");
    }
    let error = Server::connect("rediss://localhost").unwrap_err().to_string();
    assert!(error.starts_with("rediss:// needs the redis crate with a feature for TLS"), "{error}");
    let server = Fake::new().server();
    let limiter = Limiter::new(&server, limit(1, "1/h"));
    assert_eq!(limiter.take_all(&[]).unwrap_err().to_string(), "no limit is named");
    for wrong in [limiter.take("a", -1), limiter.give("a", f64::NAN), limiter.take_up_to("a", 0)] {
        assert!(matches!(wrong, Err(Error::BadArgument(_))), "{wrong:?}");
    }
}

#[test]
fn the_least_float_is_an_amount_and_a_wrong_report_changes_nothing() {
    let limiter = Limiter::new(&Fake::new().server(), limit(10, "1/h"));
    let hold = limiter.hold("a", 5, Duration::from_secs(60)).unwrap();
    hold.set_used(f64::MIN_POSITIVE).unwrap();
    for wrong in [hold.set_used(f64::NAN), hold.set_used_of(1, 1)] {
        assert!(matches!(wrong, Err(Error::BadArgument(_))), "{wrong:?}");
    }
    assert_eq!(hold.settle().unwrap().binding.remaining, 10);
}

#[test]
fn headers_are_those_of_the_draft() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(100, "100/m"));
    let limit = limiter.limit();
    let allowed = limiter.take("a", 49.5).unwrap();
    let policy = ("ratelimit-policy", r#""default";q=100;w=60"#.into());
    let state = ("ratelimit", r#""default";r=50;t=30"#.into());
    assert_eq!(allowed.headers(limit, "default"), [policy, state]);
    let denied = limiter.take("a", 99.5).unwrap();
    assert_eq!(denied.retry_after_ms, 29_400);
    let headers = denied.headers(limit, "api");
    assert_eq!(headers[1], ("ratelimit", r#""api";r=50;t=30"#.into()));
    assert_eq!(headers[2], ("retry-after", "30".into()), "rounded up");

    for (rate, window_s) in [("50@w+6d", 7), ("50@mo+14d-05:00", 30), ("50@3mo", 90), ("50@y", 365)] {
        let policy = format!("\"api\";q=50;w={}", window_s * 86_400);
        assert_eq!(allowed.headers(&crate::limit(50, rate), "api")[0].1, policy);
    }
    let pool = crate::limit(50, "0");
    assert_eq!(allowed.headers(&pool, "api")[0].1, r#""api";q=50"#, "it has no window");
    let raised = allowed.headers(&crate::limit(49, "1"), "api");
    assert_eq!(raised, [("ratelimit", r#""api";r=50;t=30"#.into())], "an override counts");
    let never = limiter.take("a", 101).unwrap();
    assert_eq!(never.headers(limit, "default").len(), 2, "waiting does not help");
    fake.set_away(true);
    let degraded = limiter.take("a", 1).unwrap();
    assert_eq!(degraded.headers(limit, "default"), [], "nobody has looked");
}
