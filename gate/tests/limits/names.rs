//! Names of buckets: no two descriptors share one by accident, and no value breaks the hash tag.

use proptest::prelude::*;
use tokenbucket_gate::limits::{Limits, Options};
use tokenbucket_gate::messages::{Override, Unit};

use crate::{bucket, descriptor, limits, limits_with};

/// Every descriptor of one to three entries has a limit of its own.
fn all() -> &'static str {
    "
domain: d
descriptors:
- &level
  key: '*'
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
  - &second
    key: '*'
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
    - {key: '*', rate_limit: {unit: day, requests_per_unit: 1}}
"
}

/// What Redis hashes of a name.
fn tag(bucket: &str) -> &str {
    let (_, behind) = bucket.split_once('{').unwrap();
    behind.split_once('}').unwrap().0
}

#[test]
fn the_first_entry_shares_a_slot_unless_another_key_is_named() {
    let entries = [("path", "/a"), ("tenant", "{x}|y=%"), ("user", "1")];
    let name = bucket(&limits(all()), &entries);
    assert_eq!(name, "d|{path=/a}|tenant=%7Bx%7D%7Cy%3D%25|user=1");

    let by_tenant = Options { hash_tag_key: Some("tenant".to_owned()), ..Options::default() };
    let limits = limits_with(all(), &by_tenant);
    assert_eq!(bucket(&limits, &entries), "d|path=/a|{tenant=%7Bx%7D%7Cy%3D%25}|user=1");
    assert_eq!(tag(&bucket(&limits, &entries)), tag(&bucket(&limits, &entries[1..])));
    assert_eq!(bucket(&limits, &entries[..1]), "d|{path=/a}");
}

#[test]
fn an_override_without_entries_has_a_name_too() {
    let mut asked = descriptor(&[]);
    asked.limit = Some(Override { requests_per_unit: 5, unit: Unit::Day.into() });
    let found = limits(all()).find("d", &asked).unwrap();
    assert_eq!((&*found.bucket, &*found.metric), ("{d}|@DAY", "d."));
}

fn entries() -> impl Strategy<Value = Vec<(String, String)>> {
    // Few characters, so that accidents happen; long ones, so that names are cut.
    let text = || prop_oneof!["[ab_=|{}%~@/]{0,4}", "[a{|🪣]{100,260}"];
    proptest::collection::vec((text(), text()), 1..4)
}

proptest! {
    #[test]
    fn no_two_descriptors_share_a_bucket(one in entries(), two in entries(), key in proptest::option::of("[ab]")) {
        let limits = limits_with(all(), &Options { hash_tag_key: key.clone(), ..Options::default() });
        let find = |entries: &[(String, String)], limit| {
            let pairs: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let mut descriptor = descriptor(&pairs);
            descriptor.limit = limit;
            limits.find("d", &descriptor).unwrap().bucket
        };
        let (first, second) = (find(&one, None), find(&two, None));
        prop_assert_eq!(one == two, first == second, "{} {}", first, second);
        prop_assert!(!tag(&first).is_empty());
        prop_assert!(first.len() <= 512);
        if key.is_none() {
            let shortest = find(&one[..1], None);
            prop_assert_eq!(tag(&first), tag(&shortest), "one slot, however long the name");
        }
        let limit = Override { requests_per_unit: 5, unit: Unit::Day.into() };
        prop_assert_eq!(find(&one, Some(limit)), first, "one bucket, whose limit changes");
        prop_assert_ne!(find(&one, Some(Override { unit: Unit::Hour.into(), ..limit })), second);
    }
}

#[test]
fn domains_share_no_bucket() {
    let text = |domain: &str| all().replace("domain: d", &format!("domain: '{domain}'"));
    let files = ["a", "a|{b=c}", "{a"].map(|domain| crate::file(domain, &text(domain)));
    let limits = Limits::read(&files, &Options::default()).unwrap();
    let find = |domain, entries: &[(&str, &str)]| limits.find(domain, &descriptor(entries)).unwrap().bucket;
    assert_ne!(find("a", &[("b", "c"), ("d", "e")]), find("a|{b=c}", &[("d", "e")]));
    assert_eq!(tag(&find("{a", &[("k", "v")])), "k=v");
}
