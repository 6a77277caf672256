//! The app over HTTP, with a real server or cluster.

mod common;

use std::time::{Duration, Instant};

use common::{wait_for, App, Cluster, Server, STILL};

#[tokio::test]
async fn a_burst_passes_and_the_next_request_is_told_when_to_come_back() {
    let server = Server::start();
    let app = App::start(&[("REDIS_URL", &server.url()), ("IP_LIMIT", "3 1/2s")]).await;
    for remaining in [2, 1, 0] {
        let answer = app.get("/").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body, "hello, world\n");
        assert_eq!(answer.rate_limit("q"), 3);
        assert_eq!(answer.rate_limit("r"), remaining);
        assert!((1..=6).contains(&answer.rate_limit("t")), "{answer:?}");
        assert_eq!(answer.header("retry-after"), None);
    }

    let denied = app.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.body, "rate limit exceeded\n");
    assert_eq!(denied.rate_limit("q"), 3);
    assert_eq!(denied.rate_limit("r"), 0);
    assert!((5..=6).contains(&denied.rate_limit("t")), "{denied:?}");
    let retry_after_s = denied.number("retry-after");
    assert!((1..=2).contains(&retry_after_s), "{retry_after_s}");

    tokio::time::sleep(Duration::from_secs(retry_after_s)).await;
    assert_eq!(app.get("/").await.status, 200);
}

#[tokio::test]
async fn each_route_and_each_address_has_a_bucket_of_its_own() {
    let server = Server::start();
    let limit = format!("2 {STILL}");
    let app = App::start(&[("REDIS_URL", &server.url()), ("SEARCH_LIMIT", &limit)]).await;
    let first = app.get("/search").await;
    assert_eq!(first.body, "found; 1 more searches\n", "a handler sees the decision");
    assert_eq!(first.rate_limit("q"), 2, "the limit of the route");
    let policies = first.header("ratelimit-policy").unwrap_or_default();
    assert!(policies.starts_with("\"ip\";q=20;"), "and the one around it: {policies}");
    assert_eq!(app.statuses(2, "/search").await, [200, 429]);
    assert_eq!(app.get("/").await.status, 200);
    assert_eq!(app.get_as("/search", [127, 0, 0, 2]).await.status, 200);
    assert_eq!(app.get("/healthz").await.header("ratelimit"), None, "not limited");
}

#[tokio::test]
async fn a_request_costs_what_its_cost_function_says() {
    let server = Server::start();
    let limit = format!("1000 {STILL}");
    let app = App::start(&[("REDIS_URL", &server.url()), ("EXPORT_LIMIT", &limit)]).await;
    let first = app.get("/export?rows=600").await;
    assert_eq!((first.status, first.rate_limit("r")), (200, 400));
    assert_eq!(first.body, "600 rows\n");

    let denied = app.get("/export?rows=500").await;
    assert_eq!(denied.status, 429);
    // A hundred tokens at six minutes each, less what flowed in since.
    assert!((99 * 360..=100 * 360).contains(&denied.number("retry-after")), "{denied:?}");
    assert_eq!(app.get("/export?rows=400").await.status, 200, "a denial takes nothing");

    let never = app.get("/export?rows=1001").await;
    assert_eq!(never.status, 429);
    assert_eq!(never.body, "the request costs more than its limit holds\n");
    assert_eq!(never.header("retry-after"), None, "waiting does not help");

    for query in ["", "?rows=", "?rows=0", "?rows=-1", "?rows=1e3", "?rows=many"] {
        let answer = app.get(&format!("/export{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(answer.body, "rows must be a whole number from 1 to 1000000000\n");
    }
}

#[tokio::test]
async fn failing_closed_refuses_requests_until_redis_is_back() {
    let mut server = Server::start();
    let limit = format!("3 {STILL}");
    let app = App::start(&[("REDIS_URL", &server.url()), ("IP_LIMIT", &limit), ("ON_ERROR", "closed")]).await;
    assert_eq!(app.statuses(4, "/").await, [200, 200, 200, 429]);

    server.kill();
    let began = Instant::now();
    for _ in 0..10 {
        let answer = app.get("/").await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "refused at once; nobody waits for the timeout");

    server.start_again();
    let mut first = None;
    wait_for("limiting after its return", Duration::from_secs(1), async || {
        let answer = app.get("/").await;
        let limits = answer.header("ratelimit").is_some();
        first = Some(answer);
        limits
    })
    .await;
    // The new server holds full buckets, and that request took the first token.
    assert_eq!(first.expect("an answer").status, 200);
    assert_eq!(app.statuses(3, "/").await, [200, 200, 429]);

    // The outage is over once nothing has failed for a second.
    wait_for("the second warning", Duration::from_secs(10), async || {
        app.get("/").await;
        app.warnings().len() > 1
    })
    .await;
    let warnings = app.warnings();
    assert_eq!(warnings.len(), 2, "one when it begins and one when it ends: {warnings:?}");
    assert!(warnings[0].starts_with("WARN: cannot ask Redis for limits: "), "{warnings:?}");
    assert!(warnings[1].starts_with("WARN: Redis is back, limiting again"), "{warnings:?}");
}

#[tokio::test]
async fn one_node_of_a_cluster_is_enough_to_limit_on_all() {
    let cluster = Cluster::start();
    let limit = format!("1 {STILL}");
    let app = App::start(&[("REDIS_CLUSTER_URLS", &cluster.nodes[2].url()), ("IP_LIMIT", &limit)]).await;
    let clients = (1..=255).map(|last| [127, 0, 0, last]);
    for node in 0..cluster.nodes.len() {
        let of_node = |[a, b, c, d]: &[u8; 4]| cluster.node_of(&format!("tb:ip:{a}.{b}.{c}.{d}")) == node;
        let client = clients.clone().find(of_node).expect("a client");
        assert_eq!(app.get_as("/", client).await.status, 200);
        assert_eq!(app.get_as("/", client).await.status, 429);
    }
    assert_eq!(app.warnings(), [] as [&str; 0]);
}

#[tokio::test]
async fn the_app_starts_while_redis_is_away_and_limits_when_it_comes() {
    let mut server = Server::away();
    let limit = format!("1 {STILL}");
    let app = App::start(&[("REDIS_URL", &server.url()), ("IP_LIMIT", &limit)]).await;
    assert_eq!(app.statuses(2, "/").await, [200, 429], "this process limits alone");
    server.start_again();
    wait_for("limiting", Duration::from_secs(1), async || app.get("/").await.header("ratelimit").is_some())
        .await;
}

#[tokio::test]
async fn a_server_without_the_module_ends_the_app_with_an_error_that_says_so() {
    let server = Server::start_without_module();
    ends_with(&[("REDIS_URL", &server.url())], "127.0.0.1:").await;
}

#[tokio::test]
async fn a_wrong_setting_ends_the_app_with_a_clear_error() {
    for (name, value, says) in [
        ("IP_LIMIT", "20", r#"IP_LIMIT: "20" is not a capacity and a rate, like 20 10/s"#),
        (
            "IP_LIMIT",
            "20 10/w",
            "IP_LIMIT: rate: unknown unit 'w' in '10/w', use 7d, or @w for calendar weeks",
        ),
        ("IP_LIMIT", "-1 10/s", "IP_LIMIT: capacity must be a decimal number of tokens"),
        ("SEARCH_LIMIT", "5 0/s", "SEARCH_LIMIT: rate: count '0' in '0/s' must be above 0"),
        ("EXPORT_LIMIT", "5 1/0s", "EXPORT_LIMIT: rate: period '0s' in '1/0s' must be above 0"),
        ("ON_ERROR", "maybe", r#"ON_ERROR: "maybe" is not 'local', 'open' or 'closed'"#),
        ("REDIS_TIMEOUT_MS", "0", r#"REDIS_TIMEOUT_MS: "0" is not a whole number from 1 to 60000"#),
        ("REDIS_URL", "localhost", "REDIS_URL: "),
        ("REDIS_CLUSTER_URLS", "redis://127.0.0.1:7000,localhost", "REDIS_CLUSTER_URLS: "),
        ("HOST", "nowhere", r#"HOST: "nowhere" is not an IP address"#),
        ("PORT", "http", r#"PORT: "http" is not a port"#),
    ] {
        ends_with(&[(name, value)], says).await;
    }
    let both = [("REDIS_URL", "redis://127.0.0.1"), ("REDIS_CLUSTER_URLS", "redis://127.0.0.1")];
    ends_with(&both, "REDIS_URL and REDIS_CLUSTER_URLS: set one of them").await;
}

#[tokio::test]
async fn a_limit_that_the_server_refuses_ends_the_app_too() {
    let server = Server::start();
    let environment = [("REDIS_URL", server.url().leak() as &str), ("SEARCH_LIMIT", "2000000000000 1000/s")];
    ends_with(&environment, "SEARCH_LIMIT: ").await;
}

async fn ends_with(environment: &[(&str, &str)], says: &str) {
    let mut app = App::spawn(environment);
    assert!(!app.exit_status().await, "{environment:?}");
    let output = app.output();
    assert!(output.starts_with(says), "{output}");
    assert_eq!(output.lines().count(), 1, "{output}");
}
