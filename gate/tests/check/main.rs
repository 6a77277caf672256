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

#[test]
fn the_address_of_a_caller_is_the_one_that_the_last_proxy_saw() {
    let wider = ADDRESS.replace("from: address", "from: address, ipv4_prefix: 24, ipv6_prefix: 128");
    let hops = format!("trusted_hops: 2{ADDRESS}");
    let proxies = format!("proxies: [198.51.100.0/24]{ADDRESS}");
    for (text, peer, forwarded, counted) in [
        // A caller cannot choose it.
        (ADDRESS, "127.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        (ADDRESS, "127.0.0.1", "198.51.100.1\n203.0.113.9", "203.0.113.9"),
        (&hops, "127.0.0.1", "192.0.2.1, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        (&hops, "127.0.0.1", "203.0.113.9", "203.0.113.9"),
        // One that is no proxy is the caller.
        (ADDRESS, "198.51.100.7", "203.0.113.9", "198.51.100.7"),
        (&proxies, "198.51.100.7", "203.0.113.9", "203.0.113.9"),
        (&proxies, "10.0.0.1", "203.0.113.9", "10.0.0.1"),
        // A caller has many addresses of IPv6.
        (ADDRESS, "127.0.0.1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (ADDRESS, "127.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),
        (&wider, "127.0.0.1", "203.0.113.9", "203.0.113.0/24"),
        (&wider, "127.0.0.1", "2001:db8::1", "2001:db8::1"),
        // Every way to write it is read.
        (ADDRESS, "127.0.0.1", "[2001:db8::1]", "2001:db8::/64"),
        (ADDRESS, "127.0.0.1", "[2001:db8::1]:4711", "2001:db8::/64"),
        (ADDRESS, "127.0.0.1", "\"[2001:db8::1]:4711\"", "2001:db8::/64"),
        (ADDRESS, "127.0.0.1", "fe80::1%eth0", "fe80::/64"),
        (ADDRESS, "127.0.0.1", "[fe80::1%25eth0]:80", "fe80::/64"),
        (ADDRESS, "127.0.0.1", "\"203.0.113.9\"", "203.0.113.9"),
        (ADDRESS, "127.0.0.1", "203.0.113.9:4711", "203.0.113.9"),
        (ADDRESS, "127.0.0.1", "203.0.113.9:_port", "203.0.113.9"),
        (ADDRESS, "127.0.0.1", "198.51.100.1, 203.0.113.9,", "203.0.113.9"),
        (ADDRESS, "127.0.0.1", "198.51.100.1,203.0.113.9 , ,", "203.0.113.9"),
        (ADDRESS, "127.0.0.1", "FOR=203.0.113.9", "203.0.113.9"),
    ] {
        let lines: Vec<_> = forwarded.lines().map(|line| ("x-forwarded-for", line)).collect();
        assert_eq!(
            asked_by(peer, &rules(text), &lines),
            [format!("remote_address={counted}")],
            "{forwarded}"
        );
    }
    // One that cannot be read counts as that of the proxy.
    for forwarded in ["unknown", "_hidden", "198.51.100.1, nonsense", "", ",", "[", "\"", ":80", "%"] {
        let lines = [("x-forwarded-for", forwarded)];
        assert_eq!(asked_by("10.0.0.7", &rules(ADDRESS), &lines), ["remote_address=10.0.0.7"], "{forwarded}");
    }
    assert_eq!(asked_by("10.0.0.7", &rules(ADDRESS), &[]), ["remote_address=10.0.0.7"]);
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

/// To the gate a parameter is part of a path. Backends that ignore what follows the `;` need a pattern. A slash at the end
/// is none.
#[test]
fn a_path_may_be_a_pattern() {
    for (pattern, uri, path) in [
        ("/login", "/login;a", ""),
        ("/login*", "/login;a", "/login;a"),
        ("/api/*", "/api", "/api"),
        ("/api/*", "/api/", "/api"),
        ("/api/*", "/api/a/", "/api/a"),
        ("/api/*", "/apix", ""),
        ("/x/", "/x", "/x"),
        ("/x/", "/x/", "/x"),
    ] {
        let text = format!(
            "domain: web\nrules: [{{path: {pattern}, descriptors: [entries: [{{key: path, from: path}}]]}}]"
        );
        let asked = at(&rules(&text), "GET", "a", uri);
        assert_eq!(
            asked.concat(),
            if path.is_empty() { String::new() } else { format!("path={path}") },
            "{uri}"
        );
    }
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
      - entries: [{key: yes, value: 007}, {key: é, value: true}]
      - entries: [{key: all, value: ''}]
",
    );
    assert_eq!(asked(&rules, &[]), ["yes=007,é=true", "all="]);
    assert_eq!(asked(&rules, &[("x-user", "ann")])[1..], ["all="]);
    let whole =
        [("x-user", "ann"), ("x-forwarded-method", "GET"), ("x-forwarded-uri", "/?a=1&key=a%2Fb+c&key=2")];
    assert_eq!(asked(&rules, &whole)[..2], ["user=ann,method=GET", "api_key=a/b c"]);
    assert_eq!(asked(&rules, &[("x-user", ""), ("x-forwarded-method", "GET")])[1..], ["all="]);
}

#[test]
fn hits_are_a_number_or_come_from_a_header() {
    let of = |hits: &str| format!("{ADDRESS}        hits: {hits}\n");
    for (hits, cost, expected) in [
        ("5", "", "*5"),
        ("0", "", "*0"),
        ("header X-Cost", "7", "*7"),
        ("header X-Cost", "0", "*0"),
        ("header X-Cost", "-7", ""),
        ("header X-Cost", "", ""),
    ] {
        let asked = asked(&rules(&of(hits)), &[("x-cost", cost)]);
        assert_eq!(asked, [format!("remote_address=127.0.0.1{expected}")], "{hits} {cost}");
    }
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
