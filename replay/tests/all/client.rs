//! Which address of a line stands for its client, and what the report says of it.

use crate::run::{clients, counted, failure, json, text};

/// Writes lines of the combined log, each from a peer and with something behind the user agent.
fn combined(lines: &[(&str, &str)]) -> String {
    let line = |(peer, last): &(&str, &str)| {
        format!("{peer} - - [02/Mar/2026:09:10:11 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"agent\" {last}\n")
    };
    lines.iter().map(line).collect()
}

#[test]
fn what_stands_behind_the_user_agent_is_seldom_the_client() {
    for last in [
        "10.0.0.5",
        "203.0.113.9",
        "\"10.0.0.5:8080\"",
        "\"10.0.0.5:8080, 10.0.0.6:8080\"",
        "\"10.0.0.5\"",
        "\"[fd00::5]:8080\"",
        "\"www.example.com\"",
        "\"203.0.113.9.example.com\"",
        "\"203.0.113.9 200\"",
        "\"unix:/run/app.sock\"",
        "\"0.003\"",
        "\"-\" \"203.0.113.9\"",
        "203.0.113.9, 203.0.113.10",
    ] {
        for peers in [["192.0.2.1", "192.0.2.2", "192.0.2.3"], ["10.1.0.1", "10.1.0.2", "10.1.0.3"]] {
            let log = combined(&peers.map(|peer| (peer, last)));
            assert_eq!(clients("", &log), counted(&peers.map(|peer| (peer, 1))), "{last}");
        }
    }
    // More backends than peers: behind one balancer, they have ports.
    let log = combined(&[("10.1.0.1", "\"10.0.0.5:80\""), ("10.1.0.1", "\"10.0.0.6:80\"")]);
    assert_eq!(clients("", &log), counted(&[("10.1.0.1", 2)]));
}

#[test]
fn forwarded_addresses_count_behind_a_private_peer() {
    for (peer, last, client) in [
        ("10.0.0.1", "\"203.0.113.5\"", "203.0.113.5"),
        ("127.0.0.1", "\"198.51.100.1, 203.0.113.5\"", "203.0.113.5"),
        ("100.64.0.9", "\"203.0.113.5:40000\"", "203.0.113.5"),
        ("fd00::1", "\"2001:db8::5\"", "2001:db8::/64"),
        ("unix:", "\"203.0.113.5\"", "203.0.113.5"),
        ("10.0.0.1", "\"-\"", "10.0.0.1"),
        ("192.0.2.1", "\"203.0.113.5\"", "192.0.2.1"),
        ("host.example", "\"203.0.113.5\"", "host.example"),
    ] {
        let log = combined(&[(peer, last)]);
        assert_eq!(clients("", &log), counted(&[(client, 1)]), "{peer} {last}");
    }
    // More private addresses than peers are clients.
    let log = combined(&[("10.0.0.1", "\"10.9.0.5\""), ("10.0.0.1", "\"10.9.0.6\"")]);
    assert_eq!(clients("", &log), counted(&[("10.9.0.5", 1), ("10.9.0.6", 1)]));
    // One client who writes nonsense in front changes nothing.
    let log = combined(&[
        ("10.0.0.1", "\"203.0.113.5\""),
        ("10.0.0.1", "\"203.0.113.6\""),
        ("10.0.0.1", "\"x, 203.0.113.5\""),
    ]);
    assert_eq!(clients("", &log), counted(&[("203.0.113.5", 2), ("203.0.113.6", 1)]));
}

/// The standard library says what is an address.
#[test]
fn nothing_but_an_address_counts_as_forwarded() {
    let written = "0.0.0.0 255.255.255.255 1.20.3.255 256.1.1.1 1.2.3.256 1.2.3.1000 1.2.3 1.2.3.4.5 1.2.3. .2.3.4 1..3.4 \
        1.2.3.04 00.2.3.4 1.2.3.4x 1.2.3.+4 1.2.3.\u{661}";
    for written in written.split(' ') {
        let is_address = written.parse::<std::net::IpAddr>().is_ok();
        let log = format!(r#"{{"time":1772442611,"ip":"10.0.0.1","xff":"{written}"}}"#);
        let client = if is_address { written } else { "10.0.0.1" };
        assert_eq!(clients("", &log), counted(&[(client, 1)]), "{written}");
    }
}

#[test]
fn either_address_can_be_asked_for_and_a_verified_one_wins() {
    let log = combined(&[("192.0.2.1", "\"203.0.113.5\""), ("10.0.0.1", "\"203.0.113.6\"")]);
    assert_eq!(clients("--by remote", &log), counted(&[("10.0.0.1", 1), ("192.0.2.1", 1)]));
    assert_eq!(clients("--by forwarded", &log), counted(&[("203.0.113.5", 1), ("203.0.113.6", 1)]));
    assert_eq!(clients("--by ip", &log), counted(&[("192.0.2.1", 1), ("203.0.113.6", 1)]));
    // What the sample takes for a backend, too.
    let log = combined(&[("10.0.0.1", "\"10.9.0.5\"")]);
    assert_eq!(clients("--by forwarded", &log), counted(&[("10.9.0.5", 1)]));
    let caddy = r#"{"ts":1772442611,"request":{"remote_ip":"10.0.0.1","client_ip":"203.0.113.5"}}"#;
    assert_eq!(clients("", caddy), counted(&[("203.0.113.5", 1)]));
    assert_eq!(clients("--by remote", caddy), counted(&[("10.0.0.1", 1)]));
    let said = failure("--by forwarded", caddy);
    assert!(said.contains("1 have no forwarded") && said.contains("request.client_ip"), "{said}");
}

/// An attacker who reaches nginx itself writes another address into each request.
#[test]
fn an_attacker_at_the_edge_is_one_client_and_the_report_says_what_could_be_forged() {
    let forged: Vec<String> =
        (0..1000).map(|place| format!("\"198.51.{}.{}\"", place / 250, place % 250)).collect();
    let log = combined(&forged.iter().map(|forged| ("192.0.2.66", forged.as_str())).collect::<Vec<_>>());
    for (words, client) in [
        ("", "The client is ip: 192.0.2.66\n"),
        ("--by remote", "The client is ip: 192.0.2.66\n"),
        ("--by forwarded", "The client is forwarded: 198.51.0.0, 198.51.0.1, 198.51.0.2, …\n"),
    ] {
        let shown = text(words, &log);
        let first: String = shown.lines().take(4).map(|line| format!("{line}\n")).collect();
        assert!(first.contains(client), "{words}: {first}");
        assert!(first.contains("forwarded is another address than ip in 1,000 lines"), "{words}: {first}");
        assert!(
            first.contains("can forge forwarded") && first.contains("--by remote and --by forwarded"),
            "{first}"
        );
    }
    let log = combined(&[("192.0.2.1", "\"192.0.2.1\""), ("192.0.2.2", "\"-\"")]);
    assert!(!text("", &log).contains("forge"), "nothing differs");
}

#[test]
fn the_first_lines_say_what_stands_for_the_client() {
    let log = r#"{"time":1772442611,"ip":"10.0.0.1","xff":"203.0.113.5","user":"a"}
{"time":1772442611,"remote_addr":"192.0.2.1","user":"b\u001b"}
"#;
    for (words, said) in [
        ("", "The client is remote_addr (1 lines) or xff (1 lines): 203.0.113.5, 192.0.2.1\n"),
        ("--by user", "The client is user: a, b\\u{1b}\n"),
        (
            "--by remote,user",
            "The client is ip (1 lines) or remote_addr (1 lines) and user: 10.0.0.1 a, 192.0.2.1 b\\u{1b}\n",
        ),
    ] {
        let shown = text(words, log);
        assert_eq!(shown.lines().nth(2).map(|line| format!("{line}\n")).as_deref(), Some(said), "{shown}");
    }
    let report = json("", log);
    assert_eq!(report["first_keys"], serde_json::json!(["203.0.113.5", "192.0.2.1"]));
    assert_eq!(report["client"]["lines"], serde_json::json!({"remote_addr": 1, "xff": 1}));
    let hidden = text("--anonymize", log);
    assert!(hidden.contains(": #") && !hidden.contains("203.0.113.5"), "{hidden}");
}

#[test]
fn what_to_use_is_the_limit_and_not_the_one_beside_it() {
    let log = combined(&[("192.0.2.1", "\"-\"")]);
    let shown = text("--limit 26·1/m --versus 60·2/m", &log);
    assert!(shown.contains("To use 26 1/m:") && shown.contains("TB.TAKE ip:<ip> 26 1/m\n"), "{shown}");
    assert!(!shown.contains("Limit(60"), "{shown}");
    // Whichever address was counted, a server counts that of its caller.
    let gate = |words: &str| text(words, &log).split("the gate").nth(1).map(str::to_owned);
    assert_eq!(gate("--by remote"), gate(""));
    assert!(gate("").is_some_and(|paste| paste.contains("remote_address")), "{shown}");
}
