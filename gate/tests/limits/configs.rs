//! Configurations of a control plane mean what the same files mean.

use envoy_types::pb::google::protobuf::value::Kind;
use tokenbucket_gate::limits::config_messages::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
};
use tokenbucket_gate::limits::{Limits, Options};
use tokenbucket_gate::messages::{Struct, Unit, Value};

use crate::descriptors::{config, descriptor, limited};
use crate::requests;

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
fn chains_of_envoy_gateway_are_limits() {
    let route = "httproute/default/shop/rule/0/match/0/www_example_com";
    let address = vec![limited("remote_address", "", 3, Unit::Minute)];
    let shadow = RateLimitDescriptor { shadow_mode: true, ..limited("rule-3", "rule-3", 0, Unit::Day) };
    let rules = vec![
        descriptor("rule-0", "rule-0", vec![limited("rule-1", "", 20, Unit::Second)]),
        descriptor("masked_remote_address", "10.0.0.0/8", address),
        shadow,
        limited("rule-4", "rule-4", 8, Unit::Week),
        limited("rule-5", "rule-5", 9, Unit::Month),
        limited("rule-6", "rule-6", 10, Unit::Year),
        limited("rule-7", "rule-7", 11, Unit::Hour),
    ];
    let limits = read(&[config("default/eg", vec![descriptor(route, route, rules)])]).expect("no mistake");
    let dump = limits.dump().replace(&format!("default/eg.{route}_{route}."), "");
    let dump = dump.replace(" shadow_mode: false, quota_mode: false", "");
    assert_eq!(
        dump,
        "\
masked_remote_address_10.0.0.0/8.remote_address: unit=MINUTE requests_per_unit=3,
rule-0_rule-0.rule-1: unit=SECOND requests_per_unit=20,
rule-3_rule-3: unit=DAY requests_per_unit=0, shadow_mode: true, quota_mode: false
rule-4_rule-4: unit=WEEK requests_per_unit=8,
rule-5_rule-5: unit=MONTH requests_per_unit=9,
rule-6_rule-6: unit=YEAR requests_per_unit=10,
rule-7_rule-7: unit=HOUR requests_per_unit=11,
"
    );
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
    let [one, two] = ["a", "b"].map(|key| config("gw", vec![limited(key, "", 1, Unit::Hour)]));
    let both = [one, RateLimitConfig { name: "two".to_owned(), ..two }];
    assert!(mistake(&both).starts_with("config 'two': duplicate domain 'gw' in config file"));
    let merged = Limits::of_configs(&both, &Options { merge: true, ..Options::default() });
    assert_eq!(merged.expect("no mistake").dump().lines().count(), 2);
}
