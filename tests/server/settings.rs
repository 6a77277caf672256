//! The settings: arguments of `loadmodule`, lines of the configuration, `CONFIG SET`; and loading as such.

use super::is_refused_before;
use crate::common::server::module;
use crate::common::stored::{is_writing_files, tells_of_a_crash};
use crate::common::{is_before, shown, texts, wait_until, Connection, Server};
use std::fs;
use std::path::Path;
use tokenbucket_core::hold::MAX_HOLDS;
use tokenbucket_core::request::{MAX_TOP_KEYS, MAX_WAITERS};

/// Returns whether a bucket can be taken from that would have to be created over `maxmemory`.
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
    for (arguments, configured, allows, has_cl_throttle) in [
        ("", "", false, true),
        ("on-oom allow", "", true, true),
        ("tokenbucket.on-oom allow", "", true, true),
        ("TokenBucket.On-OOM Allow", "", true, true),
        ("on-oom deny on-oom allow", "", true, true),
        ("cl-throttle no", "", false, false),
        ("", "on-oom allow", true, true),
        ("", "cl-throttle no", false, false),
        // What the operator's configuration says counts more than what stands behind `loadmodule`.
        ("on-oom allow", "on-oom deny", false, true),
        ("cl-throttle no", "cl-throttle yes", false, true),
    ] {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let mut by_options = Server::builder().module_arguments(&words);
        let mut lines = format!("loadmodule {} {arguments}\n", path.display());
        if let Some((name, value)) = configured.split_once(' ') {
            by_options = by_options.option(&format!("tokenbucket.{name}"), value);
            lines += &format!("tokenbucket.{configured}\n");
        }
        if !configured.is_empty() && is_before(7, 0) {
            let log = by_options.start_expecting_refusal();
            assert!(log.contains("'tokenbucket."), "settings of modules are new in 7.0: {log}");
            continue;
        }
        let by_file = Server::builder().without_module().configuration_file(&lines);
        for server in [by_options.start(), by_file.start()] {
            let mut client = server.connect();
            let found = (allows_on_oom(&mut client), client.has_command("CL.THROTTLE"));
            assert_eq!(found, (allows, has_cl_throttle), "{arguments}, then {configured}");
        }
    }
}

#[test]
fn a_setting_can_be_seen_and_changed_while_the_server_runs() {
    let arguments = ["on-oom", "allow", "cl-throttle", "no"];
    let (_server, mut client) = Server::builder().module_arguments(&arguments).start_with_client();
    if is_refused_before((7, 0), &mut client, "CONFIG SET tokenbucket.on-oom deny") {
        assert_eq!(shown(&client.say("CONFIG GET tokenbucket.*")), "[]");
        return assert!(allows_on_oom(&mut client));
    }
    let one_of = "argument(s) must be one of the following: deny, allow";
    // Whether there is CL.THROTTLE is said at the start, once and for all.
    for (name, value, refusal, expected) in [
        ("tokenbucket.on-oom", "deny", "", "deny"),
        ("TOKENBUCKET.ON-OOM", "ALLOW", "", "allow"),
        ("tokenbucket.on-oom", "maybe", one_of, "allow"),
        ("tokenbucket.on-oom", "1", one_of, "allow"),
        ("tokenbucket.on-oom", "yes", one_of, "allow"),
        ("tokenbucket.cl-throttle", "yes", "immutable", "no"),
    ] {
        match client.attempt(&format!("CONFIG SET {name} {value}")) {
            Ok(_) => assert_eq!(refusal, "", "{name} {value} was set"),
            Err(error) => assert!(!refusal.is_empty() && error.contains(refusal), "{name} {value}: {error}"),
        }
        let name = name.to_lowercase();
        assert_eq!(texts(client.say(&format!("CONFIG GET {name}"))), [&name, expected], "{name} {value}");
        assert_eq!(allows_on_oom(&mut client), expected != "deny", "{name} {value}");
    }
}

#[test]
fn config_rewrite_keeps_what_was_set() {
    let lines = format!("loadmodule {}\n", module().display());
    let (mut server, mut client) =
        Server::builder().without_module().configuration_file(&lines).start_with_client();
    if !is_before(7, 0) {
        client.say("CONFIG SET tokenbucket.on-oom allow");
    }
    client.say("CONFIG REWRITE");
    let rewritten = fs::read_to_string(server.folder().join("redis.conf")).unwrap();
    assert!(rewritten.contains(lines.trim_end()), "{rewritten}");
    server.restart(false);
    assert_eq!(allows_on_oom(&mut server.connect()), !is_before(7, 0), "{rewritten}");
}

#[test]
fn a_bad_argument_or_option_refuses_to_start_and_the_log_names_it() {
    for (arguments, message) in [
        (&["speed", "fast"] as &[&str], "unknown argument 'speed', use one of on-oom, cl-throttle"),
        (&["tokenbucket.speed", "fast"], "unknown argument 'tokenbucket.speed'"),
        (&["othermodule.on-oom", "allow"], "unknown argument 'othermodule.on-oom'"),
        (&["nonsense"], "unknown argument 'nonsense', use one of on-oom, cl-throttle, max-holds, top-keys"),
        (&["on-oom"], "argument 'on-oom' needs a value"),
        (&["on-oom", "allow", "on-oom"], "argument 'on-oom' needs a value"),
        (&["on-oom", "maybe"], "argument 'on-oom' must be deny or allow, not 'maybe'"),
        (&["ON-OOM", "no"], "argument 'ON-OOM' must be deny or allow, not 'no'"),
        (&["cl-throttle", "maybe"], "argument 'cl-throttle' must be yes or no, not 'maybe'"),
        (&["max-holds", "many"], "argument 'max-holds' must be a whole number from 1 to 100000, not 'many'"),
        (&["on-oom", "allow", "speed", "fast"], "unknown argument 'speed'"),
        (&["\u{1b}[31m", "x"], "unknown argument '\\x1b[31m'"),
    ] {
        let log = Server::builder().module_arguments(arguments).start_expecting_refusal();
        let line = format!("tokenbucket was not loaded: {message}");
        assert!(log.contains(&line), "{arguments:?}: no '{line}' in\n{log}");
    }
    if is_before(7, 0) {
        return; // Any such option is unknown there: see the first test.
    }
    for (option, value, message) in [
        ("tokenbucket.on-oom", "maybe", "argument(s) must be one of the following: deny, allow"),
        // What nobody has registered is refused by the server, in its own words.
        ("tokenbucket.speed", "fast", "Module Configuration detected without"),
    ] {
        let log = Server::builder().option(option, value).start_expecting_refusal();
        assert!(log.contains(message), "{option}: no '{message}' in\n{log}");
    }
}

/// The pages say what the module takes.
#[test]
fn the_pages_have_the_bounds_of_each_number_and_no_other_is_taken() {
    for (name, min, max) in
        [("max-holds", 1, MAX_HOLDS.into()), ("max-waiters", 0, MAX_WAITERS), ("top-keys", 0, MAX_TOP_KEYS)]
    {
        let bounds = format!("{min} to {max}");
        for (page, place) in [("docs/reference/settings.md", 0), ("redis.conf.example", 5)] {
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
            let lines: Vec<_> = text.lines().collect();
            let row = lines.iter().position(|line| line.contains(&format!("tokenbucket.{name}"))).unwrap();
            let says = lines[row.saturating_sub(place)..=row].iter().any(|line| line.contains(&bounds));
            assert!(says, "{page} does not say {bounds} of {name}");
        }
        for outside in [min - 1, max + 1] {
            let log =
                Server::builder().module_arguments(&[name, &outside.to_string()]).start_expecting_refusal();
            assert!(log.contains(&format!("must be a whole number from {bounds}, not '{outside}'")), "{log}");
        }
        let server = Server::builder().module_arguments(&[name, &max.to_string()]).start();
        if !is_before(7, 0) {
            let mut client = server.connect();
            let refused = client.refusal(&format!("CONFIG SET tokenbucket.{name} {}", max + 1));
            assert!(refused.contains(&format!("between {min} and {max} inclusive")), "{refused}");
            client.say(&format!("CONFIG SET tokenbucket.{name} {min}"));
        }
    }
}

/// What follows from each: [`super::maxmemory`] and [`super::waiting`].
#[test]
fn the_log_names_the_commands_that_the_module_calls_and_the_configuration_renames() {
    let warning = "tokenbucket: the server has no command \"";
    assert!(!Server::start().log().contains(warning));
    let lines = ["CONFIG", "SETRANGE", "TYPE"].map(|command| format!("rename-command {command} \"\"\n"));
    let server = Server::builder().configuration_file(&lines.concat()).start();
    let log = server.log();
    let named: Vec<_> = log.split(warning).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(named, ["CONFIG", "SETRANGE", "TYPE"], "{log}");
}

/// What a server does with a module that was refused: it must not call what is no longer there. One that was loaded it
/// cannot unload.
#[test]
fn the_module_can_be_loaded_while_the_server_runs_and_not_be_unloaded() {
    let (server, mut client) = Server::builder().without_module().option("hz", 500).start_with_client();
    let load = format!("MODULE LOAD {}", module().display());
    for arguments in ["on-oom maybe", "speed fast", "cl-throttle perhaps"] {
        let refused = client.refusal(&format!("{load} {arguments}"));
        assert!(refused.starts_with("ERR Error loading the extension"), "{arguments}: {refused}");
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
    client.say(&format!("{load} on-oom allow"));
    assert!(allows_on_oom(&mut client));
    let refused = client.refusal("MODULE UNLOAD tokenbucket");
    assert!(refused.contains("the module exports one or more module-side data types"), "{refused}");
    let modules = format!("{:?}", client.say("MODULE LIST"));
    assert!(modules.contains("tokenbucket"), "{modules}");
}

/// From 7.0 on `CONFIG REWRITE` writes a line for a module that came from the command line. The next start reads both.
#[test]
fn a_second_loadmodule_line_at_the_start_changes_nothing() {
    let arguments = ["max-holds", "7", "on-oom", "allow"];
    let line = format!("loadmodule {} {}\n", module().display(), arguments.join(" "));
    let twice = || Server::builder().configuration_file(&line);
    let (mut server, mut client) = twice().module_arguments(&arguments).start_with_client();
    client.say("TB.TAKE k 10 1/h");
    for _ in 0..2 {
        client.say("CONFIG REWRITE");
        server.restart(true);
        client = server.connect();
    }
    assert_eq!(client.decide("TB.TAKE k 10 1/h").remaining, 8);
    assert_eq!(client.count("tokenbucket", "tokenbucket_buckets"), 1);
    let modules = shown(&client.say("MODULE LIST"));
    assert_eq!(modules.matches("\"tokenbucket\"").count(), 1, "{modules}");
    let rewritten = fs::read_to_string(server.folder().join("redis.conf")).unwrap();
    assert_eq!(rewritten.lines().filter(|line| line.starts_with("loadmodule ")).count(), 1, "{rewritten}");
    assert!(allows_on_oom(&mut client));
    assert!(server.log().contains("this loadmodule line changes nothing"), "{}", server.log());
    // Which of two settings is meant only the operator knows.
    for others in [&[] as &[&str], &["max-holds", "8", "on-oom", "allow"], &["max-holds", "7"]] {
        let log = twice().module_arguments(others).start_expecting_refusal();
        let line = "tokenbucket was not loaded: a module of this name is loaded";
        assert!(log.contains(line) && log.contains("delete one loadmodule line"), "{log}");
    }
}

/// From the same file, and from another.
#[test]
fn loading_the_module_twice_is_refused_and_the_log_says_why() {
    let (server, mut client) = Server::start_with_client();
    client.say("TB.TAKE k 10 1/h");
    let copy = server.folder().join("copy.so");
    fs::copy(module(), &copy).unwrap();
    for (file, lines) in [(module().as_path(), 1), (&copy, 2)] {
        let refused = client.refusal(&format!("MODULE LOAD {}", file.display()));
        assert!(refused.starts_with("ERR Error loading the extension"), "{refused}");
        let line = "tokenbucket was not loaded: a module of this name is loaded (MODULE LIST)";
        assert_eq!(server.log().matches(line).count(), lines, "{}", server.log());
    }
    assert_eq!(client.decide("TB.TAKE k 10 1/h").remaining, 8);
}
