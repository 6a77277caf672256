//! Metrics have the names that envoyproxy/ratelimit gives them, so that dashboards go on.

use crate::{bucket, limits, metric};

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 1}";

fn read(descriptors: &str) -> tokenbucket_gate::limits::Limits {
    limits(&format!("domain: d\ndescriptors:\n{}", descriptors.replace("LIMIT", LIMIT)))
}

#[test]
fn without_flags_the_name_is_what_the_file_has() {
    let limits = read(
        "
- {key: exact, value: v, LIMIT}
- {key: default, LIMIT}
- {key: wild, value: 'a*', LIMIT}
- {key: up, value: '*', descriptors: [{key: down, LIMIT}]}
",
    );
    assert_eq!(metric(&limits, &[("exact", "v")]), "d.exact_v");
    assert_eq!(metric(&limits, &[("default", "v")]), "d.default");
    assert_eq!(metric(&limits, &[("wild", "abc")]), "d.wild_a*");
    assert_eq!(metric(&limits, &[("up", "x"), ("down", "y")]), "d.up_*.down");
}

#[test]
fn detailed_metric_has_all_values() {
    let limits = read(
        "
- {key: a, detailed_metric: true, LIMIT}
- key: b
  descriptors:
  - {key: c, detailed_metric: true, LIMIT}
  - {key: plain, LIMIT}
- {key: w, value: 'x*', detailed_metric: true, LIMIT}
",
    );
    assert_eq!(metric(&limits, &[("a", "1")]), "d.a_1");
    assert_eq!(metric(&limits, &[("a", "")]), "d.a_");
    assert_eq!(metric(&limits, &[("b", "1"), ("c", "2")]), "d.b_1.c_2");
    // Only that of the last level counts.
    assert_eq!(metric(&limits, &[("b", "1"), ("plain", "2")]), "d.b.plain");
    assert_eq!(metric(&limits, &[("w", "xyz")]), "d.w_xyz");
}

#[test]
fn value_to_metric_has_the_values_of_its_levels() {
    let limits = read(
        "
- key: route
  value_to_metric: true
  descriptors:
  - key: method
    descriptors:
    - {key: user, value_to_metric: true, LIMIT}
    - {key: all, detailed_metric: true, value_to_metric: true, LIMIT}
  - {key: action, value: 'read*', value_to_metric: true, LIMIT}
  - {key: action, value: 'write*', LIMIT}
",
    );
    let user = |route, user| metric(&limits, &[("route", route), ("method", "GET"), ("user", user)]);
    assert_eq!(user("api", "7"), "d.route_api.method.user_7");
    assert_eq!(user("", "7"), "d.route.method.user_7");
    assert_eq!(user("api", ""), "d.route_api.method.user");
    assert_eq!(metric(&limits, &[("route", "api"), ("action", "readfile")]), "d.route_api.action_readfile");
    assert_eq!(metric(&limits, &[("route", "api"), ("action", "writefile")]), "d.route_api.action_write*");
    assert_eq!(
        metric(&limits, &[("route", "api"), ("method", "GET"), ("all", "x")]),
        "d.route_api.method_GET.all_x"
    );
}

#[test]
fn share_threshold_has_the_pattern_in_metrics_and_buckets() {
    let limits = read(
        "
- {key: file, value: exact, LIMIT}
- {key: file, value: 'e*', share_threshold: true, value_to_metric: true, LIMIT}
- key: user
  value: 'u*'
  share_threshold: true
  descriptors:
  - {key: action, LIMIT}
  - {key: detail, detailed_metric: true, LIMIT}
  - {key: file, value: 'f*', LIMIT}
  - {key: both, value: 'b*c', share_threshold: true, LIMIT}
",
    );
    assert_eq!(metric(&limits, &[("file", "e1")]), "d.file_e*");
    assert_eq!(bucket(&limits, &[("file", "e1")]), "d|{file=e*}");
    assert_eq!(bucket(&limits, &[("file", "exact")]), "d|{file=exact}");
    // Entry by entry, also if the limit is deeper down.
    assert_eq!(metric(&limits, &[("user", "u1"), ("action", "x")]), "d.user_u*.action");
    assert_eq!(bucket(&limits, &[("user", "u1"), ("action", "x")]), "d|{user=u*}|action=x");
    assert_eq!(metric(&limits, &[("user", "u1"), ("detail", "x")]), "d.user_u*.detail_x");
    assert_eq!(metric(&limits, &[("user", "u1"), ("detail", "")]), "d.user_u*.detail");
    assert_eq!(bucket(&limits, &[("user", "u1"), ("file", "f1")]), "d|{user=u*}|file=f1");
    assert_eq!(metric(&limits, &[("user", "u1"), ("file", "f1")]), "d.user_u*.file_f*");
    assert_eq!(bucket(&limits, &[("user", "u1"), ("both", "bxc")]), "d|{user=u*}|both=b*c");
}
