use std::process::Command;

use crate::gate::{self, wait_until, Setup};
use crate::servers::{ask, Server};
use crate::{asks, TWO};

/// Wrong settings end the program with one line that names the variable, and exit code 1.
#[test]
fn names_the_variable_that_is_wrong() {
    for (name, value, line) in [
        ("PORT", "abc", "PORT=abc: invalid digit found in string"),
        ("USE_PROMETHEUS", "yes", "USE_PROMETHEUS=yes: must be true or false"),
        ("REDIS_TIMEOUT", "5", "REDIS_TIMEOUT=5: must be a duration such as 100ms, 1.5s or 24h"),
        ("REDIS_TYPE", "RING", "REDIS_TYPE=RING: must be one of SINGLE, SENTINEL, CLUSTER"),
        ("REDIS_PERSECOND", "true", "REDIS_PERSECOND=true: one server decides on all limits: unset it"),
        ("PORT", "", "PORT=: cannot parse integer from empty string"),
        ("REDIS_URL", "redis", "REDIS_URL: must be host:port, a path or a URL"),
        (
            "LOCAL_CACHE_SIZE_IN_BYTES",
            "99999999999999",
            "LOCAL_CACHE_SIZE_IN_BYTES=99999999999999: must be at most 1073741824",
        ),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "-1", "LOCAL_CACHE_SIZE_IN_BYTES=-1: must be a whole number"),
        ("NEAR_LIMIT_RATIO", "1.5", "NEAR_LIMIT_RATIO=1.5: must be a number from 0 to 1"),
        ("RESERVATION_MAX_FRACTION", "2", "RESERVATION_MAX_FRACTION=2: must be a number from 0 to 1"),
        ("RESERVATION_MAX_TTL", "0", "RESERVATION_MAX_TTL=0: must be from 1ms to 720h"),
        ("CONNECTION_IDLE_TIMEOUT", "0s", "CONNECTION_IDLE_TIMEOUT=0: must be above 0"),
        ("CONFIG_TYPE", "XDS", "CONFIG_TYPE=XDS: must be one of FILE, GRPC_XDS_SOTW"),
        (
            "GRPC_SERVER_USE_TLS",
            "1",
            "GRPC_SERVER_USE_TLS=true needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY",
        ),
    ] {
        let refused = Setup::new().set(name, value).refused();
        assert_eq!(refused, (1, format!("tokenbucket-gate: {line}")));
    }
}

/// Variables that are set to the empty string, as envoyproxy/ratelimit takes them: text is empty, and the rest is a mistake.
#[test]
fn takes_empty_variables_as_ratelimit_does() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate"));
    let output = command.env_clear().arg("--grpc-port").output().expect("the program");
    let line = String::from_utf8(output.stderr).expect("text");
    assert!(line.contains("a value is required") || line.contains("must not be empty"), "{line}");
    let empty = |name: &str| Setup::new().set(name, "").file("two.yaml", TWO);
    for name in
        ["REDIS_TIMEOUT", "USE_PROMETHEUS", "REDIS_TYPE", "BACKEND_TYPE", "LOG_LEVEL", "NEAR_LIMIT_RATIO"]
    {
        let (code, line) = empty(name).refused();
        assert!(code == 1 && line.contains(&format!("{name}=: ")), "{line}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    // RUNTIME_ROOT is then where the program starts.
    for below in ["root", "config"] {
        std::fs::create_dir_all(folder.path().join(below)).expect("a folder");
    }
    std::fs::write(folder.path().join("config/two.yaml"), TWO).expect("a file");
    let mut setup = Setup::new();
    for name in [
        "RUNTIME_ROOT",
        "CHECK_FILE",
        "LIMITADOR_LIMITS_FILE",
        "CACHE_KEY_PREFIX",
        "HOST",
        "GRPC_UDS",
        "REDIS_AUTH",
    ] {
        setup = setup.set(name, "");
    }
    let gate = setup.start_in(folder);
    assert!(gate::ask(gate.debug, "GET", "/rlconfig", "").body.contains("d.key"));
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
    let check = |names: &[&str], merge: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate"));
        command
            .env_clear()
            .env("MERGE_DOMAIN_CONFIG", merge)
            .current_dir(folder.path())
            .arg("check")
            .args(names);
        let output = command.output().expect("the program");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    assert_eq!(check(&["ok"], "false"), (Some(0), String::new()));
    let wrong = "wrong:1: config file cannot have empty domain\n";
    assert_eq!(check(&["ok", "wrong"], "false"), (Some(1), wrong.to_owned()));
    let (code, line) = check(&["ok", "ok"], "false");
    assert!(code == Some(1) && line.contains("duplicate domain 'd' in config file"), "{line}");
    assert_eq!(check(&["missing"], "false").0, Some(1));
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

/// The variables of envoyproxy/ratelimit are read by their names, with its defaults, and each is an option too.
#[test]
fn lists_variables_and_their_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_tokenbucket-gate")).arg("--help").env_clear().output();
    let help = String::from_utf8(output.expect("the program").stdout).expect("text");
    for (name, default) in [
        ("HOST", "0.0.0.0"),
        ("PORT", "8080"),
        ("GRPC_HOST", "0.0.0.0"),
        ("GRPC_PORT", "8081"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("DEBUG_PORT", "6070"),
        ("GRPC_SERVER_USE_TLS", "false"),
        ("GRPC_MAX_CONNECTION_AGE", "24h"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h"),
        ("USE_PROMETHEUS", "false"),
        ("PROMETHEUS_ADDR", ":9090"),
        ("PROMETHEUS_PATH", "/metrics"),
        ("LOG_LEVEL", "warn"),
        ("LOG_FORMAT", "text"),
        ("RUNTIME_ROOT", "/srv/runtime_data/current"),
        ("RUNTIME_APPDIRECTORY", "config"),
        ("RUNTIME_IGNOREDOTFILES", "false"),
        ("NEAR_LIMIT_RATIO", "0.8"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "false"),
        ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
        ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
        ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
        ("SHADOW_MODE", "false"),
        ("QUOTA_MODE", "false"),
        ("RESPONSE_DYNAMIC_METADATA", "false"),
        ("MERGE_DOMAIN_CONFIG", "false"),
        ("REDIS_TYPE", "SINGLE"),
        ("REDIS_TIMEOUT", "100ms"),
    ] {
        let option = name.to_lowercase().replace('_', "-");
        let is_own = |words: &&str| words.split([' ', '[', '\n']).next() == Some(&option);
        let words = help.split("      --").find(is_own).unwrap_or_else(|| panic!("no {option} in {help}"));
        assert!(words.contains(&format!("[env: {name}=]")), "{words}");
        assert!(words.contains(&format!("[default: {default}]")), "{words}");
    }
}

/// What the settings say about limits, keys and replies.
#[test]
fn decides_as_settings_say() {
    let redis = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let limits = folder.path().join("root/sub/app");
    std::fs::create_dir_all(&limits).expect("a folder");
    std::fs::write(limits.join("two.yaml"), TWO.replace("unit: minute", "unit: hour")).expect("a file");
    let setup =
        Setup::redis(&redis.url()).set("RUNTIME_SUBDIRECTORY", "sub").set("RUNTIME_APPDIRECTORY", "app");
    let setup = setup.set("CACHE_KEY_PREFIX", "edge:");
    let setup = setup.set("LIMIT_RESPONSE_HEADERS_ENABLED", "true").set("LIMIT_LIMIT_HEADER", "X-Most");
    let setup = setup.set("LIMIT_REMAINING_HEADER", "X-Left").set("LIMIT_RESET_HEADER", "X-Reset");
    let gate = setup.set("QUOTA_MODE", "true").start_in(folder);
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
    let redis = Server::start();
    let gate = Setup::redis(&redis.url()).file("two.yaml", TWO).set("REDIS_TIMEOUT", "300ms").start();
    gate.wait_until_healthy();
    redis.signal("STOP");
    assert_eq!(gate.json(&asks("a")).status, 503);
    redis.signal("CONT");
    wait_until("a decision", || gate.json(&asks("a")).status == 200);
}
