//! Each format, compression and form of a time.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::run::{clients, counted, failure, json, requests, run, text};

/// Returns the only request of a log: its key and its time.
fn only(words: &str, input: &str) -> (String, String) {
    let all = requests(words, input);
    let [(key, 1, first)] = all.as_slice() else { panic!("{input}: {all:?}") };
    (key.clone(), first.clone())
}

/// A case is its format with fields to look for, and the log below, as its makers document it. All are of one client and time.
#[test]
fn the_format_of_a_log_is_recognised_and_said() {
    for case in include_str!("formats.txt").split_terminator("\n\n") {
        let (title, log) = case.strip_prefix("= ").and_then(|case| case.split_once('\n')).expect("a title");
        let (format, fields) = title.split_once(" | ").unwrap_or((title, ""));
        let log = log.replace("\\t", "\t").replace("\\ufeff", "\u{feff}");
        assert_eq!(json("", &log)["sources"][0]["format"], format, "{log}");
        assert_eq!(only("", &log), ("192.0.2.7".to_owned(), "2026-03-02T09:10:11Z".to_owned()), "{log}");
        for field in fields.split_whitespace() {
            assert_eq!(requests(&format!("--where {field}"), &log).len(), 1, "{field}: {log}");
        }
    }
    // IIS names the columns again when they change.
    let log = "#Fields: date time c-ip\n2026-03-02 09:10:11 192.0.2.7\n#Fields: c-ip date time\n192.0.2.7 2026-03-02 09:10:12\n";
    assert_eq!(requests("", log), [("192.0.2.7".to_owned(), 2, "2026-03-02T09:10:11Z".to_owned())]);
}

const COMBINED: &str =
    r#"192.0.2.7 - - [02/Mar/2026:09:10:11 +0000] "GET /a HTTP/1.1" 200 5 "-" "an \"agent\" [x]""#;

#[test]
fn what_collectors_write_around_a_line_is_no_part_of_it() {
    let json_of = |field: &str, line: &str| {
        serde_json::json!({field: format!("{line}\n"), "stream": "stdout", "time": "2026-03-03T00:00:00.1Z"})
            .to_string()
    };
    let haproxy = r#"192.0.2.7:33317 [02/Mar/2026:09:10:11.000] front back/s1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET /a HTTP/1.1""#;
    let own_json = r#"{"time":"2026-03-02T09:10:11Z","remote_addr":"192.0.2.7","path":"/a"}"#;
    for (line, format) in [(COMBINED, "common or combined log"), (haproxy, "HAProxy log"), (own_json, "JSON")]
    {
        for (wrapped, around) in [
            (format!("web-1  | {line}"), "docker compose"),
            (format!("web_1       | {line}"), "docker compose"),
            (format!("\u{1b}[36mweb-1  | \u{1b}[0m{line}"), "docker compose"),
            (format!("web-1  | 2026-03-03T00:00:00.123456789Z {line}"), "docker compose"),
            (format!("[pod/web-5d4f8c7b6-x2x9z/nginx] {line}"), "kubectl logs --prefix"),
            (format!("[pod/web-0/nginx] 2026-03-03T00:00:00.1Z {line}"), "kubectl logs --prefix"),
            (format!("2026-03-03T00:00:00.669794202Z stdout F {line}"), "the CRI"),
            (format!("2026-03-03T00:00:00.669794202+01:00 stderr F {line}"), "the CRI"),
            (format!("Mar  3 00:00:00 web-1 nginx[1203]: {line}"), "syslog"),
            (format!("<190>Mar  3 00:00:00 web-1 nginx: {line}"), "syslog"),
            (format!("<190>Mar 13 00:00:00 nginx: {line}"), "syslog"),
            (format!("2026-03-03T00:00:00.123456+00:00 web-1 nginx[1203]: {line}"), "syslog"),
            (format!("<165>1 2026-03-03T00:00:00.003Z web-1 nginx 1203 - - {line}"), "syslog"),
            (
                format!(
                    "<165>1 2026-03-03T00:00:00.003Z web-1 nginx - ID47 [a@1 b=\"]\"][c@1] \u{feff}{line}"
                ),
                "syslog",
            ),
            (json_of("log", line), "a field of JSON"),
            (json_of("message", line), "a field of JSON"),
        ] {
            let said = json("", &wrapped)["sources"][0]["format"].as_str().expect("text").to_owned();
            let is_behind_anything = format == "HAProxy log" && said == format;
            assert!(
                is_behind_anything || (said.starts_with(format) && said.ends_with(around)),
                "{wrapped}: {said}"
            );
            assert_eq!(
                only("", &wrapped),
                ("192.0.2.7".to_owned(), "2026-03-02T09:10:11Z".to_owned()),
                "{wrapped}"
            );
            assert_eq!(requests("--where path=/a", &wrapped).len(), 1, "{wrapped}");
        }
    }
    let ipv6 = COMBINED.replace("192.0.2.7", "2001:db8::7");
    assert_eq!(only("", &format!("<190>Mar 13 00:00:00 nginx: {ipv6}")).0, "2001:db8::/64");
    // A line of another kind in between costs a line.
    let log = format!("web-1  | {COMBINED}\n").repeat(30) + "web-1 exited with code 0\n";
    assert_eq!(json("", log)["unread"]["lines"], 1);
}

#[test]
fn json_of_clouds_and_frameworks_names_time_and_client() {
    for line in [
        r#"{"@timestamp":"2026-03-02T09:10:11.000Z","source":{"ip":"192.0.2.7","address":"host"},"url":{"path":"/a"}}"#,
        r#"{"@timestamp":"2026-03-02T09:10:11.000Z","source.ip":"192.0.2.7"}"#,
        r#"{"ClientIP":"192.0.2.7","ClientRequestURI":"/a","EdgeStartTimestamp":"2026-03-02T09:10:11Z","EdgeEndTimestamp":"2026-03-02T09:10:12Z"}"#,
        r#"{"ClientIP":"192.0.2.7","EdgeStartTimestamp":1772442611000000000}"#,
        r#"{"level":30,"time":1772442611000,"pid":7,"req":{"id":1,"method":"GET","url":"/a","headers":{"host":"h"},"remoteAddress":"192.0.2.7","remotePort":1},"msg":"request completed"}"#,
        r#"{"level":30,"time":1772442611000,"req":{"headers":{"x-forwarded-for":"192.0.2.7"},"remoteAddress":"::ffff:10.0.0.1"}}"#,
        r#"{"client_ip":"192.0.2.7","started_at":1772442611000,"request":{"uri":"/a","headers":{"host":"h"}},"latencies":{"request":515}}"#,
        r#"{"requestId":"c","ip":"192.0.2.7","requestTime":"02/Mar/2026:09:10:11 +0000","httpMethod":"GET","status":"200"}"#,
        r#"{"requestId":"c","sourceIp":"192.0.2.7","requestTimeEpoch":"1772442611000"}"#,
        r#"{"insertId":"x","httpRequest":{"remoteIp":"192.0.2.7","status":200},"timestamp":"2026-03-02T09:10:11Z"}"#,
        r#"{"time":"2026-03-02T09:10:11.0000000Z","properties":{"clientIp":"192.0.2.7"}}"#,
        r#"{"remote":"192.0.2.7","user":"-","time":"02/Mar/2026:09:10:11 +0000","method":"GET"}"#,
    ] {
        assert_eq!(only("", line), ("192.0.2.7".to_owned(), "2026-03-02T09:10:11Z".to_owned()), "{line}");
        // As a cloud's tool prints a list of them, and as jq does.
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let array = serde_json::json!([value, value, {"other": "}]{\"[{"}]);
        for log in [format!("{array:#}\n"), array.to_string(), format!("{value:#}\n").repeat(2) + "{\n}\n"] {
            let report = json("--lax", &log);
            assert_eq!((&report["requests"], &report["keys"]), (&2.into(), &1.into()), "{log}");
            assert_eq!(
                (&report["unread"]["lines"], &report["sources"][0]["format"]),
                (&1.into(), &"JSON".into()),
                "{log}"
            );
            let last = log.trim_end().lines().count() as u64;
            let line = report["unread"]["first"][0]["line"].as_u64().expect("a number");
            assert!((1..=last).contains(&line), "{line} of {last}");
        }
    }
    let wrapped = serde_json::json!([{"timestamp": 1_772_449_999_000_u64, "message": COMBINED}]);
    assert_eq!(only("", &format!("{wrapped:#}")).1, "2026-03-02T09:10:11Z");
    // What follows would be lost.
    let said = failure("", "[\n  {\"time\": 1772442611, \"ip\": \"a\"},\n  {\"time\": 17");
    assert!(said.contains("the last object of JSON has no end"), "{said}");
}

#[test]
fn an_ipv6_client_has_its_port_behind_it() {
    for (client, key) in [
        ("2001:db8:1:2:3:4:5:6:33317", "2001:db8:1:2::/64"),
        ("2001:db8::1:33317", "2001:db8::/64"),
        ("::1:33317", "::/64"),
        ("::ffff:192.0.2.7:33317", "192.0.2.7"),
    ] {
        let haproxy = format!(
            r#"{client} [02/Mar/2026:09:10:11.000] front back/s1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1""#
        );
        assert_eq!(only("", &haproxy).0, key, "{client}");
    }
    let alb = r#"h2 2026-03-02T09:10:11Z app/web/50dc [2001:db8:1:2::9]:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET https://h:443/a HTTP/2.0" "curl""#;
    assert_eq!(only("--where status=200", alb).0, "2001:db8:1:2::/64");
}

#[test]
fn json_that_is_not_valid_is_called_that_and_missing_fields_are_answered_with_those_that_there_are() {
    // nginx without escape=json.
    let invalid =
        r#"{"time":"2026-03-02T09:10:11+00:00","remote_addr":"192.0.2.7","agent":"a \x22quoted\x22 one"}"#;
    let valid = invalid.replace("\\x22", "'");
    assert!(failure("", "").contains("no known format"));
    let said = failure("", invalid);
    assert!(said.contains("no known format") && said.contains("It is JSON that is not valid"), "{said}");
    let said = failure("", format!("{valid}\n").repeat(9) + invalid);
    assert!(
        said.contains("1 of 10 lines") && said.contains(":10: JSON that is not valid: {\"time\""),
        "{said}"
    );
    let said = failure("", r#"{"when":1772442611,"who":{"ip":"a","tags":["x"]},"none":null}"#);
    assert!(
        said.contains("no known format has a time") && said.contains("Its fields are when, who.ip, who.tags"),
        "{said}"
    );

    let all = "a.b, headers.X-Key, path, time, usage.total_tokens, user";
    for (words, log, said, fields) in [
        ("--by nobody", FIELDS, "3 have no nobody", all),
        ("--by user,nobody", FIELDS, "3 have no user or no nobody", all),
        ("--by user --cost nothing", FIELDS, "no request has the field nothing", all),
        ("--by user --where usr=alice", FIELDS, "--where leaves out 3", all),
        (
            "--by api_key",
            COMBINED,
            "1 have no api_key",
            "ip, identity, user, time, request, method, path, status, bytes, referrer, agent, forwarded",
        ),
        ("--by c", "time,ip,b\n1772442611,a,b", "1 have no c", "time, ip, b"),
        ("--by c", "#Fields: date time c-ip\n2026-03-02 09:10:11 a", "1 have no c", "date, time, c-ip"),
        (r"--by c --regex (?P<time>\d+)·(?P<d>.)", "1772442611 x", "1 have no c", "time, d"),
    ] {
        let shown = failure(words, log);
        let fields = format!("the fields of the first line are {fields}\n");
        assert!(shown.contains(said) && shown.contains(&fields), "{words}: {shown}");
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
        // gin, Go's log, werkzeug, and CloudFront's columns.
        ("2026/03/02 - 09:10:11", "2026-03-02T09:10:11Z"),
        ("2026/03/02 09:10:11.25", "2026-03-02T09:10:11.25Z"),
        ("02/Mar/2026 09:10:11", "2026-03-02T09:10:11Z"),
        ("2026-03-02\\t09:10:11", "2026-03-02T09:10:11Z"),
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
        "2026/03/02",
        "2026/13/02 - 09:10:11",
        "02/Mar/2026",
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
    // The name of a field may have a space.
    assert_eq!(only("--time my·time", "my time,ip\n1772442611,a").0, "a");
}

const FIELDS: &str = r#"{"time":1772442611,"user":"alice","path":"/login","usage":{"total_tokens":40},"headers":{"X-Key":["k1"]},"a.b":"flat"}
{"time":1772442612,"user":"alice","path":"/","usage":{"total_tokens":2.5},"headers":{"X-Key":["k2"]},"a.b":"flat"}
{"time":1772442613,"user":"b\u006fb","path":"/login/x","usage":null,"headers":{}}
"#;

#[test]
fn fields_are_named_by_options() {
    let keys = |words: &str| clients(words, FIELDS);
    assert_eq!(keys("--by user"), counted(&[("alice", 2), ("bob", 1)]));
    assert_eq!(keys("--by headers.X-Key"), counted(&[("k1", 1), ("k2", 1)]));
    assert_eq!(keys("--by user,path --by a.b"), counted(&[("alice / flat", 1), ("alice /login flat", 1)]));
    assert_eq!(keys("--by user --where path=/login"), counted(&[("alice", 1)]));
    assert_eq!(keys("--by user --where path!=/"), counted(&[("alice", 1), ("bob", 1)]));
    assert_eq!(keys("--by user --where path^=/login --where user~^b"), counted(&[("bob", 1)]));
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
