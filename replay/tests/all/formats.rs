//! Each format, compression and form of a time.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::run::{failure, json, requests, run, text};

/// Returns the only request of a log: its key and its time.
fn only(words: &str, input: &str) -> (String, String) {
    let all = requests(words, input);
    let [(key, 1, first)] = all.as_slice() else { panic!("{input}: {all:?}") };
    (key.clone(), first.clone())
}

#[test]
fn the_format_of_a_log_is_recognised_and_said() {
    for (format, key, line) in [
        (
            "common or combined log",
            "192.0.2.7",
            r#"192.0.2.7 - alice [02/Mar/2026:09:10:11 +0000] "GET /a HTTP/1.1" 200 5"#,
        ),
        (
            "common or combined log",
            "192.0.2.7",
            r#"192.0.2.7 - - [02/Mar/2026:10:10:11 +0100] "GET / HTTP/1.1" 200 5 "-" "a \"quoted\" agent""#,
        ),
        (
            "HAProxy log",
            "192.0.2.7",
            r#"<134>Mar  2 09:10:11 lb haproxy[7]: 192.0.2.7:33317 [02/Mar/2026:09:10:11.000] front back/s1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /a HTTP/1.1""#,
        ),
        (
            "Envoy's text format",
            "192.0.2.7",
            r#"[2026-03-02T09:10:11.000Z] "GET /a HTTP/2" 204 - 154 0 226 100 "10.0.0.1, 192.0.2.7" "agent" "id" "host" "tcp://10.0.2.1:80""#,
        ),
        ("JSON lines", "192.0.2.7", r#"{"ts":1772442611,"request":{"remote_ip":"192.0.2.7","uri":"/a"}}"#),
        (
            "JSON lines",
            "192.0.2.7",
            r#"{"time":"2026-03-02T09:10:11Z","remote_addr":"10.0.0.1","x_forwarded_for":"junk, 192.0.2.7"}"#,
        ),
        ("CSV", "192.0.2.7", "time,ip,note\n2026-03-02 09:10:11,192.0.2.7,\"a, b\""),
        ("CSV", "192.0.2.7", "\u{feff}ip\ttimestamp\n192.0.2.7\t1772442611.000"),
    ] {
        let report = json("", line);
        assert_eq!(report["sources"][0]["format"], format, "{line}");
        assert_eq!(only("", line), (key.to_owned(), "2026-03-02T09:10:11Z".to_owned()), "{line}");
    }
}

#[test]
fn a_regular_expression_reads_any_other_format() {
    let words = r"--regex ^(?P<time>\S+)·\S+·(?P<who>\w+)·(?P<size>\d+)$ --by who --cost size";
    let report = json(words, "1772442611 x alice 40\n1772442612 x bob 2\n");
    assert_eq!(
        (&report["requests"], &report["keys"], &report["replays"][0]["cost"]),
        (&2.into(), &2.into(), &42.0.into())
    );
}

#[test]
fn times_are_read_as_logs_have_them() {
    for (written, time) in [
        ("02/Mar/2026:09:10:11 -0930", "2026-03-02T18:40:11Z"),
        ("29/Feb/2024:00:00:00 +0000", "2024-02-29T00:00:00Z"),
        ("2026-03-02T09:10:11.25+05:30", "2026-03-02T03:40:11.25Z"),
        ("2026-03-02t09:10:11z", "2026-03-02T09:10:11Z"),
        ("2026-03-02 09:10:11 +0000", "2026-03-02T09:10:11Z"),
        ("2026-03-02 09:10:11.5 -0130", "2026-03-02T10:40:11.5Z"),
        ("2026-03-02 09:10:11 UTC", "2026-03-02T09:10:11Z"),
        ("2026-03-02T09:10:11,25 +0200", "2026-03-02T07:10:11.25Z"),
        // A leap second is the end of the second before it.
        ("31/Dec/2016:23:59:60 +0000", "2016-12-31T23:59:59Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
        ("2026-03-02 09:10:11,123", "2026-03-02T09:10:11.123Z"),
        ("2026-03-02T09:10:11.123456789Z", "2026-03-02T09:10:11.123456Z"),
        ("1772442611", "2026-03-02T09:10:11Z"),
        ("1772442611.5", "2026-03-02T09:10:11.5Z"),
        ("1772442611.5241024", "2026-03-02T09:10:11.524102Z"),
        ("1772442611250", "2026-03-02T09:10:11.25Z"),
        ("1772442611250.75", "2026-03-02T09:10:11.25075Z"),
        ("1772442611250001", "2026-03-02T09:10:11.250001Z"),
        ("1772442611250001999", "2026-03-02T09:10:11.250001Z"),
    ] {
        assert_eq!(only("", &format!(r#"{{"time":"{written}","ip":"a"}}"#)).1, time, "{written}");
    }
    for wrong in [
        "30/Feb/2026:00:00:00 +0000",
        "02/Mar/2026:24:00:00 +0000",
        "2026-13-01T00:00:00Z",
        "2026-03-02",
        "9999-12-31T23:59:59Z",
        "1",
        "99999999999999999999",
        "-5",
        "1e9",
        "soon",
        "1772442611.5s",
        "1969-12-31T23:59:59Z",
    ] {
        let said = failure("", format!(r#"{{"time":"{wrong}","ip":"a"}}"#));
        assert!(said.contains("no known format has a time"), "{wrong}: {said}");
    }
}

#[test]
fn an_address_is_a_client_and_ipv6_a_network() {
    for (written, key) in [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("host.example", "host.example"),
    ] {
        assert_eq!(only("", &format!(r#"{{"time":1772442611,"ip":"{written}"}}"#)).0, key, "{written}");
    }
    // Clients can write the first addresses of a header themselves.
    let forwarded = r#"{"time":1772442611,"ip":"10.0.0.1","xff":"198.51.100.1, 2001:db8::1"}"#;
    assert_eq!(only("", forwarded).0, "2001:db8::/64");
    let combined =
        r#"10.0.0.1 - - [02/Mar/2026:09:10:11 +0000] "GET / HTTP/1.1" 200 5 "-" "agent" "192.0.2.9""#;
    assert_eq!(only("", combined).0, "192.0.2.9");
    assert_eq!(only("", &combined.replace("192.0.2.9", "-")).0, "10.0.0.1");
}

const FIELDS: &str = r#"{"time":1772442611,"user":"alice","path":"/login","usage":{"total_tokens":40},"headers":{"X-Key":["k1"]},"a.b":"flat"}
{"time":1772442612,"user":"alice","path":"/","usage":{"total_tokens":2.5},"headers":{"X-Key":["k2"]},"a.b":"flat"}
{"time":1772442613,"user":"b\u006fb","path":"/login/x","usage":null,"headers":{}}
"#;

#[test]
fn fields_are_named_by_options() {
    let keys = |words: &str| {
        requests(words, FIELDS).into_iter().map(|(key, count, _)| (key, count)).collect::<Vec<_>>()
    };
    let pairs = |pairs: &[(&str, u64)]| {
        pairs.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect::<Vec<_>>()
    };
    assert_eq!(keys("--by user"), pairs(&[("alice", 2), ("bob", 1)]));
    assert_eq!(keys("--by headers.X-Key"), pairs(&[("k1", 1), ("k2", 1)]));
    assert_eq!(keys("--by user,path --by a.b"), pairs(&[("alice / flat", 1), ("alice /login flat", 1)]));
    assert_eq!(keys("--by user --where path=/login"), pairs(&[("alice", 1)]));
    assert_eq!(keys("--by user --where path!=/"), pairs(&[("alice", 1), ("bob", 1)]));
    assert_eq!(keys("--by user --where path^=/login --where user~^b"), pairs(&[("bob", 1)]));
    let report = json("--by user --cost usage.total_tokens", FIELDS);
    assert_eq!((&report["replays"][0]["cost"], &report["without_cost"]), (&42.5.into(), &1.into()));
    let combined =
        "192.0.2.7 - alice [02/Mar/2026:09:10:11 +0000] \"GET /a?b=c HTTP/1.1\" 429 5 \"-\" \"curl\"\n";
    for name in [
        "user=alice",
        "method=GET",
        "path=/a",
        "status=429",
        "bytes=5",
        "agent=curl",
        "request=GET·/a?b=c·HTTP/1.1",
    ] {
        assert_eq!(requests(&format!("--where {name}"), combined).len(), 1, "{name}");
    }
}

#[test]
fn a_missing_field_is_named() {
    assert!(failure("--by nobody", FIELDS).contains("3 have no nobody"));
    assert!(failure("--by user --cost nothing", FIELDS).contains("no request has the field nothing"));
    assert!(failure("--by user --where user=carol", FIELDS).contains("--where leaves out 3"));
    assert!(failure("", "").contains("no known format"));
}

#[test]
fn logs_are_read_plain_or_compressed_from_files_or_standard_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let line =
        |second: u32| format!("192.0.2.7 - - [02/Mar/2026:09:10:{second} +0000] \"GET / HTTP/1.1\" 200 5\n");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("a.log"), line(11) + &line(12)).expect("a file");
    // Rotated logs are often appended to each other: several members of gzip, several frames of zstd.
    let compressed =
        |texts: [String; 2]| texts.map(|text| zstd::encode_all(text.as_bytes(), 3).expect("zstd")).concat();
    std::fs::write(path("b.log.zst"), compressed([line(13), line(14)])).expect("a file");
    let gzip = |text: String| {
        let mut child =
            Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip");
        child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("a pipe");
        child.wait_with_output().expect("gzip").stdout
    };
    std::fs::write(path("c.log.gz"), [gzip(line(15)), gzip(line(16))].concat()).expect("a file");
    let words = format!("{} {} - {}", path("c.log.gz"), path("b.log.zst"), path("a.log"));
    let report = json(&words, gzip(line(17).trim_end().to_owned() + "\r\n"));
    assert_eq!((&report["requests"], &report["keys"]), (&7.into(), &1.into()));
    assert_eq!(
        (&report["from"], &report["to"]),
        (&"2026-03-02T09:10:11Z".into(), &"2026-03-02T09:10:17Z".into())
    );

    let mut cut = gzip(line(15).repeat(1000));
    cut.truncate(cut.len() / 2);
    std::fs::write(path("cut.gz"), cut).expect("a file");
    for (name, why) in [("cut.gz", "cut.gz: "), ("missing.log", "missing.log: No such file")] {
        let said = failure(&path(name), "");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn lines_may_be_out_of_order() {
    let line = |second: u32| format!("{{\"time\":{},\"ip\":\"a\"}}\n", 1_772_442_600 + second);
    let (sorted, shuffled) = ([1, 2, 30, 31, 59].map(line).concat(), [31, 1, 59, 30, 2].map(line).concat());
    let [mut one, mut other] = [sorted, shuffled].map(|log| json("--limit 1·2/m --rates 1/m,5/m", log));
    for report in [&mut one, &mut other] {
        report["sources"].take();
    }
    assert_eq!(one, other);
    assert_eq!(one["replays"][0]["denied"], 3);
}

#[test]
fn a_log_in_whole_seconds_says_so_and_is_spread() {
    let log = "{\"time\":1772442600,\"ip\":\"a\"}\n".repeat(4) + "{\"time\":1772442601,\"ip\":\"a\"}\n";
    assert!(text("", &log).contains("whole seconds"));
    let denied = |words: &str| json(words, &log)["replays"][0]["denied"].as_u64();
    assert_eq!(denied("--limit 1·4"), Some(3));
    assert_eq!(denied("--limit 1·4 --spread"), Some(0));
    assert_eq!(denied("--limit 1·3.9 --spread"), Some(2));
    assert!(!text("--spread", &log).contains("whole seconds"));
    assert!(!text("", log.replace("2601", "2601.5")).contains("whole seconds"));
}

#[test]
fn a_sample_has_a_part_of_the_keys_and_all_their_requests() {
    let line = |place: u32| {
        format!("{{\"time\":{},\"ip\":\"10.0.{}.{}\"}}\n", 1_772_442_600 + place, place % 40, place % 50)
    };
    let log: String = (0..6000).map(line).collect();
    let report = json("--sample 1/10", &log);
    let keys = report["keys"].as_u64().expect("a number");
    assert!((10..32).contains(&keys), "of 200 keys: {keys}");
    assert_eq!(report["requests"], keys * 30, "each of them has all of its requests");
    assert_eq!(report, json("--sample 1/10", &log), "the same in every run");
}

#[test]
fn a_limit_that_is_none_is_refused_with_the_words_of_the_module() {
    let output = run("--limit 5·5/min", "");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.contains("unknown unit 'min' in '5/min', use m"), "{said}");
}
