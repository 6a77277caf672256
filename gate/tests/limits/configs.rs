//! Configurations of a control plane mean what the same files mean.

use envoy_types::pb::google::protobuf::value::Kind;
use tokenbucket_gate::limits::config_messages::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};
use tokenbucket_gate::limits::{Limits, Options};
use tokenbucket_gate::messages::{Struct, Unit, Value};

use crate::descriptors::{config, descriptor, limited};
use crate::{limits, requests};

fn read(configs: &[RateLimitConfig]) -> Result<Limits, String> {
    Limits::of_configs(configs, &Options::default())
}

fn mistake(configs: &[RateLimitConfig]) -> String {
    match read(configs) {
        Err(mistake) => mistake,
        Ok(limits) => panic!("no mistake in {configs:?}\nbut\n{}", limits.dump()),
    }
}

fn with(policy: RateLimitPolicy) -> RateLimitDescriptor {
    RateLimitDescriptor { rate_limit: Some(policy), ..descriptor("k", "v", Vec::new()) }
}

fn policy(unit: i32) -> RateLimitPolicy {
    RateLimitPolicy { unit, requests_per_unit: 5, ..RateLimitPolicy::default() }
}

/// The chains of Envoy Gateway: route, then headers, method, path, addresses; limits at their ends, all units.
#[test]
fn chains_of_envoy_gateway_are_those_of_files() {
    let route = "httproute/default/shop/rule/0/match/0/www_example_com";
    let address = descriptor(
        "masked_remote_address",
        "10.0.0.0/8",
        vec![limited("remote_address", "", 3, Unit::Minute)],
    );
    let shadow = RateLimitDescriptor {
        shadow_mode: true,
        ..limited("rule-3-match--1", "rule-3-match--1", 7, Unit::Day)
    };
    let rules = vec![
        descriptor("rule-0-match-0", "rule-0-match-0", vec![limited("rule-0-match-1", "", 20, Unit::Second)]),
        descriptor(
            "rule-1-method",
            "rule-1-method",
            vec![limited("rule-1-path", "rule-1-path", 0, Unit::Hour)],
        ),
        address,
        shadow,
        limited("rule-4-match--1", "rule-4-match--1", 8, Unit::Week),
        limited("rule-5-match--1", "rule-5-match--1", 9, Unit::Month),
        limited("rule-6-match--1", "rule-6-match--1", 10, Unit::Year),
    ];
    let shared = limited("default/policy/rule/0", "default/policy/rule/0", 4, Unit::Minute);
    let sent =
        read(&[config("d", vec![descriptor(route, route, rules)]), config("default/policy", vec![shared])]);
    let sent = sent.expect("no mistake");
    let text = "domain: d
descriptors:
  - key: ROUTE
    value: ROUTE
    descriptors:
      - {key: rule-0-match-0, value: rule-0-match-0, descriptors: [{key: rule-0-match-1, rate_limit: {unit: second, requests_per_unit: 20}}]}
      - {key: rule-1-method, value: rule-1-method, descriptors: [{key: rule-1-path, value: rule-1-path, rate_limit: {unit: hour, requests_per_unit: 0}}]}
      - {key: masked_remote_address, value: 10.0.0.0/8, descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 3}}]}
      - {key: rule-3-match--1, value: rule-3-match--1, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 7}}
      - {key: rule-4-match--1, value: rule-4-match--1, rate_limit: {unit: week, requests_per_unit: 8}}
      - {key: rule-5-match--1, value: rule-5-match--1, rate_limit: {unit: month, requests_per_unit: 9}}
      - {key: rule-6-match--1, value: rule-6-match--1, rate_limit: {unit: year, requests_per_unit: 10}}
";
    let files = limits(&text.replace("ROUTE", route));
    let shared_line =
        "default/policy.default/policy/rule/0_default/policy/rule/0: unit=MINUTE requests_per_unit=4";
    let (shared, own): (Vec<_>, Vec<_>) =
        sent.dump().lines().map(str::to_owned).partition(|line| line.starts_with("default/policy."));
    assert_eq!(own, files.dump().lines().collect::<Vec<_>>());
    assert!(matches!(&shared[..], [line] if line.starts_with(shared_line)), "{shared:?}");
    assert_eq!(own.len(), 7);
    let caller = [(route, route), ("masked_remote_address", "10.0.0.0/8"), ("remote_address", "10.1.2.3")];
    assert_eq!(requests(&sent, &caller), Some(3));
}

/// Whatever texts look like, they are texts; all fields arrive.
#[test]
fn fields_are_those_of_files() {
    let names = [("true", "~"), ("12", "0.5"), ("a\u{85}b\u{7f}", "*")]
        .map(|(key, value)| limited(key, value, 2, Unit::Hour));
    let metadata = Value { kind: Some(Kind::StringValue("7".to_owned())) };
    let metadata = Struct { fields: [("tier".to_owned(), metadata)].into() };
    let all = RateLimitDescriptor {
        quota_mode: true,
        detailed_metric: true,
        metadata: Some(metadata.clone()),
        ..with(RateLimitPolicy {
            name: "named".to_owned(),
            replaces: vec![RateLimitReplace { name: "other".to_owned() }],
            ..policy(1)
        })
    };
    let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
    let unlimited = RateLimitDescriptor { key: "u".to_owned(), ..with(unlimited) };
    let limits = read(&[config("d", [names.to_vec(), vec![all, unlimited]].concat())]).expect("no mistake");
    for entry in [("true", "~"), ("12", "0.5"), ("a\u{85}b\u{7f}", "anything")] {
        assert_eq!(requests(&limits, &[entry]), Some(2), "{entry:?}");
    }
    let all = limits.find("d", &crate::descriptor(&[("k", "v")])).expect("a limit");
    assert!(
        all.rule.quota_mode && all.rule.name == "named" && all.rule.replaces == ["other"],
        "{:?}",
        all.rule
    );
    assert_eq!((all.metric.as_str(), all.rule.metadata.as_ref()), ("d.k_v", Some(&metadata)));
    assert!(limits.find("d", &crate::descriptor(&[("u", "v")])).expect("a limit").rule.unlimited);
}

/// The words of envoyproxy/ratelimit, with the configuration and the descriptor. An unknown number of a unit is one.
#[test]
fn mistakes_name_configuration_and_descriptor() {
    let below =
        |one| config("gw", vec![limited("first", "", 1, Unit::Hour), descriptor("route", "r", vec![one])]);
    let replaces = |name: &str| vec![RateLimitReplace { name: name.to_owned() }];
    for (one, expected) in [
        (with(policy(42)), "'route_r.k_v': invalid rate limit unit '42'"),
        (with(policy(0)), "'route_r.k_v': invalid rate limit unit 'UNKNOWN'"),
        (with(RateLimitPolicy::default()), "'route_r.k_v': invalid rate limit unit 'UNKNOWN'"),
        (
            with(RateLimitPolicy { unlimited: true, ..policy(1) }),
            "'route_r.k_v': should not specify rate limit unit when unlimited",
        ),
        (
            with(RateLimitPolicy { replaces: replaces(""), ..policy(1) }),
            "'route_r.k_v': should not have an empty replaces entry",
        ),
        (
            with(RateLimitPolicy { name: "n".to_owned(), replaces: replaces("n"), ..policy(1) }),
            "'route_r.k_v': replaces should not contain name of same descriptor",
        ),
        (descriptor("", "", Vec::new()), "'route_r.': descriptor has empty key"),
    ] {
        assert_eq!(mistake(&[below(one)]), format!("config 'gw', descriptor {expected}"));
    }
    let twice = config("gw", vec![limited("k", "v", 1, Unit::Hour), limited("k", "v", 2, Unit::Hour)]);
    let twice = mistake(&[twice]);
    assert!(
        twice.starts_with("config 'gw', descriptor 'k_v': duplicate descriptor composite key 'gw.k_v'"),
        "{twice}"
    );
    assert_eq!(mistake(&[config("", Vec::new())]), "config '': config file cannot have empty domain");
}

/// Two configurations of one domain need `MERGE_DOMAIN_CONFIG`.
#[test]
fn domains_are_merged_if_told_so() {
    let named = |name: &str, key: &str| RateLimitConfig {
        name: name.to_owned(),
        ..config("d", vec![limited(key, "", 1, Unit::Hour)])
    };
    let both = [named("one", "a"), named("two", "b")];
    let twice = mistake(&both);
    assert!(twice.starts_with("config 'two': duplicate domain 'd' in config file"), "{twice}");
    let options = Options { merge: true, ..Options::default() };
    let merged = Limits::of_configs(&both, &options).expect("no mistake");
    assert_eq!((requests(&merged, &[("a", "x")]), requests(&merged, &[("b", "x")])), (Some(1), Some(1)));
}
