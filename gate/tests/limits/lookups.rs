//! Which limit a descriptor has, as envoyproxy/ratelimit finds it.

use tokenbucket_gate::messages::{Override, Unit};

use crate::{descriptor, limits, requests};

const NESTED: &str = "
domain: d
descriptors:
- key: a
  value: '1'
  descriptors:
  - key: sub
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: sub
    value: exact
    rate_limit: {unit: second, requests_per_unit: 10}
- key: b
  rate_limit: {unit: minute, requests_per_unit: 20}
- key: b
  value: more
  rate_limit: {unit: minute, requests_per_unit: 30}
- key: b
  value: free
- key: both
  value: levels
  rate_limit: {unit: day, requests_per_unit: 15}
  descriptors:
  - key: sub
    value: v
    rate_limit: {unit: day, requests_per_unit: 25}
";

#[test]
fn the_value_goes_before_the_key_alone_and_the_depth_must_fit() {
    let limits = limits(NESTED);
    for (entries, expected) in [
        (&[("a", "1"), ("sub", "any")][..], Some(5)),
        (&[("a", "1"), ("sub", "exact")], Some(10)),
        (&[("b", "any")], Some(20)),
        (&[("b", "more")], Some(30)),
        (&[("b", "")], Some(20)),
        (&[("both", "levels")], Some(15)),
        (&[("both", "levels"), ("sub", "v")], Some(25)),
        // A value that has no limit is let through, whatever its key has.
        (&[("b", "free")], None),
        // Too deep, not deep enough, another value.
        (&[("b", "more"), ("sub", "v")], None),
        (&[("a", "1")], None),
        (&[("a", "2"), ("sub", "any")], None),
        (&[("both", "levels"), ("sub", "other")], None),
        (&[("unknown", "")], None),
        (&[], None),
    ] {
        assert_eq!(requests(&limits, entries), expected, "{entries:?}");
    }
    assert!(limits.has_domain("d") && !limits.has_domain("e"));
    assert!(limits.find("e", &descriptor(&[("b", "any")])).is_none());
}

#[test]
fn a_star_is_anything_anywhere_and_the_first_of_the_file_wins() {
    let limits = limits(
        "
domain: d
descriptors:
- {key: end, value: foo*, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: middle, value: bar*b, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: many, value: foo*bar*baz, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: order, value: a*, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: order, value: ab*, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: order, value: abc, rate_limit: {unit: day, requests_per_unit: 6}}
- {key: order, rate_limit: {unit: day, requests_per_unit: 7}}
- {key: overlap, value: aba*aba, rate_limit: {unit: day, requests_per_unit: 8}}
- {key: 'in*key', rate_limit: {unit: day, requests_per_unit: 9}}
",
    );
    for (entry, expected) in [
        (("end", "foo1"), Some(1)),
        (("end", "foo"), Some(1)),
        (("end", "fo"), None),
        (("end", "Foo1"), None),
        (("middle", "barb"), Some(2)),
        (("middle", "bar123b"), Some(2)),
        (("middle", "bara"), None),
        (("middle", "xbarb"), None),
        (("many", "foo1bar2baz"), Some(3)),
        (("many", "foobarbaz"), Some(3)),
        (("many", "foobaz"), None),
        (("many", "foobazbar"), None),
        (("order", "abx"), Some(4)),
        (("order", "abc"), Some(6)),
        (("order", "b"), Some(7)),
        (("overlap", "aba"), None),
        (("overlap", "abaaba"), Some(8)),
        (("in the key", "value"), None),
        (("in_the_key", ""), None),
        (("in_the", "key"), Some(9)),
    ] {
        assert_eq!(requests(&limits, &[entry]), expected, "{entry:?}");
    }
}

#[test]
fn a_limit_that_the_request_brings_along_goes_before_that_of_the_file() {
    let limits = limits(NESTED);
    let overridden = |entries: &[(&str, &str)], requests_per_unit, unit: Unit| {
        let limit = Some(Override { requests_per_unit, unit: unit.into() });
        let mut descriptor = descriptor(entries);
        descriptor.limit = limit;
        descriptor
    };
    let asked = overridden(&[("a", "1"), ("sub", "x")], 42, Unit::Month);
    let found = limits.find("d", &asked).unwrap();
    assert_eq!((found.rule.current.requests_per_unit, found.rule.current.unit()), (42, Unit::Month));
    assert_eq!(found.rule.limit.to_string(), "42 42/30d");
    assert_eq!(&*found.metric, "d.a_1.sub_x");
    assert_eq!(found.bucket, "d|{a=1}|sub=x|@MONTH", "the file counts by another unit");
    assert_eq!(limits.find("d", &overridden(&[("b", "any")], 42, Unit::Minute)).unwrap().bucket, "d|{b=any}");

    // Also where the file has none, but not in a domain that there is not, and without a unit it is none.
    assert!(limits.find("d", &overridden(&[("new", "")], 0, Unit::Day)).is_some());
    assert!(limits.find("e", &asked).is_none());
    let without_unit = limits.find("d", &overridden(&[("b", "any")], 1, Unit::Unknown)).unwrap();
    assert_eq!(without_unit.rule.current.requests_per_unit, 20);
}

#[test]
fn the_features_of_ratelimits_example_are_read() {
    let limits = limits(
        "---
domain: d
descriptors:
  - key: account
    value: small
    rate_limit:
      replaces:
        - name: general
        - name: other
      unit: minute
      requests_per_unit: 4
  - key: general
    rate_limit: {name: general, unit: minute, requests_per_unit: 0}
    descriptors:
      - key: quiet
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 3}
      - key: open
        rate_limit: {unlimited: true, replaces: [{name: other}]}
  - {key: ours, rate_limit: {rate: 100/m, capacity: 200}}
  - key: service
    quota_mode: true
    paid_afterwards: true
    rate_limit: {unit: minute, requests_per_unit: 1}
    metadata:
      service: {name: one, tier: 2, tags: [a, true, ~]}
",
    );
    let rule = |entries| limits.find("d", &descriptor(entries)).unwrap().rule;
    assert_eq!(rule(&[("account", "small")]).replaces, ["general", "other"]);
    let general = rule(&[("general", "x")]);
    assert_eq!((&*general.name, &*general.current.name), ("general", "general"));
    let open = rule(&[("general", "x"), ("open", "")]);
    assert!(open.unlimited && open.replaces == ["other"]);
    let metadata = format!("{:?}", rule(&[("service", "x")]).metadata);
    for part in
        ["\"service\"", "StringValue(\"one\")", "NumberValue(2.0)", "BoolValue(true)", "NullValue(NullValue)"]
    {
        assert!(metadata.contains(part), "{part} in {metadata}");
    }
    assert_eq!(
        limits.dump(),
        "\
d.account_small: unit=MINUTE requests_per_unit=4, shadow_mode: false, quota_mode: false
d.general.open: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
d.general.quiet: unit=MINUTE requests_per_unit=3, shadow_mode: true, quota_mode: false
d.general: unit=MINUTE requests_per_unit=0, shadow_mode: false, quota_mode: false
d.ours: unit=MINUTE requests_per_unit=100, shadow_mode: false, quota_mode: false, rate: 100/m, capacity: 200
d.service: unit=MINUTE requests_per_unit=1, shadow_mode: false, quota_mode: true, paid_afterwards: true
"
    );
}
