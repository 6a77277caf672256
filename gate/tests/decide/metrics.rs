//! The counters of limits, as Prometheus reads them.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use tokenbucket_client::fake::Fake;
use tokenbucket_gate::counters::Counters;
use tokenbucket_gate::decide::Policy;
use tokenbucket_gate::limits::{Limits, Matched, Rule};

use crate::servers::{ask, Server};
use crate::{connect, decide, decider, hourly, limits, policy, rule, shadow, summary, take};

/// `total, within, near, over, shadow` of the only limit, and those denied from memory.
fn counted(counters: &Counters, key: &str) -> [u64; 6] {
    let text = counters.render();
    ["total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode", "over_limit_with_local_cache"]
        .map(|stat| {
            let name = format!("ratelimit_service_rate_limit_{stat}{{domain=\"shop\",key1=\"{key}_v\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            line.map_or(0, |count| count.parse().unwrap())
        })
}

#[tokio::test]
async fn hits_are_near_the_limit_or_over_it() {
    for (limit, hits, expected) in [
        (hourly(10), &[7][..], [7, 7, 0, 0, 0, 0]),
        // The second of them is above 8 of 10.
        (hourly(10), &[7, 2], [9, 9, 1, 0, 0, 0]),
        // One is left, and none of three is taken: all are over.
        (hourly(10), &[7, 2, 3], [12, 9, 1, 3, 0, 0]),
        (hourly(10), &[7, 2, 3, 1, 4], [17, 10, 2, 7, 0, 0]),
        (shadow(10), &[9, 3], [12, 9, 1, 3, 3, 0]),
        // Charged into debt.
        (Rule { paid_afterwards: Some(true), ..hourly(10) }, &[9, 3, 1], [13, 9, 2, 3, 0, 0]),
    ] {
        let (decider, counters) = decider(&Fake::new().server(), policy());
        let found = [rule(limit, "k")];
        for count in hits {
            take(&decider, &found, *count).await;
        }
        assert_eq!(counted(&counters, "k"), expected, "{hits:?}");
    }
}

#[tokio::test]
async fn a_flood_is_denied_from_memory() {
    let fake = Fake::new();
    let (decider, counters) = decider(&fake.server(), Policy { local_cache_size_in_bytes: 2560, ..policy() });
    let found = [rule(hourly(10), "k")];
    for hits in [8, 5, 5, 6] {
        take(&decider, &found, hits).await;
    }
    assert_eq!(counted(&counters, "k"), [24, 8, 0, 5 + 5 + 6, 0, 5 + 6]);
    // Redis is asked again: somebody may have refilled the bucket.
    fake.advance(Duration::from_secs(5));
    take(&decider, &found, 5).await;
    assert_eq!(counted(&counters, "k"), [29, 8, 0, 21, 0, 11]);
    let smaller = take(&decider, &found, 2).await;
    assert_eq!(smaller.statuses[0].code, 1, "a denial of 5 says nothing about 2");
    fake.advance(Duration::from_secs(3600));
    let later = take(&decider, &found, 5).await;
    assert_eq!(later.statuses[0].code, 1, "nor about later");
}

#[tokio::test]
async fn a_flood_on_one_of_several_limits_is_denied_from_memory() {
    let server = Server::start();
    let (decider, counters) =
        decider(&connect(&server), Policy { local_cache_size_in_bytes: 2560, ..policy() });
    let found = [rule(hourly(1), "k"), rule(hourly(10), "all")];
    for _ in 0..2 {
        decide(&decider, &found, &[None, None]).await;
    }
    let stats = || ask::<String>(&server, &["INFO", "commandstats"]).to_lowercase();
    for _ in 0..10 {
        let flooded = decide(&decider, &found, &[None, None]).await;
        // Redis was not asked what is left of the other one: at most all of it.
        assert_eq!(summary(&flooded), (vec![(true, 0), (false, 10)], true));
        assert!(flooded.statuses.iter().all(|status| status.current_limit.is_some()));
        assert!(flooded.statuses[1].duration_until_reset.is_none());
    }
    assert!(stats().contains("cmdstat_tb.mtake:calls=2,"), "{}", stats());
    assert_eq!(counted(&counters, "k"), [12, 1, 1, 11, 0, 10]);
    assert_eq!(counted(&counters, "all"), [12, 1, 0, 0, 0, 0]);
    assert_eq!(summary(&decide(&decider, &found[1..], &[None]).await).0, [(false, 8)]);
}

#[tokio::test]
async fn hits_of_a_denied_request_are_within_no_limit() {
    let (decider, counters) = decider(&Fake::new().server(), policy());
    let found = [rule(hourly(10), "k"), rule(hourly(0), "none")];
    decide(&decider, &found, &[None, None]).await;
    assert_eq!(counted(&counters, "k"), [1, 0, 0, 0, 0, 0]);
    assert_eq!(counted(&counters, "none"), [1, 0, 0, 1, 0, 0]);
}

#[tokio::test]
async fn a_name_has_a_domain_and_two_levels() {
    let (decider, counters) = decider(&Fake::new().server(), policy());
    let names = [
        "shop.a.b.c",
        "shop.a.b.d",
        "shop.remote_address_10.0.0.1",
        "shop.path_\"\\|x:y\n",
        "shop.n_1234.1.1.1",
    ];
    let found = names.map(|metric| {
        let matched = rule(hourly(10), metric).unwrap();
        Some(Matched { metric: metric.to_owned(), ..matched })
    });
    decide(&decider, &found, &[None; 5]).await;
    let text = counters.render();
    let total = "ratelimit_service_rate_limit_total_hits";
    for line in [
        r#"{domain="shop",key1="a",key2="b"} 2"#,
        r#"{domain="shop",key1="remote_address_10_0_0_1"} 1"#,
        r#"{domain="shop",key1="path_\"\\_x_y\n"} 1"#,
        r#"{domain="shop",key1="n_1234_1_1_1"} 1"#,
    ] {
        assert!(text.contains(&format!("{total}{line}\n")), "{line}: {text}");
    }
    assert_eq!(text.matches(&format!("# TYPE {total} counter")).count(), 1);
}

fn files_with(keys: &[&str]) -> Limits {
    let limit = |key: &&str| format!("{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}");
    limits(&format!("domain: shop\ndescriptors: [{}]", keys.iter().map(limit).collect::<Vec<_>>().join(", ")))
}

/// Those of files that are gone make room.
#[test]
fn names_that_left_the_files_are_dropped() {
    let counters = Counters::default();
    for number in 0..3 {
        let keys = ["kept", &format!("k{number}")];
        counters.reserve(&files_with(&keys));
        for key in keys {
            counters.of_limit(&format!("shop.{key}")).total_hits.fetch_add(1, Ordering::Relaxed);
        }
    }
    let text = counters.render();
    let lines = text.lines().filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{"));
    let lines: Vec<&str> = lines.map(|line| line.split("key1=").nth(1).unwrap()).collect();
    assert_eq!(lines, ["\"k2\"} 1", "\"kept\"} 3"]);
}

#[test]
fn a_page_that_is_too_large_is_cut() {
    let counters = Counters::default();
    for number in 0..10_000 {
        let limit = counters.of_limit(&format!("shop.{number}{}", "x".repeat(1000)));
        for counter in [&limit.total_hits, &limit.within_limit, &limit.near_limit] {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
    let text = counters.render();
    assert!(
        text.len() < 17 << 20 && text.ends_with("\n# cut: more than 16 MiB of names\n"),
        "{}",
        text.len()
    );
    assert!(text.contains("ratelimit_service_total_requests{"));
}

#[test]
fn the_number_of_names_is_bounded_beside_those_of_the_files() {
    let counters = Counters::default();
    counters.reserve(&files_with(&["k"]));
    let first = counters.of_limit("shop.0");
    for number in 0..20_000 {
        counters.of_limit(&format!("shop.{number}"));
        counters.domain_not_found(&format!("domain {number}"));
    }
    assert!(Arc::ptr_eq(&first, &counters.of_limit("shop.0")), "those that were there stay");
    counters.of_limit("shop.k").total_hits.fetch_add(1, Ordering::Relaxed);
    let line = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"k\"} 1\n";
    assert!(counters.render().contains(line));
    let others = counters.of_limit("shop.more");
    assert!(Arc::ptr_eq(&others, &counters.of_limit("shop.and more")));
    let new = Counters::default();
    new.of_limit(&"long".repeat(1000));
    assert!(!new.render().contains("long"), "a long name is one of the others");
    let text = counters.render();
    assert!(
        text.lines().filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{")).count()
            <= 10_001
    );
    assert!(text.contains("ratelimit_service_rate_limit_domain_not_found{domain=\"domain 7\"} 1\n"));
}
