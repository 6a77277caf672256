//! Lines that nobody should write.

use crate::run::{failure, json, requests, run, text};

const GOOD: &str = "192.0.2.7 - - [02/Mar/2026:09:10:11 +0000] \"GET / HTTP/1.1\" 200 5\n";

fn log(hostile: &[u8]) -> Vec<u8> {
    [GOOD.repeat(60).as_bytes(), hostile, b"\n", GOOD.repeat(40).as_bytes()].concat()
}

#[test]
fn a_hostile_line_costs_a_line_in_the_count() {
    let long = [b"10.0.0.1 - - [02/Mar/2026:09:10:11 +0000] ".as_slice(), &vec![b'x'; 3 << 20]].concat();
    let key = [vec![b'k'; 1 << 20], b" - - [02/Mar/2026:09:10:11 +0000] \"GET / HTTP/1.1\" 200 5".to_vec()]
        .concat();
    let key_below_the_limit = key[1 << 16..].to_vec();
    let binary: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').cycle().take(5000).collect();
    for (hostile, reason) in [
        (&binary[..], "another format"),
        (&long, "more than 1 MiB"),
        (&key, "more than 1 MiB"),
        (&key_below_the_limit, "a key of more than 4,096 bytes"),
        (b"10.0.0.1 - - [31/Dec/9999:23:59:59 +0000] \"GET / HTTP/1.1\" 200 5", "no time that can be read"),
        (b"10.0.0.1 - - [31/Dec/1969:23:59:59 +0000] \"GET / HTTP/1.1\" 200 5", "no time that can be read"),
        (b"10.0.0.1 - - [02/Mar/2026:09:10:11 +0000", "no time that can be read"),
        (b"[[[[[[{{{{{{\"\"\"\"\"\\", "no time that can be read"),
        (b"\x00", "no time that can be read"),
        (b"\xff\xfe\x80", "no time that can be read"),
    ] {
        let report = json("", log(hostile));
        let shown = String::from_utf8_lossy(&hostile[..hostile.len().min(60)]);
        assert_eq!(
            (&report["requests"], &report["keys"], &report["unread"]["lines"]),
            (&100.into(), &1.into(), &1.into()),
            "{shown}"
        );
        let first = &report["unread"]["first"][0];
        assert_eq!((&first["line"], &first["reason"]), (&61.into(), &reason.into()), "{shown}");
    }
}

#[test]
fn json_that_is_none_or_deep_costs_a_line() {
    let good = "{\"time\":1772442611,\"ip\":\"a\"}\n".repeat(60);
    for hostile in [
        "{".repeat(100_000),
        format!("{}1{}", "{\"ip\":".repeat(5000), "}".repeat(5000)),
        format!("{{\"ip\":{}", "[".repeat(100_000)),
        r#"{"time":1772442611,"ip":"a""#.into(),
        r#"{"time":1772442611,"ip":"a"} x"#.into(),
        r#"{"time":1e999,"ip":"a"}"#.into(),
        r#"{"time":{"time":1772442611},"ip":"a"}"#.into(),
        r#"{"ip":"\ud800","time":1772442611,"#.into(),
    ] {
        let report = json("", format!("{good}{hostile}\n"));
        assert_eq!(
            (&report["requests"], &report["unread"]["lines"]),
            (&60.into(), &1.into()),
            "{}",
            &hostile[..hostile.len().min(80)]
        );
    }
}

#[test]
fn the_first_three_unread_lines_are_shown_and_more_than_a_twentieth_is_an_error() {
    let log = |bad: usize| GOOD.repeat(95) + &"\x1b[31mbad\n".repeat(bad);
    let shown = text("", log(5));
    assert!(shown.contains("5 lines cannot be read"), "{shown}");
    assert_eq!(shown.matches("standard input:9").count(), 3, "{shown}");
    assert!(shown.contains("standard input:96: no time that can be read: \\u{1b}[31mbad"), "{shown}");
    let said = failure("", log(6));
    assert!(
        said.contains("6 of 101 lines cannot be read") && said.contains("--lax") && !said.contains('\x1b'),
        "{said}"
    );
    assert!(text("--lax", log(6)).contains("6 lines cannot be read"));
}

#[test]
fn costs_out_of_bounds_are_unread_and_large_ones_do_not_overflow() {
    let line = |cost: &str| format!("{{\"time\":1772442611,\"ip\":\"a\",\"n\":{cost}}}\n");
    for cost in ["-1", "1e13", "\"many\"", "true"] {
        assert_eq!(json("--cost n --lax", line("1") + &line(cost))["unread"]["lines"], 1, "{cost}");
    }
    let report = json("--cost n --limit 1e12·1e12", line("1e12").repeat(50));
    assert_eq!((&report["replays"][0]["denied"], &report["replays"][0]["cost"]), (&49.into(), &5e13.into()));
}

#[test]
fn hostile_keys_move_no_cursor_and_are_text_on_the_page() {
    let key = r#"<script>alert(1)</script>\u001b[2J\u202e"#;
    let log = format!("{{\"time\":1772442611,\"user\":\"{key}\"}}\n");
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let shown = text(&format!("--by user --limit 0·1 --html {}", page.display()), &log);
    assert!(!shown.contains('\x1b') && !shown.contains('\u{202e}') && shown.contains("<script>"), "{shown}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(!page.contains("<script") && !page.contains('\x1b') && page.contains("&lt;script&gt;"));
}

#[test]
fn the_page_loads_nothing_and_has_both_plots_for_wide_and_narrow_windows() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    text(&format!("--html {}", page.display()), GOOD.repeat(20));
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
    for load in ["<link", "<script", "<img", "<iframe", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(load), "{load}");
    }
    assert_eq!(["w760", "w320"].map(|width| page.matches(&format!("class=\"{width}\"")).count()), [2, 2]);
}

#[test]
fn anonymous_reports_show_no_key() {
    let log =
        "{\"time\":1772442611,\"user\":\"alice@example.com\"}\n".repeat(50) + "alice@example.com was here\n";
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let words = format!("--by user --limit 0·1 --anonymize --html {}", page.display());
    let shown =
        [text(&words, &log), json(&words, &log).to_string(), std::fs::read_to_string(page).expect("a page")];
    assert!(shown.iter().all(|shown| !shown.contains("alice")), "{shown:?}");
    let said = failure(&words, "alice@example.com\n".repeat(9) + &log[..48]);
    assert!(!said.contains("alice"), "{said}");
    let key = |words: &str| requests(words, &log).remove(0).0;
    assert_ne!(key("--by user --anonymize"), key("--by user --anonymize"), "the key of the hash is random");
    let with_secret = |secret: &str| key(&format!("--by user --anonymize --secret {secret}"));
    assert_eq!(with_secret("one"), with_secret("one"));
    assert_ne!(with_secret("one"), with_secret("two"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let words = [
        "-c",
        &format!(
            "printf '%s\\n' '{}' | {} | true; echo ${{PIPESTATUS[1]}}",
            GOOD.trim(),
            env!("CARGO_BIN_EXE_tokenbucket-replay")
        ),
    ];
    let output = std::process::Command::new("bash").args(words).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(run("--version", "").status.success());
}
