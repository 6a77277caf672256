//! What is easily taken for granted of Envoy and of envoyproxy/ratelimit, on a real server.

use tokenbucket_gate::decide::Policy;
use tokenbucket_gate::limits::Rule;
use tokenbucket_gate::messages::{Descriptor, Override, Request, Unit};

use crate::servers::{ask, wait_for, Server, READY_WITHIN};
use crate::{
    connect, decide, decider, descriptor, hits, hourly, policy, quota, request, rule, shadow, start, summary,
    take,
};

#[tokio::test]
async fn no_hits_in_the_request_are_one_and_none_in_the_descriptor_ask() {
    let (_server, decider) = start();
    let found = [rule(hourly(5), "k")];
    assert_eq!(summary(&decide(&decider, &found, &[None]).await), (vec![(false, 4)], false));
    assert_eq!(summary(&decide(&decider, &found, &[Some(0)]).await), (vec![(false, 4)], false));
    assert_eq!(summary(&take(&decider, &found, 3).await), (vec![(false, 1)], false));
    let three = Request { hits_addend: 3, ..request([hits("k", 0)]) };
    let response = decider.decide_by(found.to_vec(), &three).await.unwrap();
    assert_eq!(summary(&response), (vec![(false, 1)], false), "the descriptor goes before the request");
}

#[tokio::test]
async fn quotas_deny_only_together_and_shadows_never() {
    let (server, decider) = start();
    let found = [rule(quota(1), "a"), rule(quota(2), "b")];
    let ask = async |found| summary(&decide(&decider, found, &[None, None]).await);
    assert_eq!(ask(&found).await, (vec![(false, 0), (false, 1)], false));
    assert_eq!(ask(&found).await, (vec![(true, 0), (false, 0)], false));
    assert_eq!(ask(&found).await, (vec![(true, 0), (true, 0)], true));

    let found = [rule(shadow(1), "c"), rule(hourly(2), "d")];
    assert_eq!(ask(&found).await, (vec![(false, 0), (false, 1)], false));
    assert_eq!(ask(&found).await, (vec![(false, 0), (false, 0)], false));
    assert_eq!(ask(&found).await, (vec![(false, 0), (true, 0)], true));
    let found = [rule(quota(1), "e"), rule(hourly(0), "f")];
    assert_eq!(ask(&found).await, (vec![(false, 0), (true, 0)], true));
    assert_eq!(ask(&found).await, (vec![(true, 0), (true, 0)], true), "a quota is charged all the same");

    let found = [rule(quota(1), "g"), rule(hourly(2), "h")];
    assert_eq!(ask(&found).await, (vec![(false, 0), (false, 1)], false));
    for _ in 0..3 {
        assert_eq!(ask(&found).await, (vec![(true, 0), (false, 1)], true), "a denied request costs nothing");
        wait_for("the refund", READY_WITHIN, async || level(&server, "h") >= 1.0).await;
    }
}

#[tokio::test]
async fn what_is_paid_afterwards_is_charged_whatever_the_level() {
    let (_server, decider) = start();
    let of_file = Rule { paid_afterwards: Some(true), ..hourly(5) };
    for (key, rule_of_key) in [("file", of_file), ("quota", quota(5)), ("asked", hourly(5))] {
        let found = [rule(rule_of_key, key)];
        let ask = async |count| summary(&decide(&decider, &found, &[Some(count)]).await).0;
        assert_eq!(ask(0).await, [(false, 5)], "{key}");
        assert_eq!(ask(3).await, [(false, 2)], "{key}");
        assert_eq!(ask(4).await, [(true, 0)], "{key}: more than is left");
        assert_eq!(ask(0).await, [(true, 0)], "{key}: in debt");
    }
}

fn level(server: &Server, key: &str) -> f64 {
    ask::<Vec<String>>(server, &["TB.STATE", &format!("shop|{{{key}=v}}")])[0].parse().unwrap()
}

#[tokio::test]
async fn debt_is_bounded_by_one_unit() {
    let (server, decider) = start();
    let found = [rule(Rule { paid_afterwards: Some(true), ..hourly(2) }, "k")];
    // Envoy reports the requests that it denied as well.
    for _ in 0..20 {
        decide(&decider, &found, &[Some(1)]).await;
    }
    assert!((-2.0..-1.9).contains(&level(&server, "k")), "{}", level(&server, "k"));

    // Nor does a single report owe more, whatever the limit: the caller of a proxy may choose it.
    let of_file = Rule { paid_afterwards: Some(true), ..hourly(10) };
    for (key, rule_of_key) in [("file", of_file), ("quota", quota(10)), ("asked", hourly(10))] {
        let found = [rule(rule_of_key, key)];
        for hits in [0, 3, 1_000_000_000, u64::MAX] {
            decide(&decider, &found, &[Some(hits)]).await;
        }
        assert_eq!(level(&server, key).round(), -10.0, "{key}");
    }
}

#[tokio::test]
async fn debt_of_reports_at_the_same_time_is_bounded() {
    let (server, decider) = start();
    let found = [rule(Rule { paid_afterwards: Some(true), ..hourly(10) }, "k")];
    let report = async || decide(&decider, &found, &[Some(1_000_000)]).await;
    futures_util::future::join_all((0..50).map(|_| report())).await;
    wait_for("the refunds", READY_WITHIN, async || level(&server, "k").round() == -10.0).await;
}

#[tokio::test]
async fn debt_of_a_slow_limit_is_one_token() {
    let (server, decider) = start();
    let text = "domain: shop\ndescriptors: [{key: k, paid_afterwards: true, rate_limit: {rate: 0.1/h, capacity: 5}}]";
    let limits = crate::limits(text);
    for (count, is_over) in [(0, false), (100, true), (100, true), (0, true)] {
        let response = decider.decide(Some(&limits), &request([hits("k", count)])).await.unwrap();
        assert_eq!(summary(&response).1, is_over, "{count}");
    }
    assert_eq!(level(&server, "k").round(), -1.0);
}

/// Requests ask one gate, reports reach another: a limit of 100 is used up by two answers of 60.
#[tokio::test]
async fn a_report_is_charged_whatever_was_asked_at_whichever_gate() {
    let server = Server::start();
    let gates = [(); 2].map(|()| decider(&connect(&server), policy()).0);
    for (key, asked, reported, passing) in [
        ("default", None, 60, 2),
        ("one", Some(1), 60, 2),
        ("zero", Some(0), 60, 2),
        ("ones", Some(0), 1, 101),
    ] {
        let found = [rule(hourly(100), key)];
        let mut passed = 0;
        while !summary(&decide(&gates[0], &found, &[asked]).await).1 {
            decide(&gates[1], &found, &[Some(reported)]).await;
            passed += 1;
            assert!(passed <= passing, "{key}");
        }
        assert_eq!(passed, passing, "{key}");
    }
}

#[tokio::test]
async fn every_cost_of_a_report_is_charged() {
    let (server, decider) = start();
    let found = [rule(hourly(100), "a"), rule(hourly(20), "b"), rule(hourly(20), "c")];
    decide(&decider, &found, &[Some(60), Some(30), Some(0)]).await;
    assert_eq!(["a", "b"].map(|key| level(&server, key).round()), [40.0, -10.0]);
    assert_eq!(summary(&decide(&decider, &found[2..], &[Some(0)]).await).0, [(false, 20)]);
}

/// It differs from a report by hits of the request, by a descriptor without hits, by what the file says, or by the setting.
#[tokio::test]
async fn a_cost_asked_for_beforehand_is_not_charged_when_denied() {
    let server = Server::start();
    let (usual, _) = decider(&connect(&server), policy());
    let (beforehand, _) = decider(&connect(&server), Policy { paid_beforehand: true, ..policy() });
    let of_file = Rule { paid_afterwards: Some(false), ..hourly(5) };
    for (key, rule_of_key) in
        [("request", hourly(5)), ("beside", hourly(5)), ("file", of_file), ("setting", hourly(5))]
    {
        let decider = if key == "setting" { &beforehand } else { &usual };
        let found = [rule(rule_of_key, key), None];
        let ask = async |cost| {
            let (whole, own) = (descriptor("k"), hits("k", cost));
            let mut asked = request(match key {
                "request" => vec![whole],
                "beside" => vec![own, whole],
                _ => vec![own],
            });
            asked.hits_addend = u32::try_from(cost).unwrap();
            summary(&decider.decide_by(found[..asked.descriptors.len()].to_vec(), &asked).await.unwrap()).0[0]
        };
        assert_eq!(
            [ask(3).await, ask(3).await, ask(9).await, ask(2).await],
            [(false, 2), (true, 0), (true, 0), (false, 0)],
            "{key}"
        );
    }
}

/// In envoyproxy/ratelimit they share a counter, with each other and with the limit of the file.
#[tokio::test]
async fn overrides_share_one_bucket() {
    let (_server, decider) = start();
    let text = "domain: shop\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 20}}]";
    let limits = crate::limits(text);
    let passes = async |key: &str, counts: &[u32]| {
        let asked = |count: &u32| Descriptor {
            limit: (*count > 0).then_some(Override { requests_per_unit: *count, unit: Unit::Hour.into() }),
            ..descriptor(key)
        };
        let asked = request(counts.iter().map(asked));
        !summary(&decider.decide(Some(&limits), &asked).await.unwrap()).1
    };
    let mut passed = 0;
    for count in [0, 19, 18, 17, 16, 30] {
        while passes("k", &[count]).await {
            passed += 1;
        }
    }
    assert_eq!(passed, 20);
    // Where the file has no limit, and where one request has two limits on the bucket: the smaller one decides.
    assert_eq!(
        [passes("l", &[2]).await, passes("l", &[3]).await, passes("l", &[9]).await],
        [true, true, false]
    );
    assert_eq!([passes("m", &[4, 3]).await, passes("m", &[3, 4]).await], [true, false]);
    // Limits by other units hold as well: 9 a day and 3 an hour.
    let by = |requests_per_unit, unit: Unit| Descriptor {
        limit: Some(Override { requests_per_unit, unit: unit.into() }),
        ..descriptor("n")
    };
    for left in [[8, 2], [7, 1], [6, 0]] {
        let asked = request([by(9, Unit::Day), by(3, Unit::Hour)]);
        let (each, is_over) = summary(&decider.decide(Some(&limits), &asked).await.unwrap());
        assert_eq!((each, is_over), (left.map(|left| (false, left)).to_vec(), false));
    }
    assert_eq!([passes("n", &[3]).await, passes("n", &[9]).await], [false, false]);
}

/// A report that is too large for one call takes two: the second comes though nobody waits for it.
#[tokio::test]
async fn a_report_is_charged_though_the_proxy_stops_waiting() {
    let (server, decider) = start();
    let found = [rule(Rule { paid_afterwards: Some(true), ..hourly(5) }, "k")];
    decide(&decider, &found, &[Some(1)]).await;
    server.signal("STOP");
    let report = decide(&decider, &found, &[Some(100)]);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(50), report).await.is_err());
    server.signal("CONT");
    wait_for("the charge", READY_WITHIN, async || level(&server, "k").round() == -5.0).await;
}

#[tokio::test]
async fn negative_hits_go_back_up_to_the_capacity() {
    let (_server, decider) = start();
    let found = vec![rule(hourly(5), "k")];
    decide(&decider, &found, &[Some(4)]).await;
    let back = Descriptor { is_negative_hits: true, ..hits("k", 3) };
    for left in [4, 5, 5] {
        let response = decider.decide_by(found.clone(), &request([back.clone()])).await.unwrap();
        assert_eq!(summary(&response), (vec![(false, left)], false));
    }
}

#[tokio::test]
async fn equal_descriptors_count_each() {
    let (_server, decider) = start();
    let found = [rule(hourly(5), "k"), rule(hourly(5), "k")];
    assert_eq!(
        summary(&decide(&decider, &found, &[None, Some(2)]).await),
        (vec![(false, 2), (false, 2)], false)
    );
    assert_eq!(
        summary(&decide(&decider, &found, &[None, Some(2)]).await),
        (vec![(true, 0), (true, 0)], true)
    );
    let found = [rule(quota(5), "q"), rule(quota(5), "q")];
    decide(&decider, &found, &[None, None]).await;
    assert_eq!(summary(&decide(&decider, &found, &[Some(0), Some(0)]).await).0, [(false, 3), (false, 3)]);
}

#[tokio::test]
async fn hits_beyond_what_a_bucket_holds_are_denied() {
    let (_server, decider) = start();
    let found = [rule(hourly(5), "k"), rule(hourly(5), "l")];
    let response = decide(&decider, &found, &[Some(u64::MAX), None]).await;
    assert_eq!(summary(&response), (vec![(true, 0), (false, 5)], true));
}
