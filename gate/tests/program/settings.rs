use std::process::Command;

use crate::gate::{wait_until, Setup};
use crate::servers::{ask, Server};
use crate::{asks, started, TWO};

/// Wrong settings end the program with one line that names the variable, and exit code 1. It shows no secret.
#[test]
fn names_the_variable_that_is_wrong() {
    let cases = include_str!("refusals.txt").replace("\n    ", " ");
    for case in cases.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (variables, expected) = case.split_once(" -> ").expect("an arrow");
        let variables = variables.split(' ').map(|variable| variable.split_once('=').expect("a value"));
        let (code, line) = Setup::new().set_all(&variables.collect::<Vec<_>>()).refused();
        let is_expected = line.starts_with(&format!("tokenbucket-gate: {expected}"));
        assert!(code == 1 && is_expected && !line.contains("s3cret"), "{case}: {code} {line}");
    }
}

/// Texts that are set to the empty string, as envoyproxy/ratelimit takes them.
#[test]
fn takes_empty_variables_as_ratelimit_does() {
    // RUNTIME_ROOT is then where the program starts.
    let setup = Setup::new().file("../../config/two.yaml", TWO);
    let names = "RUNTIME_ROOT CHECK_FILE LIMITADOR_LIMITS_FILE CACHE_KEY_PREFIX HOST GRPC_UDS REDIS_AUTH";
    let gate = names.split(' ').fold(setup, |setup, name| setup.set(name, "")).start();
    assert!(gate.rlconfig().contains("d.key"));
    assert_eq!(gate.http("GET", "/check", "").status, 404);
}

/// A port that is taken is named with its variable.
#[test]
fn names_the_port_that_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let (code, line) = Setup::new().set("GRPC_PORT", port).refused();
    assert_eq!(code, 1);
    assert!(line.contains(&format!("cannot listen on 127.0.0.1:{port} (GRPC_PORT): ")), "{line}");
}

/// A mistake in a file ends the start: file, line, and what is wrong.
#[test]
fn names_the_file_that_is_wrong() {
    let (code, line) =
        Setup::new().file("ok.yaml", TWO).file("wrong.yaml", "domain: e\nlimits: 3\n").refused();
    assert_eq!(code, 1);
    assert!(line.ends_with("config/wrong.yaml:2: config error, unknown key 'limits'"), "{line}");
}

/// `check` judges files as a start would, and starts nothing.
#[test]
fn checks_files_without_starting() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("ok"), TWO).expect("a file");
    std::fs::write(folder.path().join("wrong"), "domain: ''\n").expect("a file");
    std::fs::write(folder.path().join("rules"), "domain: d\nrules: []\n").expect("a file");
    let check = |names: &[&str], rules: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate"));
        command.env_clear().env("CHECK_FILE", rules).current_dir(folder.path()).arg("check").args(names);
        let output = command.output().expect("the program");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    assert_eq!(check(&["ok"], "rules"), (Some(0), String::new()));
    let wrong = "wrong:1: config file cannot have empty domain\n";
    assert_eq!(check(&["ok", "wrong"], "rules"), (Some(1), wrong.to_owned()));
    let rules = "ok:2: unknown key 'descriptors', none of: domain, deny_with, trusted_hops, proxies, rules\n";
    assert_eq!(check(&["ok"], "ok"), (Some(1), rules.to_owned()));
    assert_eq!(check(&["missing"], "").0, Some(1));
}

/// Variables of envoyproxy/ratelimit that mean nothing here are named once, in one line; others are none of our business.
#[test]
fn names_variables_without_meaning() {
    let setup = Setup::new().set("USE_STATSD", "false").set("REDIS_POOL_SIZE", 5).set("SOMETHING_ELSE", 1);
    let gate = setup.set("REDIS_PERSECOND", "false").start();
    let line = gate.wait_for_line("without meaning");
    assert!(line.ends_with("set, but without meaning here: USE_STATSD, REDIS_POOL_SIZE"), "{line}");
}

/// With LOG_FORMAT=json each line is an object.
#[test]
fn logs_json() {
    let gate = Setup::new().set("LOG_FORMAT", "json").start();
    wait_until("lines", || gate.log().len() >= 3);
    for line in gate.log() {
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(line["@message"].is_string() && line["level"].is_string(), "{line}");
        assert!(
            line["@timestamp"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')),
            "{line}"
        );
    }
}

/// The variables of the page have the defaults that it says.
#[test]
fn has_the_defaults_of_the_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate")).arg("--help").env_clear().output();
    let help = String::from_utf8(output.expect("the program").stdout).expect("text");
    let page = include_str!("../../../docs/reference/gate.md");
    let rows = page.lines().filter_map(|row| row.strip_prefix("| `")?.split_once("` | `"));
    let rows: Vec<_> = rows.filter(|(name, _)| name.starts_with(char::is_uppercase)).collect();
    for (names, rest) in &rows {
        let defaults = rest.split("` | ").next().unwrap_or_default();
        for (name, default) in names.split("`, `").zip(defaults.split("`, `")) {
            let env = [format!("[env: {name}="), format!("[env: {name}]")];
            let mut options = help.split("\n\n").filter(|words| env.iter().any(|env| words.contains(env)));
            let words = options.next().unwrap_or_else(|| panic!("no {name} in {help}"));
            assert!(words.contains(&format!("[default: {default}]")), "{name}: {default}, but {words}");
        }
    }
    assert!(rows.len() > 12, "{rows:?}");
}

/// What the settings say about limits, keys and replies.
#[test]
fn decides_as_settings_say() {
    let redis = Server::start();
    let limits = TWO.replace("unit: minute", "unit: hour");
    let gate = Setup::redis(&redis.url()).file("../sub/app/two.yaml", &limits).set_all(&[
        ("RUNTIME_SUBDIRECTORY", "sub"),
        ("RUNTIME_APPDIRECTORY", "app"),
        ("CACHE_KEY_PREFIX", "edge:"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Most"),
        ("LIMIT_REMAINING_HEADER", "X-Left"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("QUOTA_MODE", "true"),
    ]);
    let gate = gate.start();
    gate.wait_until_healthy();
    let reply = gate.json(&asks("a"));
    for header in [r#""key":"X-Most","value":"2""#, r#""key":"X-Left","value":"1""#, r#""key":"X-Reset""#] {
        assert!(reply.body.contains(header), "{reply:?}");
    }
    let keys: Vec<String> = ask(&redis, &["KEYS", "*key=a*"]);
    assert!(keys.len() == 1 && keys[0].starts_with("edge:"), "{keys:?}");
    // A quota that is over denies nothing while another one is not.
    let both = asks("a").replace("]}]}", r#"]},{"entries":[{"key":"key","value":"b"}]}]}"#);
    assert_eq!([(); 4].map(|()| gate.json(&both).status), [200, 200, 429, 429]);
}

/// A Redis that hangs is away after REDIS_TIMEOUT.
#[test]
fn waits_for_redis_no_longer_than_its_timeout() {
    let (redis, gate) = started(&[("REDIS_TIMEOUT", "300ms")]);
    redis.signal("STOP");
    assert_eq!(gate.json(&asks("a")).status, 503);
    redis.signal("CONT");
    wait_until("a decision", || gate.json(&asks("a")).status == 200);
}
