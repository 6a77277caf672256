//! Who may call what, on which keys.

use crate::common::calls::Audience::{self, Operators, Readers, WaitingWriters, Writers};
use crate::common::calls::{Call, CALLS, COMMANDS};
use crate::common::{is_before, texts, Connection, Engine, Server};

/// A client that may do what `rules` say.
pub fn limited(server: &Server, rules: &str) -> Connection {
    server.connect().say(&format!("ACL SETUSER limited reset on nopass {rules}"));
    let mut client = server.connect();
    client.say("AUTH limited any");
    client
}

/// Holds against `expected` for whom the commands are that a user with `rules` may call.
fn assert_may_call(server: &Server, rules: &str, expected: fn(Audience) -> bool) {
    let mut client = limited(server, &format!("~* {rules}"));
    for command in COMMANDS {
        let example = Call::of(command).next().expect("an example");
        let may_call = !is_refused(&mut client, example.words);
        assert_eq!(may_call, expected(command.audience), "{} with {rules}", command.name);
    }
}

#[test]
fn acl_categories_let_an_operator_say_who_may_do_what() {
    let server = Server::start();
    assert_may_call(&server, "+@all", |_| true);
    assert_may_call(&server, "-@all", |_| false);
    assert_may_call(&server, "+tb.peek +tb.state +tb.holds", |audience| audience == Readers);
    assert_may_call(&server, "+@all -tb.restore -tb.override -tb.top", Audience::are_clients);
    assert_may_call(&server, "+info +tb.top", |audience| audience == Operators);
    if !is_before(7, 2) {
        assert_may_call(&server, "+@read", |audience| audience == Readers);
        assert_may_call(&server, "+@write", |audience| !audience.only_reads());
        assert_may_call(&server, "+@write -@admin", |audience| matches!(audience, Writers | WaitingWriters));
        assert_may_call(&server, "+@blocking", |audience| audience == WaitingWriters);
        assert_may_call(&server, "+@fast", |audience| matches!(audience, Readers | Writers));
        assert_may_call(&server, "+@all -@dangerous", Audience::are_clients);
        assert_may_call(&server, "+@admin", |audience| !audience.are_clients());
    } else {
        // Before 7.2 a module's commands are in no category: only named, or as part of all.
        for category in ["+@read", "+@write", "+@blocking", "+@fast", "+@admin", "+@dangerous"] {
            assert_may_call(&server, category, |_| false);
        }
        assert_may_call(&server, "+@all -@dangerous", |_| true);
    }
}

#[test]
fn the_module_has_an_acl_category_of_its_own_where_it_can() {
    let (server, mut client) = Server::start_with_client();
    if Engine::under_test().has_module_categories() {
        assert_may_call(&server, "+@tokenbucket", Audience::are_clients);
        assert_may_call(&server, "+@all -@tokenbucket", |audience| !audience.are_clients());
        assert!(texts(client.say("ACL CAT")).contains(&"tokenbucket".to_owned()));
    } else {
        let refused = client.refusal("ACL SETUSER limited +@tokenbucket");
        assert!(refused.contains("Unknown command or category name in ACL"), "{refused}");
    }
}

/// As they stand: `redis-cli` sends a remark behind a command along as arguments.
#[test]
fn the_users_of_the_documentation_can_be_pasted() {
    let (_server, mut client) = Server::start_with_client();
    let pages =
        [include_str!("../../docs/reference/access.md"), include_str!("../../docs/operate/monitoring.md")];
    let lines: Vec<&str> =
        pages.iter().flat_map(|page| page.lines()).filter(|line| line.starts_with("ACL SETUSER ")).collect();
    assert_eq!(lines.len(), 5);
    for line in lines {
        if !line.contains("+@tokenbucket") || Engine::under_test().has_module_categories() {
            client.say(line);
        }
    }
}

/// The gate's calls, on a bucket of its domain. Its health check asks for the other key.
#[test]
fn the_gate_may_do_what_it_does_and_nothing_else() {
    const CALLS: [&str; 10] = [
        "TB.TAKE KEY 1 1",
        "TB.MTAKE 1 KEY 1 1 1",
        "TB.GIVE KEY 1 1 1",
        "TB.RESERVE KEY 1 1 1 1000",
        "TB.CHARGE KEY 1 1 1",
        "TB.PEEK KEY 1 1",
        "TB.HOLD KEY 1 1 1 1000 id",
        "TB.MHOLD 1 id 1000 KEY 1 1 1",
        "TB.SETTLE KEY 1 1 id 1",
        "TB.MSETTLE 1 id KEY 1 1 1",
    ];
    let (server, mut client) = Server::start_with_client();
    let page = include_str!("../../docs/reference/access.md");
    client.say(page.lines().find(|line| line.starts_with("ACL SETUSER gate ")).expect("a rule"));
    let mut gate = server.connect();
    gate.say("AUTH gate secret");
    gate.say("PING");
    for key in ["edge|{user=ada}", "warm-up"] {
        let refused = CALLS.iter().filter(|call| is_refused(&mut gate, &call.replace("KEY", key)));
        assert_eq!(refused.collect::<Vec<_>>(), Vec::<&&str>::new(), "{key}");
    }
    for words in ["TB.TAKE other 1 1", "DEL warm-up", "TB.STATE warm-up", "CONFIG GET *"] {
        assert!(is_refused(&mut gate, words), "{words}");
    }
}

fn is_refused(client: &mut Connection, words: &str) -> bool {
    client.attempt(words).is_err_and(|error| error.starts_with("NOPERM"))
}

#[test]
fn key_patterns_cover_every_key_of_every_call() {
    let server = Server::start();
    let mut client = limited(&server, "+@all ~mine:*");
    for call in CALLS.iter() {
        let mine = |key: &str| format!("mine:{key}");
        assert!(!is_refused(&mut client, &call.with_keys(mine)), "{}", call.words);
        for foreign in call.keys() {
            let one_foreign = call.with_keys(|key| if key == foreign { key.to_owned() } else { mine(key) });
            assert!(is_refused(&mut client, &one_foreign), "{one_foreign}");
        }
    }
    assert!(texts(server.connect().say("KEYS *")).iter().all(|key| key.starts_with("mine:")));
}
