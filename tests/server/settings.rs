//! The settings: arguments of `loadmodule`, lines of the configuration, `CONFIG SET`; and loading as such.

use crate::common::server::module;
use crate::common::stored::{is_writing_files, tells_of_a_crash};
use crate::common::{is_before, texts, wait_until, Connection, Server};
use std::fs;

/// Whether a bucket can be taken from that would have to be created over `maxmemory`.
fn allows_on_oom(client: &mut Connection) -> bool {
    client.say("CONFIG SET maxmemory 1");
    let reply = client.attempt("TB.TAKE new 10 1");
    client.say("CONFIG SET maxmemory 0");
    match reply {
        Ok(_) => true,
        Err(error) if error.starts_with("OOM") => false,
        Err(error) => panic!("neither allowed nor out of memory: {error}"),
    }
}

#[test]
fn a_setting_is_an_argument_of_loadmodule_and_an_option_or_a_line_of_the_configuration() {
    let path = module();
    for (arguments, configured, allows) in [
        ("", "", false),
        ("on-oom deny", "", false),
        ("on-oom allow", "", true),
        ("tokenbucket.on-oom allow", "", true),
        ("ON-OOM ALLOW", "", true),
        ("TokenBucket.On-OOM Allow", "", true),
        ("on-oom deny on-oom allow", "", true),
        ("", "allow", true),
        // What the operator's configuration says counts more than what stands behind `loadmodule`.
        ("on-oom deny", "allow", true),
        ("on-oom allow", "deny", false),
    ] {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let (mut by_options, mut lines) = (
            Server::builder().module_arguments(&words),
            format!("loadmodule {} {arguments}\n", path.display()),
        );
        if !configured.is_empty() {
            by_options = by_options.option("tokenbucket.on-oom", configured);
            lines += &format!("tokenbucket.on-oom {configured}\n");
        }
        if !configured.is_empty() && is_before(7, 0) {
            let log = by_options.start_expecting_refusal();
            assert!(log.contains("'tokenbucket.on-oom "), "settings of modules are new in 7.0: {log}");
            continue;
        }
        let by_file = Server::builder().without_module().configuration_file(&lines);
        for server in [by_options.start(), by_file.start()] {
            assert_eq!(allows_on_oom(&mut server.connect()), allows, "{arguments}, then {configured}");
        }
    }
}

#[test]
fn the_setting_can_be_seen_and_changed_while_the_server_runs() {
    let server = Server::builder().module_arguments(&["on-oom", "allow"]).start();
    let mut client = server.connect();
    let setting = |client: &mut Connection| texts(client.say("CONFIG GET tokenbucket.on-oom"));
    if is_before(7, 0) {
        assert_eq!(setting(&mut client), [""; 0], "settings of modules are new in 7.0");
        let refused = client.refusal("CONFIG SET tokenbucket.on-oom deny");
        assert_eq!(refused, "ERR Unsupported CONFIG parameter: tokenbucket.on-oom");
        assert!(allows_on_oom(&mut client));
        return;
    }
    assert_eq!(setting(&mut client), ["tokenbucket.on-oom", "allow"]);
    client.say("CONFIG SET tokenbucket.on-oom deny");
    assert_eq!(setting(&mut client), ["tokenbucket.on-oom", "deny"]);
    assert!(!allows_on_oom(&mut client));
    client.say("CONFIG SET TOKENBUCKET.ON-OOM ALLOW");
    assert!(allows_on_oom(&mut client));
    for bad in ["maybe", "1", "yes"] {
        let refused = client.refusal(&format!("CONFIG SET tokenbucket.on-oom {bad}"));
        assert!(refused.contains("argument(s) must be one of the following: deny, allow"), "{refused}");
    }
    assert_eq!(setting(&mut client), ["tokenbucket.on-oom", "allow"]);
}

/// Said at the start, once and for all.
#[test]
fn cl_throttle_is_offered_unless_the_operator_says_no() {
    for (arguments, line, is_offered) in [
        (&[] as &[&str], None, "yes"),
        (&["cl-throttle", "no"], None, "no"),
        (&["tokenbucket.cl-throttle", "NO"], None, "no"),
        (&["cl-throttle", "yes", "on-oom", "allow"], None, "yes"),
        (&[], Some("no"), "no"),
        // The configuration counts more than the arguments.
        (&["cl-throttle", "no"], Some("yes"), "yes"),
    ] {
        let mut builder = Server::builder().module_arguments(arguments);
        match line {
            // Such lines are new in 7.0: see the first test.
            Some(_) if is_before(7, 0) => continue,
            Some(value) => builder = builder.option("tokenbucket.cl-throttle", value),
            None => {}
        }
        let server = builder.start();
        let mut client = server.connect();
        assert_eq!(client.has_command("CL.THROTTLE"), is_offered == "yes", "{arguments:?} {line:?}");
        let refused = client.refusal("CONFIG SET tokenbucket.cl-throttle no");
        if is_before(7, 0) {
            assert!(refused.starts_with("ERR Unsupported CONFIG parameter"), "{refused}");
        } else {
            assert!(refused.contains("immutable"), "{refused}");
            assert_eq!(texts(client.say("CONFIG GET tokenbucket.cl-throttle"))[1], is_offered);
        }
    }
}

#[test]
fn config_rewrite_keeps_what_was_set() {
    let lines = format!("loadmodule {}\n", module().display());
    let mut server = Server::builder().without_module().configuration_file(&lines).start();
    let mut client = server.connect();
    if is_before(7, 0) {
        client.say("CONFIG REWRITE");
    } else {
        client.say("CONFIG SET tokenbucket.on-oom allow");
        client.say("CONFIG REWRITE");
    }
    let rewritten = fs::read_to_string(server.folder().join("redis.conf")).unwrap();
    assert!(rewritten
        .lines()
        .any(|line| line.starts_with("loadmodule ") && line.contains(module().to_str().unwrap())));
    server.restart(false);
    assert_eq!(allows_on_oom(&mut server.connect()), !is_before(7, 0), "{rewritten}");
}

#[test]
fn a_bad_argument_refuses_to_load_and_the_log_names_it() {
    for (arguments, message) in [
        (&["speed", "fast"] as &[&str], "unknown argument 'speed': known are on-oom, cl-throttle"),
        (&["tokenbucket.speed", "fast"], "unknown argument 'tokenbucket.speed'"),
        (&["othermodule.on-oom", "allow"], "unknown argument 'othermodule.on-oom'"),
        (&["on-oom"], "argument 'on-oom' needs a value"),
        (&["on-oom", "allow", "on-oom"], "argument 'on-oom' needs a value"),
        (&["on-oom", "maybe"], "argument 'on-oom' must be deny or allow, not 'maybe'"),
        (&["ON-OOM", "no"], "argument 'ON-OOM' must be deny or allow, not 'no'"),
        (&["cl-throttle", "maybe"], "argument 'cl-throttle' must be yes or no, not 'maybe'"),
        (&["max-holds", "many"], "argument 'max-holds' must be a whole number from 1 to 1000000, not 'many'"),
        (&["on-oom", "allow", "speed", "fast"], "unknown argument 'speed'"),
        (&["\u{1b}[31m", "x"], "unknown argument '\\x1b[31m'"),
    ] {
        let log = Server::builder().module_arguments(arguments).start_expecting_refusal();
        let line = format!("tokenbucket was not loaded: {message}");
        assert!(log.contains(&line), "{arguments:?}: no '{line}' in\n{log}");
    }
}

#[test]
fn a_bad_option_of_the_server_refuses_to_start() {
    if is_before(7, 0) {
        // Any such option is unknown there: see the first test.
        return;
    }
    let bad = Server::builder().option("tokenbucket.on-oom", "maybe").start_expecting_refusal();
    assert!(bad.contains("argument(s) must be one of the following: deny, allow"), "{bad}");
    // What nobody has registered is refused by the server, in its own words.
    let unknown = Server::builder().option("tokenbucket.speed", "fast").start_expecting_refusal();
    assert!(unknown.contains("Module Configuration detected without"), "{unknown}");
}

#[test]
fn the_module_can_be_loaded_while_the_server_runs_and_not_be_unloaded() {
    let server = Server::builder().without_module().start();
    let mut client = server.connect();
    let module = module();
    let path = module.to_str().unwrap();
    let refused = client.try_run(&["MODULE", "LOAD", path, "on-oom", "maybe"]);
    assert!(refused.is_err_and(|error| error.starts_with("ERR Error loading the extension")));
    assert!(!client.has_command("TB.TAKE"));
    client.run(&["MODULE", "LOAD", path, "on-oom", "allow"]);
    assert!(allows_on_oom(&mut client));
    assert_eq!(client.decide("TB.TAKE k 10 1").allowed, 1);
    let refused = client.refusal("MODULE UNLOAD tokenbucket");
    assert!(refused.contains("the module exports one or more module-side data types"), "{refused}");
    let modules = format!("{:?}", client.say("MODULE LIST"));
    assert!(modules.contains("tokenbucket"), "{modules}");
}

/// What a server does with a module that was refused: it must not call what is no longer there.
#[test]
fn a_server_lives_on_after_a_load_that_failed() {
    let server = Server::builder().without_module().option("hz", 500).start();
    let mut client = server.connect();
    let path = module();
    for arguments in [["on-oom", "maybe"], ["speed", "fast"], ["cl-throttle", "perhaps"]] {
        let load = ["MODULE", "LOAD", path.to_str().unwrap(), arguments[0], arguments[1]];
        assert!(client.try_run(&load).unwrap_err().starts_with("ERR Error loading the extension"));
        // Cron, a change of the configuration, a fork and a file: whatever modules are told of.
        let second = client.count("server", "uptime_in_seconds");
        wait_until("cron has run", || client.count("server", "uptime_in_seconds") > second);
        client.say("CONFIG SET maxmemory 100mb");
        client.say("BGSAVE");
        wait_until("the snapshot is written", || !is_writing_files(&mut client));
        assert_eq!(client.info("persistence", "rdb_last_bgsave_status"), "ok");
        client.say("FLUSHALL");
    }
    assert!(!client.has_command("TB.TAKE"));
    assert!(!tells_of_a_crash(&server.log()), "{}", server.log());
}
