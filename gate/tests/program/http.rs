use serde_json::{json, Value};

use crate::gate::{get, Setup};
use crate::servers::{self, Server};
use crate::{asks, started, TWO};

fn body(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `/json` is the gRPC call in proto3 JSON: 200, 429, or 400 with a reason.
#[test]
fn answers_json() {
    let (_redis, gate) = started(&[]);
    let first = gate.json(&asks("a"));
    assert_eq!(first.status, 200);
    assert_eq!(first.header("content-type"), Some("application/json"));
    let limit = json!({"requestsPerUnit": 2, "unit": "MINUTE"});
    let status =
        json!({"code": "OK", "currentLimit": limit, "limitRemaining": 1, "durationUntilReset": "30s"});
    assert_eq!(body(&first.body), json!({"overallCode": "OK", "statuses": [status]}));
    assert_eq!(gate.json(&asks("a")).status, 200);
    let denied = gate.json(&asks("a"));
    assert_eq!(denied.status, 429);
    assert_eq!(body(&denied.body)["overallCode"], "OVER_LIMIT");
}

/// The override of an operator counts in place of the limit of the file.
#[test]
fn says_no_quota_while_an_override_counts() {
    let redis = Server::start();
    let check = "domain: d\nrules: [{descriptors: [{entries: [{key: key, value: a}]}]}]\n";
    let setup = Setup::redis(&redis.url()).file("two.yaml", TWO).file("../../check.yaml", check);
    let settings = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("CHECK_FILE", "check.yaml")];
    let gate = setup.set_all(&settings).start();
    gate.wait_until_healthy();
    let _: redis::Value =
        servers::ask(&redis, &["TB.OVERRIDE", "d|{key=a}", "50", "50/d", "86400000", "FULL"]);

    let status = json!({"code": "OK", "limitRemaining": 49, "durationUntilReset": "1728s"});
    let header = |name: &str, value: &str| json!({"key": name, "value": value});
    let headers = [header("RateLimit-Remaining", "49"), header("RateLimit-Reset", "1728")];
    let expected = json!({"overallCode": "OK", "statuses": [status], "responseHeadersToAdd": headers});
    assert_eq!(body(&gate.json(&asks("a")).body), expected);
    let checked = gate.http("GET", "/check", "");
    assert!(
        checked.header("ratelimit").is_some_and(|left| left.starts_with(r#""key";r=48;"#)),
        "{checked:?}"
    );
    assert_eq!(checked.header("ratelimit-policy"), None);
}

#[test]
fn says_what_is_wrong_with_json() {
    let (_redis, gate) = started(&[]);
    for (request, reason) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("[]", "invalid type: sequence, expected a map at line 1 column 0"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain":"d"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain":7}"#, "domain: invalid type: integer `7`, expected a string at line 1 column 11"),
        (r#"{"domain":"d","descriptor":[]}"#, "unrecognized field name 'descriptor' at line 1 column 26"),
        (
            r#"{"domain":"d","hitsAddend":-1}"#,
            "hitsAddend: out of range integral type conversion attempted at line 1 column 29",
        ),
        (
            r#"{"domain":"d","descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#,
            "descriptors[0].limit.unit: unrecognized enum value 'FORTNIGHT' at line 1 column 57",
        ),
    ] {
        let reply = gate.json(request);
        assert_eq!((reply.status, reply.body), (400, format!("Bad Request: {reason}\n")), "{request}");
    }
    // Those of the service are errors of it, as over gRPC.
    assert_eq!(gate.metric("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}"), 2);
}

/// `/rlconfig` shows what is loaded, and is not on the port of proxies. `/metrics` is on both.
#[test]
fn shows_limits_and_metrics() {
    let (_redis, gate) = started(&[("USE_PROMETHEUS", "true")]);
    assert!(gate.rlconfig().contains("d.key"));
    assert_eq!(gate.http("GET", "/rlconfig", "").status, 404);
    gate.json(&asks("a"));
    for port in [gate.http, gate.prometheus] {
        let metrics = get(port, "/metrics", &[]).body;
        let line = r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="key"} 1"#;
        assert!(metrics.lines().any(|known| known == line), "{metrics}");
    }
}
