//! Metrics have the names that envoyproxy/ratelimit gives them, so that dashboards go on.

use crate::{bucket, limits, metric};

const LIMITS: &str = "domain: d
descriptors:
- {key: exact, value: v, LIMIT}
- {key: default, LIMIT}
- {key: wild, value: 'a*', LIMIT}
- {key: up, value: '*', descriptors: [{key: down, LIMIT}]}
- {key: a, detailed_metric: true, LIMIT}
- {key: b, descriptors: [{key: c, detailed_metric: true, LIMIT}, {key: plain, LIMIT}]}
- {key: w, value: 'x*', detailed_metric: true, LIMIT}
- key: route
  value_to_metric: true
  descriptors:
  - key: method
    descriptors:
    - {key: user, value_to_metric: true, LIMIT}
    - {key: all, detailed_metric: true, value_to_metric: true, LIMIT}
  - {key: action, value: 'read*', value_to_metric: true, LIMIT}
  - {key: action, value: 'write*', LIMIT}
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
";

#[test]
fn names_have_what_the_flags_say() {
    let limits = limits(&LIMITS.replace("LIMIT", "rate_limit: {unit: day, requests_per_unit: 1}"));
    for (entries, expected) in [
        // Without flags, what the file has.
        (&[("exact", "v")][..], "d.exact_v"),
        (&[("default", "v")], "d.default"),
        (&[("wild", "abc")], "d.wild_a*"),
        (&[("up", "x"), ("down", "y")], "d.up_*.down"),
        // detailed_metric: all values. Only that of the last level counts.
        (&[("a", "1")], "d.a_1"),
        (&[("a", "")], "d.a_"),
        (&[("b", "1"), ("c", "2")], "d.b_1.c_2"),
        (&[("b", "1"), ("plain", "2")], "d.b.plain"),
        (&[("w", "xyz")], "d.w_xyz"),
        // value_to_metric: the values of its levels.
        (&[("route", "api"), ("method", "GET"), ("user", "7")], "d.route_api.method.user_7"),
        (&[("route", ""), ("method", "GET"), ("user", "7")], "d.route.method.user_7"),
        (&[("route", "api"), ("method", "GET"), ("user", "")], "d.route_api.method.user"),
        (&[("route", "api"), ("action", "readfile")], "d.route_api.action_readfile"),
        (&[("route", "api"), ("action", "writefile")], "d.route_api.action_write*"),
        (&[("route", "api"), ("method", "GET"), ("all", "x")], "d.route_api.method_GET.all_x"),
        // share_threshold: the pattern, entry by entry, also if the limit is deeper down.
        (&[("file", "e1")], "d.file_e*"),
        (&[("user", "u1"), ("action", "x")], "d.user_u*.action"),
        (&[("user", "u1"), ("detail", "x")], "d.user_u*.detail_x"),
        (&[("user", "u1"), ("detail", "")], "d.user_u*.detail"),
        (&[("user", "u1"), ("file", "f1")], "d.user_u*.file_f*"),
    ] {
        assert_eq!(metric(&limits, entries), expected, "{entries:?}");
    }
    for (entries, expected) in [
        (&[("file", "e1")][..], "d|{file=e*}"),
        (&[("file", "exact")], "d|{file=exact}"),
        (&[("user", "u1"), ("action", "x")], "d|{user=u*}|action=x"),
        (&[("user", "u1"), ("file", "f1")], "d|{user=u*}|file=f1"),
        (&[("user", "u1"), ("both", "bxc")], "d|{user=u*}|both=b*c"),
    ] {
        assert_eq!(bucket(&limits, entries), expected, "{entries:?}");
    }
}
