//! Which descriptors a forwarded request has. No server is needed.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tokenbucket_gate::check::Rules;
use tokenbucket_gate::limits::File;

const ADDRESS: &str = "
domain: web
rules:
  - descriptors:
      - entries:
          - {key: remote_address, from: address}
";

fn rules(text: &str) -> Rules {
    read(text).unwrap_or_else(|problem| panic!("{problem}"))
}

fn read(text: &str) -> Result<Rules, String> {
    let file = File { name: "check.yaml".to_owned(), text: text.to_owned() };
    Rules::read(&file).map_err(|mistake| mistake.to_string())
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| {
        (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
    };
    lines.iter().map(line).collect()
}

/// The descriptors as `key=value,key=value`, with `*N` for hits.
fn asked(rules: &Rules, lines: &[(&str, &str)]) -> Vec<String> {
    asked_by("127.0.0.1", rules, lines)
}

fn asked_by(peer: &str, rules: &Rules, lines: &[(&str, &str)]) -> Vec<String> {
    let request = rules.request(&headers(lines), Some(peer.parse().expect("an address")));
    let text = |one: &tokenbucket_gate::messages::Descriptor| {
        let entries: Vec<_> =
            one.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let hits = one.hits_addend.as_ref().map(|hits| format!("*{}", hits.value)).unwrap_or_default();
        entries.join(",") + &hits
    };
    request.descriptors.iter().map(text).collect()
}

/// The caller's address by these lines of X-Forwarded-For.
fn address(rules: &Rules, lines: &[&str]) -> Vec<String> {
    let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
    asked(rules, &lines)
}

#[test]
fn a_caller_cannot_choose_its_address() {
    let rules = rules(ADDRESS);
    assert_eq!(address(&rules, &["198.51.100.1, 203.0.113.9"]), ["remote_address=203.0.113.9"]);
    assert_eq!(address(&rules, &["198.51.100.1", "203.0.113.9"]), ["remote_address=203.0.113.9"]);
}

#[test]
fn every_way_to_write_an_address_is_read() {
    let rules = rules(ADDRESS);
    for (written, counted) in [
        ("[2001:db8::1]", "2001:db8::/64"),
        ("[2001:db8::1]:4711", "2001:db8::/64"),
        ("\"[2001:db8::1]:4711\"", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("[fe80::1%25eth0]:80", "fe80::/64"),
        ("\"203.0.113.9\"", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("203.0.113.9:_port", "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9,", "203.0.113.9"),
        ("198.51.100.1,203.0.113.9 , ,", "203.0.113.9"),
        ("FOR=203.0.113.9", "203.0.113.9"),
    ] {
        assert_eq!(address(&rules, &[written]), [format!("remote_address={counted}")], "{written}");
    }
}

#[test]
fn whose_address_cannot_be_read_counts_as_the_proxy() {
    let rules = rules(ADDRESS);
    for written in ["unknown", "_hidden", "198.51.100.1, nonsense", "", ",", "[", "\"", ":80", "%"] {
        assert_eq!(address(&rules, &[written]), ["remote_address=127.0.0.1"], "{written}");
    }
    assert_eq!(asked_by("10.0.0.7", &rules, &[]), ["remote_address=10.0.0.7"]);
}

#[test]
fn behind_two_proxies_the_second_address_from_the_end_is_the_caller() {
    let rules = rules(&format!("trusted_hops: 2{ADDRESS}"));
    assert_eq!(address(&rules, &["192.0.2.1, 203.0.113.9, 10.0.0.1"]), ["remote_address=203.0.113.9"]);
    assert_eq!(address(&rules, &["203.0.113.9"]), ["remote_address=203.0.113.9"]);
}

#[test]
fn who_is_no_proxy_is_the_caller() {
    let forwarded = [("x-forwarded-for", "203.0.113.9")];
    assert_eq!(asked_by("198.51.100.7", &rules(ADDRESS), &forwarded), ["remote_address=198.51.100.7"]);
    let known = rules(&format!("proxies: [198.51.100.0/24]{ADDRESS}"));
    assert_eq!(asked_by("198.51.100.7", &known, &forwarded), ["remote_address=203.0.113.9"]);
    assert_eq!(asked_by("10.0.0.1", &known, &forwarded), ["remote_address=10.0.0.1"]);
}

#[test]
fn one_caller_has_many_addresses() {
    let all = rules(ADDRESS);
    assert_eq!(address(&all, &["2001:db8:1:2:3:4:5:6"]), ["remote_address=2001:db8:1:2::/64"]);
    assert_eq!(address(&all, &["[2001:db8:1:2:3:4:5:6]:4711"]), ["remote_address=2001:db8:1:2::/64"]);
    assert_eq!(address(&all, &["::ffff:203.0.113.9"]), ["remote_address=203.0.113.9"]);
    let wider = ADDRESS.replace("from: address", "from: address, ipv4_prefix: 24, ipv6_prefix: 128");
    let wider = rules(&wider);
    assert_eq!(address(&wider, &["203.0.113.9"]), ["remote_address=203.0.113.0/24"]);
    assert_eq!(address(&wider, &["2001:db8::1"]), ["remote_address=2001:db8::1"]);
}

const ROUTES: &str = "
domain: web
rules:
  - path: /login
    method: [POST, PUT]
    descriptors:
      - entries: [{key: route, value: login}]
  - path: ['/tenants/{tenant}/*', '/t/{tenant}']
    host: '*.example.com'
    descriptors:
      - entries: [{key: tenant, from: path tenant}, {key: host, from: host}]
  - path: '*.php'
    descriptors:
      - entries: [{key: path, from: path}]
";

fn at(rules: &Rules, method: &str, host: &str, uri: &str) -> Vec<String> {
    asked(rules, &[("x-forwarded-method", method), ("x-forwarded-host", host), ("x-forwarded-uri", uri)])
}

#[test]
fn a_rule_holds_where_path_method_and_host_fit() {
    let rules = rules(ROUTES);
    assert_eq!(at(&rules, "POST", "example.com", "/login?next=/"), ["route=login"]);
    assert_eq!(at(&rules, "GET", "example.com", "/login"), [""; 0]);
    assert_eq!(at(&rules, "POST", "example.com", "/login/x"), [""; 0]);
    assert_eq!(
        at(&rules, "GET", "A.Example.com:443", "/tenants/acme/x/y"),
        ["tenant=acme,host=a.example.com"]
    );
    assert_eq!(at(&rules, "GET", "a.example.com", "/t/acme"), ["tenant=acme,host=a.example.com"]);
    assert_eq!(at(&rules, "GET", "a.example.com", "/t/acme/x"), [""; 0]);
    assert_eq!(at(&rules, "GET", "example.com", "/t/acme"), [""; 0]);
    // Every rule that fits adds its descriptors.
    let both = at(&rules, "GET", "a.example.com", "/tenants/acme/a.php");
    assert_eq!(both, ["tenant=acme,host=a.example.com", "path=/tenants/acme/a.php"]);
}

#[test]
fn another_spelling_of_a_path_evades_no_limit() {
    let rules = rules(ROUTES);
    let spellings = [
        "/login",
        "//login",
        "/./login",
        "/x/../login",
        "/%6cogin",
        "/x/%2e%2e/login",
        "http://a.example/login",
        "/%2flogin",
        "/../login",
        "/login#x",
        "/login/",
    ];
    for uri in spellings {
        assert_eq!(at(&rules, "post", "a", uri), ["route=login"], "{uri}");
    }
}

/// Backends that ignore what follows the `;` need a pattern.
#[test]
fn a_parameter_in_a_path_is_part_of_it() {
    let rules = rules(ROUTES);
    assert_eq!(at(&rules, "POST", "a", "/login;a"), [""; 0]);
    let wider = self::rules(&ROUTES.replace("path: /login", "path: /login*"));
    assert_eq!(at(&wider, "POST", "a", "/login;a"), ["route=login"]);
}

#[test]
fn bytes_that_are_no_text_evade_no_limit() {
    let rules = rules(ROUTES);
    let mut lines = headers(&[("x-forwarded-method", "POST")]);
    for uri in [&b"/login?\xff"[..], "/login?é".as_bytes()] {
        lines.insert("x-forwarded-uri", HeaderValue::from_bytes(uri).expect("a value"));
        assert_eq!(rules.request(&lines, None).descriptors.len(), 1, "{uri:?}");
    }
}

#[test]
fn a_path_with_a_slash_at_its_end_is_the_same() {
    let rules = rules(
        "domain: web\nrules: [{path: [/api/*, /x/], descriptors: [entries: [{key: path, from: path}]]}]",
    );
    for (uri, path) in
        [("/api", "/api"), ("/api/", "/api"), ("/api/a/", "/api/a"), ("/x", "/x"), ("/x/", "/x")]
    {
        assert_eq!(at(&rules, "GET", "a", uri), [format!("path={path}")], "{uri}");
    }
    assert_eq!(at(&rules, "GET", "a", "/apix"), [""; 0]);
}

#[test]
fn a_long_path_full_of_near_fits_takes_no_time() {
    let rules = rules(&ROUTES.replace("'*.php'", "'*a*a*a*a*a*a*a*a*.php'"));
    assert_eq!(at(&rules, "GET", "a", &format!("/{}", "a".repeat(8000))), [""; 0]);
}

#[test]
fn a_descriptor_whose_value_is_missing_is_not_sent() {
    let rules = rules(
        "
domain: web
rules:
  - descriptors:
      - entries: [{key: user, from: header X-User}, {key: method, from: method}]
      - entries: [{key: api_key, from: query key}]
      - entries: [{key: all, value: ''}]
",
    );
    assert_eq!(asked(&rules, &[]), ["all="]);
    assert_eq!(asked(&rules, &[("x-user", "ann")]), ["all="]);
    let whole =
        [("x-user", "ann"), ("x-forwarded-method", "GET"), ("x-forwarded-uri", "/?a=1&key=a%2Fb+c&key=2")];
    assert_eq!(asked(&rules, &whole), ["user=ann,method=GET", "api_key=a/b c", "all="]);
    assert_eq!(asked(&rules, &[("x-user", ""), ("x-forwarded-method", "GET")]), ["all="]);
}

#[test]
fn hits_come_from_a_header_if_it_is_a_number() {
    let rules = rules(
        "
domain: web
rules:
  - descriptors:
      - entries: [{key: all, value: x}]
        hits: header X-Cost
",
    );
    assert_eq!(asked(&rules, &[("x-cost", "7")]), ["all=x*7"]);
    assert_eq!(asked(&rules, &[("x-cost", "0")]), ["all=x*0"]);
    assert_eq!(asked(&rules, &[("x-cost", "-7")]), ["all=x"]);
    assert_eq!(asked(&rules, &[]), ["all=x"]);
}

#[test]
fn hits_can_be_a_number() {
    let of = |hits: &str| format!("{ADDRESS}        hits: {hits}\n");
    assert_eq!(asked(&rules(&of("5")), &[]), ["remote_address=127.0.0.1*5"]);
    assert_eq!(asked(&rules(&of("0")), &[]), ["remote_address=127.0.0.1*0"]);
    let problem = read(&of("-5")).map(|_| ()).unwrap_err();
    assert_eq!(problem, "check.yaml:7: hits is a whole number, or where one comes from");
}

#[test]
fn a_mistake_has_its_line() {
    let cases = [
        ("domain: web", "1: 'rules' is missing"),
        ("domain: ''\nrules: []", "1: the domain is empty"),
        (
            "domain: web\nrules:\n  - pfad: /",
            "3: unknown key 'pfad', none of: host, path, method, descriptors",
        ),
        ("domain: web\ndeny_with: 500\nrules: []", "2: deny_with is 429 or 403, not '500'"),
        ("domain: web\ntrusted_hops: 0\nrules: []", "2: trusted_hops is a number from 1 to 100"),
        (
            "domain: web\nproxies:\n  - 10.0.0.0/33\nrules: []",
            "3: '10.0.0.0/33' is not an address or a network like 10.0.0.0/8",
        ),
        ("domain: web\nrules: 5", "2: expected a list"),
        (
            "domain: web\nrules:\n  - path: /a{b}\n    descriptors: []",
            "3: '/a{b}': {name} must be a whole segment of a path, as in /tenants/{tenant}/*",
        ),
    ];
    for (text, problem) in cases {
        assert_eq!(read(text).map(|_| ()).unwrap_err(), format!("check.yaml:{problem}"), "{text}");
    }
    let entries = [
        ("{key: '', value: x}", "the key is empty"),
        ("{key: a}", "an entry has either 'value' or 'from'"),
        ("{key: a, value: x, from: path}", "an entry has either 'value' or 'from'"),
        ("{key: a, from: path tenant}", "not every path of this rule has {tenant}"),
        (
            "{key: a, from: header x y}",
            "'header x y' is none of: address, host, method, path, path NAME, query, query NAME, header NAME",
        ),
        ("{key: a, from: header <}", "'<' is not the name of a header"),
        ("{key: a, from: path, ipv6_prefix: 64}", "ipv4_prefix and ipv6_prefix are for 'from: address'"),
        ("{key: a, from: address, ipv4_prefix: 33}", "a prefix is a number of bits, 0 to 32"),
        ("{key: a, value: [x]}", "expected a text"),
    ];
    for (entry, problem) in entries {
        let text = format!("domain: web\nrules:\n  - descriptors:\n    - entries:\n      - {entry}");
        assert_eq!(read(&text).map(|_| ()).unwrap_err(), format!("check.yaml:5: {problem}"), "{entry}");
    }
    assert!(read("domain: [\n").unwrap_err().starts_with("check.yaml:"));
    assert_eq!(read("").map(|_| ()).unwrap_err(), "check.yaml:1: the file is empty");
}

#[test]
fn numbers_and_words_of_yaml_are_texts() {
    let rules = rules(
        "domain: web\nrules: [{descriptors: [entries: [{key: yes, value: 007}, {key: é, value: true}]]}]",
    );
    assert_eq!(asked(&rules, &[]), ["yes=007,é=true"]);
}
