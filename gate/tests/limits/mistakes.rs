//! Each mistake has its line, and the words of envoyproxy/ratelimit where it refuses the same.

use tokenbucket_gate::limits::{Limits, Options};

use crate::{file, limits};

fn mistake(text: &str) -> String {
    match Limits::read(&[file("f.yaml", text)], &Options::default()) {
        Err(mistake) => mistake.to_string(),
        Ok(limits) => panic!("no mistake in\n{text}\nbut\n{}", limits.dump()),
    }
}

/// The mistake in one descriptor, which begins in line 3; the lines of `text` are from there on.
fn in_descriptor(text: &str) -> String {
    mistake(&format!("domain: d\ndescriptors:\n  - {}\n", text.replace('\n', "\n    ")))
}

/// The mistake in a `rate_limit`, whose first line is line 5.
fn in_limit(text: &str) -> String {
    in_descriptor(&format!("key: k\nrate_limit:\n  {}", text.replace('\n', "\n  ")))
}

#[test]
fn files_are_refused_in_the_words_of_ratelimit() {
    for (text, expected) in [
        ("", "1: config file cannot have empty domain"),
        ("# nothing\n---\n", "1: config file cannot have empty domain"),
        ("descriptors: []", "1: config file cannot have empty domain"),
        ("descriptors: []\ndomain: ''", "2: config file cannot have empty domain"),
        ("domain: d\n\nratelimits: []", "3: config error, unknown key 'ratelimits'"),
        ("0.25: d\ndomain: d", "1: config error, key is not of type string: 0.25"),
        (
            "domain: d\ndescriptors:\n  - a\n",
            "3: config error, yaml file contains list of type other than map: a",
        ),
    ] {
        assert_eq!(mistake(text), format!("f.yaml:{expected}"), "{text}");
    }
}

#[test]
fn descriptors_are_refused_in_the_words_of_ratelimit() {
    for (text, expected) in [
        ("value: v", "3: descriptor has empty key"),
        ("key: k\nratelimit: {}", "4: config error, unknown key 'ratelimit'"),
        (
            "key: k\nvalue: v\nshare_threshold: true",
            "5: share_threshold can only be used with wildcard values (containing '*'), but found key 'k_v'",
        ),
        (
            "key: k\ndescriptors:\n- key: a\n  value: b\n- key: a_b",
            "7: duplicate descriptor composite key 'd.k.a_b' (first at f.yaml:5)",
        ),
    ] {
        assert_eq!(in_descriptor(text), format!("f.yaml:{expected}"));
    }
}

#[test]
fn limits_are_refused_in_the_words_of_ratelimit() {
    for (text, expected) in [
        ("unit: fortnight\nrequests_per_unit: 1", "5: invalid rate limit unit 'fortnight'"),
        ("requests_per_unit: 1", "5: invalid rate limit unit ''"),
        ("unit: unknown\nrequests_per_unit: 1", "5: invalid rate limit unit 'unknown'"),
        ("unlimited: true\nunit: Day", "6: should not specify rate limit unit when unlimited"),
        (
            "name: a\nunit: day\nreplaces:\n- name: b\n- name: a",
            "9: replaces should not contain name of same descriptor",
        ),
        ("unit: day\nreplaces:\n- name: ''", "7: should not have an empty replaces entry"),
        ("unit: day\nreplaces: [x]", "6: config error, yaml file contains list of type other than map: x"),
        ("unit: day\nrequestsperunit: 5", "6: config error, unknown key 'requestsperunit'"),
    ] {
        assert_eq!(in_limit(text), format!("f.yaml:{expected}"));
    }
}

#[test]
fn values_of_another_type_are_refused_with_the_type_that_is_wanted() {
    for (text, expected) in [
        ("x", "1: error loading config file: the file must be a mapping of domain and descriptors, not 'x'"),
        ("domain: [d]", "1: error loading config file: domain must be a text, not a list"),
        (
            "domain: d\ndescriptors: x",
            "2: error loading config file: descriptors must be a list of mappings, not 'x'",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: 5",
            "4: error loading config file: rate_limit must be a mapping, not '5'",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  shadow_mode: 'true'",
            "4: error loading config file: shadow_mode must be true or false, not 'true'",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  metadata: [a]",
            "4: error loading config file: metadata must be a mapping, not a list",
        ),
    ] {
        assert_eq!(mistake(text), format!("f.yaml:{expected}"));
    }
    for requests in ["-1", "1.5", "4294967296", "'5'", "many", "010", "[1]"] {
        let shown = if requests.starts_with('[') {
            "a list".to_owned()
        } else {
            format!("'{}'", requests.trim_matches('\''))
        };
        let expected =
            "error loading config file: requests_per_unit must be a whole number from 0 to 4294967295, not";
        assert_eq!(
            in_limit(&format!("unit: day\nrequests_per_unit: {requests}")),
            format!("f.yaml:6: {expected} {shown}")
        );
    }
}

#[test]
fn keys_in_a_wrong_place_are_refused_where_ratelimit_ignores_them() {
    assert_eq!(
        in_limit("unit: day\nshadow_mode: true"),
        "f.yaml:6: config error, key 'shadow_mode' belongs in a descriptor, not in rate_limit"
    );
    assert_eq!(
        in_descriptor("key: k\nunit: day"),
        "f.yaml:4: config error, key 'unit' belongs in rate_limit, not in a descriptor"
    );
    assert_eq!(
        mistake("domain: d\nkey: k"),
        "f.yaml:2: config error, key 'key' belongs in a descriptor, not in the file"
    );
    assert_eq!(
        in_descriptor("key: k\nname: n"),
        "f.yaml:4: config error, key 'name' belongs in rate_limit, not in a descriptor"
    );
    // Except in a dump of a control plane.
    assert!(limits("name: d\ndomain: d\ndescriptors: []").has_domain("d"));
}

#[test]
fn keys_of_ours_are_judged() {
    for (text, expected) in [
        ("rate: 100/min", "5: rate: unknown unit 'min' in '100/min', use m"),
        (
            "rate: 5@mo+31d",
            "5: rate: days '+31d' in '5@mo+31d' must be +0d to +30d (the 31st or the last day)",
        ),
        ("rate: -1/s", "5: rate: count '-1' in '-1/s' must not be negative"),
        ("rate: 0", "5: rate must be above 0: requests_per_unit: 0 denies every request"),
        ("rate: 0.5", "5: a capacity below 1 never lets a request pass: set capacity to 1 or more"),
        (
            "rate: 5\ncapacity: 0.5",
            "6: a capacity below 1 never lets a request pass: set capacity to 1 or more",
        ),
        ("rate: 5\nunit: day", "6: rate replaces unit: use one of them"),
        ("rate: 5\nrequests_per_unit: 5", "6: rate replaces requests_per_unit: use one of them"),
        ("rate: 5@d\nwindow: calendar", "6: rate replaces window: use one of them"),
        (
            "unit: day\nrequests_per_unit: 5\nwindow: sliding",
            "7: invalid window 'sliding': only calendar is known",
        ),
        ("unit: day\ncapacity: 5", "6: capacity needs requests_per_unit above 0"),
        ("unlimited: true\nrate: 5", "6: should not specify rate when unlimited"),
    ] {
        let found = in_limit(text);
        assert!(found.starts_with(&format!("f.yaml:{expected}")), "{text}: {found}");
    }
    let found = in_limit("rate: 5\ncapacity: ten");
    assert!(found.starts_with("f.yaml:6: capacity"), "{found}");
}

#[test]
fn yaml_is_judged() {
    let found = mistake("'''\n");
    assert!(found.starts_with("f.yaml:") && found.contains(": error loading config file: "), "{found}");
    let found = mistake("domain: d\ndescriptors: [\n");
    assert!(found.contains(": error loading config file: "), "{found}");
    let found = mistake("domain: d\ndescriptors:\n- key: k\n  value: a\n  value: b\n");
    assert_eq!(found, "f.yaml:5: error loading config file: mapping key 'value' already defined at line 4");
    let found = mistake("domain: d\n---\ndomain: e\n");
    assert_eq!(found, "f.yaml:3: more than one YAML document in a file: each domain needs its own file");
}

#[test]
fn a_domain_is_in_one_file_unless_they_may_merge() {
    let files = [
        file(
            "a.yaml",
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
        ),
        file(
            "b.yaml",
            "descriptors:\n- key: b\n  rate_limit: {unit: day, requests_per_unit: 2}\ndomain: d\n",
        ),
    ];
    let mistake = Limits::read(&files, &Options::default()).unwrap_err();
    assert_eq!(mistake.to_string(), "b.yaml:4: duplicate domain 'd' in config file (first at a.yaml:1)");

    let merging = Options { merge: true, ..Options::default() };
    let merged = Limits::read(&files, &merging).unwrap();
    assert_eq!(crate::requests(&merged, &[("a", "x")]), Some(1));
    assert_eq!(crate::requests(&merged, &[("b", "x")]), Some(2));

    let twice = [files[0].clone(), file("c.yaml", &files[0].text)];
    let mistake = Limits::read(&twice, &merging).unwrap_err();
    assert_eq!(mistake.to_string(), "c.yaml:3: duplicate descriptor composite key 'd.a' (first at a.yaml:3)");
}

#[test]
fn what_yaml_offers_is_understood() {
    let text = "
domain: d
descriptors:
- key: number
  value: 404
  rate_limit: &limit
    unit: MINUTE
    requests_per_unit: 1_000
- key: 'yes'
  value: null
  shadow_mode: yes
  rate_limit: *limit
- key: merged
  rate_limit:
    <<: *limit
    requests_per_unit: 7
- key: whitelisted
  rate_limit:
";
    let limits = limits(text);
    assert_eq!(crate::requests(&limits, &[("number", "404")]), Some(1000));
    assert_eq!(crate::requests(&limits, &[("yes", "any")]), Some(1000));
    assert_eq!(crate::requests(&limits, &[("merged", "any")]), Some(7));
    assert_eq!(crate::requests(&limits, &[("whitelisted", "any")]), None);
    assert_eq!(
        limits.dump(),
        "d.merged: unit=MINUTE requests_per_unit=7, shadow_mode: false, quota_mode: false\n\
         d.number_404: unit=MINUTE requests_per_unit=1000, shadow_mode: false, quota_mode: false\n\
         d.yes: unit=MINUTE requests_per_unit=1000, shadow_mode: true, quota_mode: false\n"
    );
}
