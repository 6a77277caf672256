//! What is replied, by a simulated server whose time stands still.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::google::protobuf::value::Kind;
use tokenbucket_client::fake::Fake;
use tokenbucket_client::Limit;
use tokenbucket_gate::decide::Policy;
use tokenbucket_gate::limits::Rule;
use tokenbucket_gate::messages::{CurrentLimit, Response, Status, Struct, Unit, Value};

use crate::{decide, decider, descriptor, hits, hourly, policy, quota, request, rule, shadow, summary, take};

fn per_minute(count: u32) -> Rule {
    Rule {
        limit: Limit::new(count, format!("{count}/m")).unwrap(),
        current: CurrentLimit { requests_per_unit: count, unit: Unit::Minute.into(), name: String::new() },
        unit_ms: 60_000,
        ..hourly(count)
    }
}

fn reset_s(response: &Response) -> Vec<Option<i64>> {
    response.statuses.iter().map(|status| status.duration_until_reset.map(|one| one.seconds)).collect()
}

#[tokio::test]
async fn reset_is_when_the_bucket_is_full_or_the_call_passes() {
    let fake = Fake::new();
    let (decider, _) = decider(&fake.server(), policy());
    let found = [rule(per_minute(3), "k")];
    assert_eq!(reset_s(&take(&decider, &found, 2).await), [Some(40)]);
    fake.advance(Duration::from_millis(100));
    assert_eq!(reset_s(&take(&decider, &found, 2).await), [Some(20)], "rounded up");
    assert_eq!(reset_s(&take(&decider, &found, 4).await), [Some(60)], "never, so the unit");
}

#[tokio::test]
async fn a_descriptor_without_a_limit_passes() {
    let (decider, _) = decider(&Fake::new().server(), policy());
    let unlimited = Rule { unlimited: true, ..hourly(0) };
    let response = decide(&decider, &[None, rule(unlimited, "k")], &[None, None]).await;
    let ok = Status { code: 1, ..Status::default() };
    assert_eq!(response.statuses, [ok.clone(), Status { limit_remaining: u32::MAX, ..ok }]);
    assert_eq!(response.overall_code, 1);
}

#[tokio::test]
async fn a_limit_replaces_others_by_their_name() {
    let (decider, counters) = decider(&Fake::new().server(), policy());
    let named = |name: &str, replaces: &[&str], unlimited| Rule {
        name: name.to_owned(),
        replaces: replaces.iter().map(ToString::to_string).collect(),
        unlimited,
        ..hourly(5)
    };
    let found = [
        rule(named("all", &[], false), "all"),
        rule(named("mine", &["all", "other"], false), "mine"),
        rule(named("free", &[], false), "free"),
        rule(named("", &["free"], true), "unlimited"),
    ];
    let response = decide(&decider, &found, &[None; 4]).await;
    assert_eq!(summary(&response).0, [(false, 0), (false, 4), (false, 0), (false, u32::MAX)]);
    assert!(response.statuses[0].current_limit.is_none() && response.statuses[2].current_limit.is_none());
    assert!(!counters.render().contains("all_v"), "and is not counted");
}

#[tokio::test]
async fn modes_of_the_program_are_modes_of_every_limit() {
    let (shadowed, counters) = decider(&Fake::new().server(), Policy { shadow_mode: true, ..policy() });
    let response = decide(&shadowed, &[rule(hourly(0), "k")], &[None]).await;
    assert_eq!(summary(&response), (vec![(true, 0)], false));
    assert!(counters.render().contains("ratelimit_service_global_shadow_mode 1\n"));

    let (quotas, _) = decider(&Fake::new().server(), Policy { quota_mode: true, ..policy() });
    let [over, left] = [rule(hourly(0), "k"), rule(hourly(5), "l")];
    assert!(!summary(&decide(&quotas, &[over.clone(), left], &[None; 2]).await).1);
    assert!(
        !summary(&decide(&quotas, &[over.clone(), None], &[None; 2]).await).1,
        "what has no limit passes"
    );
    assert!(summary(&decide(&quotas, &[over.clone(), over], &[None; 2]).await).1);
}

/// `limit remaining reset retry-after`.
fn headers(response: &Response) -> String {
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "retry-after"];
    let value = |(header, name): (&HeaderValue, &str)| {
        assert_eq!(header.key, name);
        header.value.clone()
    };
    response.response_headers_to_add.iter().zip(names).map(value).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn headers_are_of_the_limit_with_the_least_left() {
    let with_headers = Policy { limit_response_headers_enabled: true, ..policy() };
    let (decider, _) = decider(&Fake::new().server(), with_headers);
    let found = [rule(per_minute(10), "a"), rule(per_minute(4), "b"), None];
    let response = decide(&decider, &found, &[None, None, None]).await;
    assert_eq!(headers(&response), "4 3 15");
    let response = decide(&decider, &found, &[None, Some(4), None]).await;
    assert_eq!(headers(&response), "4 0 15 15");
    let quotas = [rule(Rule { quota_mode: true, ..per_minute(1) }, "c"), rule(quota(1), "d")];
    decide(&decider, &quotas, &[None, None]).await;
    let response = decide(&decider, &quotas, &[None, None]).await;
    assert_eq!(headers(&response), "1 0 60 60", "one quota is enough to pass");
    assert_eq!(headers(&decide(&decider, &[None], &[None]).await), "");
    let response = decide(&decider, &[rule(hourly(0), "e")], &[None]).await;
    assert_eq!(headers(&response), "0 0 3600", "waiting does not help");
    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 3600, "never, so the unit");
    let asked = decide(&decider, &[rule(hourly(0), "e")], &[Some(0)]).await;
    assert_eq!(summary(&asked), (vec![(false, 0)], false));
}

fn fields(of: Vec<(&str, Kind)>) -> Struct {
    let fields = of.into_iter().map(|(key, kind)| (key.to_owned(), Value { kind: Some(kind) }));
    Struct { fields: fields.collect() }
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

#[tokio::test]
async fn dynamic_metadata_is_that_of_limits_that_passed() {
    let (decider, _) = decider(&Fake::new().server(), Policy { response_dynamic_metadata: true, ..policy() });
    let plan = |tier: &str, more: &str| {
        let plan = fields(vec![("tier", text(tier)), (more, text("yes"))]);
        Some(fields(vec![("plan", Kind::StructValue(plan))]))
    };
    let found = vec![
        rule(Rule { metadata: plan("free", "a"), ..hourly(5) }, "a"),
        rule(Rule { metadata: plan("paid", "b"), ..shadow(0) }, "b"),
        rule(Rule { metadata: plan("never", "c"), ..quota(0) }, "c"),
    ];
    let descriptors = [descriptor("a"), descriptor("b"), hits("c", 2)];
    let response = decider.decide_by(found, &request(descriptors)).await.unwrap();
    let metadata = response.dynamic_metadata.unwrap();
    let passed = fields(vec![("tier", text("free")), ("a", text("yes")), ("b", text("yes"))]);
    let passed = fields(vec![("plan", Kind::StructValue(passed))]);
    assert_eq!(metadata.fields["metadata"].kind, Some(Kind::StructValue(passed)));
    assert_eq!(metadata.fields["domain"].kind, Some(text("shop")));
    assert!(!metadata.fields.contains_key("hitsAddend"));
    let Some(Kind::ListValue(descriptors)) = &metadata.fields["descriptors"].kind else {
        panic!("{metadata:?}")
    };
    let Some(Kind::StructValue(last)) = &descriptors.values[2].kind else { panic!("{metadata:?}") };
    assert_eq!(last.fields["hitsAddend"].kind, Some(Kind::NumberValue(2.0)));
    let Some(Kind::ListValue(entries)) = &last.fields["entries"].kind else { panic!("{metadata:?}") };
    assert_eq!(entries.values[0].kind, Some(text("c=v")));
}
