//! Every error names what is wrong and has changed nothing. (What is a number and what is none: `tests/numbers.rs`. The
//! words of each error: `docs.rs`. What a line quotes of the call: `core/tests/pure/errors.rs`.)

use crate::common::calls::{prepare, prepared, Call, Outcome, CALLS, COMMANDS};
use crate::common::stored::{buckets, Buckets};
use crate::common::{is_before, Connection};
use tokenbucket_core::error::Error;

/// All that a refused call must not change.
fn traces(client: &mut Connection) -> (Buckets, i64, [i64; 5]) {
    let counted = ["decisions_allowed", "decisions_denied", "tokens_granted", "buckets", "bucket_bytes"]
        .map(|field| client.count("tokenbucket", &format!("tokenbucket_{field}")));
    (buckets(client), client.changes(), counted)
}

/// Calls after `prepare` and what the test says, and the error of what is wrong first.
#[rustfmt::skip] // A line for each.
const WRONG: &[(Error, &str)] = &[
    (Error::Capacity, "TB.TAKE k ten fast -1; TB.MTAKE 1 k ten 1 1; TB.HOLD k ten 1 1 5 b"),
    (Error::Rate, "TB.TAKE k 10 fast -1; TB.PEEK k 10 0/s; TB.MTAKE 1 k 10 / 1"),
    (Error::RateOutOfRange, "TB.TAKE k 10 1/36525.1d; TB.MTAKE 1 k 10 1e-10 1"),
    (Error::RefillTooSlow, "TB.TAKE n 2 1/36525d; TB.CHARGE k 1e12 316 1; TB.MTAKE 1 n 1e12 1 1"),
    (Error::Cost, "TB.TAKE n 10 1 one; TB.RESERVE k 10 1 1e13 x; TB.MTAKE 2 k 10 1 one k ten 1 1"),
    (Error::Cost, "TB.MTAKE 3 k 10 1 1 n 10 1 -1 m 10 1 1"),
    (Error::Max, "TB.TAKEUPTO k 10 1 0; TB.TAKEUPTO n 10 1 1.5"),
    (Error::MaxWait, "TB.RESERVE k 10 1 1 -1; TB.RESERVE n 10 1 1 0.5"),
    (Error::Amount, "TB.CHARGE n 10 1 -1; TB.GIVE k 10 1 all; TB.HOLD k 10 1 -1 5 b"),
    (Error::DebtTooDeep, "TB.CHARGE deep 10 1e12 1; TB.CHARGE deep 0 1e12 1e12"),
    (Error::DebtTooDeep, "TB.SETTLE deep 10 1e12 id 5; TB.MSETTLE 2 id pool 10 0 0 deep 10 1e12 5"),
    (Error::Ttl, "TB.HOLD k 10 1 1 0 b; TB.HOLD k 10 1 1 2592000001 b; TB.HOLD k 10 1 1 1.5 b"),
    (Error::Used, "TB.SETTLE pool 10 1 id x"),
    (Error::UsedOfPool, "TB.SETTLE pool 10 0 id 1"),
    (Error::RateOfPool, "TB.TAKE pool 10 0.00 1; TB.MTAKE 2 k 10 1 1 pool 10 0 1; TB.TAKEUPTO pool 10 0 1"),
    (Error::RateOfPool, "TB.RESERVE pool 10 0 1 1; TB.CHARGE pool 10 0 1"),
    (Error::NumKeys, "TB.MTAKE 0 k 10 1 1; TB.MTAKE 1025 k 10 1 1; TB.MTAKE +1 k 10 1 1"),
    (Error::NumKeysMismatch, "TB.MTAKE 2 k 10 1 1; TB.MTAKE 1 k 10 1 1 n"),
    (Error::NumKeysMismatch, "TB.MHOLD 2 5 b k 10 1 1 z; TB.MSETTLE 2 id pool 10 0 0 z"),
    (Error::DuplicateKey, "TB.MTAKE 3 k 10 1 1 n 10 1 1 k 20 5/m 2; TB.MHOLD 2 5 b k 10 1 1 k 10 1 1"),
    (Error::DuplicateKey, "TB.MSETTLE 2 id pool 10 0 0 pool 10 0 0"),
    (Error::Effect, "TB.RESTORE k state; TB.RESTORE n state"),
    (Error::WrongType, "TB.MTAKE 3 k 10 1 1 string 10 1 1 n 10 1 1; TB.SETTLE string 10 1 id 1"),
    (Error::WrongType, "TB.MSETTLE 2 id pool 10 0 0 string 10 1 1"),
    (Error::MaxBurst, "CL.THROTTLE k ten 30 60; CL.THROTTLE k -2 30 60"),
    (Error::Count, "CL.THROTTLE k 15 0 60; CL.THROTTLE n 15 1000000000001 60"),
    (Error::Period, "CL.THROTTLE k 15 30 60s; CL.THROTTLE n 15 30 3155760001"),
    (Error::Quantity, "CL.THROTTLE k 15 30 60 -1; CL.THROTTLE n 15 30 60 x"),
    (Error::BurstTooSlow, "CL.THROTTLE k 100 1 3155760000; CL.THROTTLE n 100000000 1 60"),
];

#[test]
fn each_says_which_argument_is_the_first_that_is_wrong_and_changes_nothing() {
    let (server, mut client) = prepared();
    server.clock().advance_ms(500);
    for call in [
        "SET string x",
        "TB.HOLD deep 10 1e12 4 60000 id",
        "TB.CHARGE deep 10 1e12 1e12",
        "TB.CHARGE deep 10 1e12 6",
        "TB.HOLD pool 10 0 4 60000 id",
    ] {
        client.say(call);
    }
    let before = traces(&mut client);
    for (error, calls) in WRONG {
        for call in calls.split("; ") {
            let line = client.refusal(call);
            assert!(line.starts_with(error.rule()), "{call}: {line}");
            assert_eq!(traces(&mut client), before, "{call}");
        }
    }
    let [long, longer] = [128, 129].map(|len| "x".repeat(len));
    for id in ["", &longer] {
        let hold = ["TB.HOLD", "k", "10", "1", "1", "5", id];
        let settle = ["TB.SETTLE", "pool", "10", "0", id, "0"];
        for call in [hold.as_slice(), &settle] {
            let line = client.try_run(call).unwrap_err();
            assert_eq!(line, format!("{}, not {}", Error::Id, id.len()));
        }
    }
    assert_eq!(traces(&mut client), before);
    assert_eq!(client.decide(&format!("TB.HOLD k 10 1 1 5 {long}")).allowed, 1);
}

fn assert_wrong_arity(client: &mut Connection, words: &str) {
    let command = words.split(' ').next().unwrap();
    let expected = format!("err wrong number of arguments for '{}' command", command.to_lowercase());
    let line = client.refusal(words).to_lowercase();
    // Where the server counts the arguments itself, it does not show the syntax.
    let behind = line.strip_prefix(&expected).unwrap_or_else(|| panic!("{words}: {line}"));
    assert!(
        behind.is_empty() || behind.starts_with(&format!(": {} ", command.to_lowercase())),
        "{words}: {line}"
    );
}

#[test]
fn a_wrong_number_of_arguments_is_refused_by_every_command() {
    let (_server, mut client) = prepared();
    let before = traces(&mut client);
    for command in COMMANDS {
        let least = usize::try_from(command.arity.abs()).unwrap();
        let example = Call::of(command).next().unwrap();
        let words: Vec<&str> = example.words.split(' ').chain(["0"; 8]).collect();
        // An option that there is not is named.
        let is_open = command.arity == -1 || command.arguments.concat().contains("multiple");
        let most = if is_open { None } else { Some(command.arguments.len() + 1) };
        // Servers before 7.0 do not know how many there are at least, so a command that counts its keys says what is
        // missing.
        let few = if command.arguments[0].starts_with("numkeys") && is_before(7, 0) { 1 } else { least - 1 };
        for count in (1..=few).chain(most.map(|most| most + 1)) {
            assert_wrong_arity(&mut client, &words[..count].join(" "));
        }
    }
    assert_wrong_arity(&mut client, "TB.RESTORE k x n");
    assert_eq!(traces(&mut client), before);
}

/// Also where the key of one bucket, and not its arguments, is what is wrong.
#[test]
fn of_several_buckets_the_line_says_which() {
    let (_server, mut client) = prepared();
    client.say("SET string x");
    for (call, which) in [
        ("TB.MTAKE 3 k 10 1 1 n 10 1 1 string 10 1 1", "(bucket 3 of 3)"),
        ("TB.MHOLD 2 5 b string 10 1 1 k 10 1 1", "(bucket 1 of 2)"),
        ("TB.MTAKE 2 k 10 1 1 n 10 5/min 1", "use m (bucket 2 of 2)"),
        ("TB.MTAKE 3 k 10 1 1 n 10 1 1 k 10 1 1", "'k' is bucket 1 and bucket 3"),
    ] {
        let line = client.refusal(call);
        assert!(line.ends_with(which), "{call}: {line}");
    }
}

#[test]
fn a_key_of_another_type_is_refused_by_every_call_and_stays_as_it_is() {
    let (_server, mut client) = prepared();
    let look =
        |client: &mut Connection| (client.dump("foreign"), client.expires_at_ms("foreign"), buckets(client));
    for make in [
        "SET _ word",
        "RPUSH _ a",
        "SADD _ a",
        "ZADD _ 1 a",
        "HSET _ level 5",
        "XADD _ 1-1 a b",
        "SETBIT _ 7 1",
    ] {
        prepare(&mut client);
        client.say(&make.replace('_', "foreign"));
        client.say("PEXPIRE foreign 123456");
        let before = look(&mut client);
        let of_clients = CALLS.iter().filter(|call| call.command().audience.are_clients());
        for call in of_clients.filter(|call| call.outcome != Outcome::Refused) {
            for foreign in call.keys() {
                let words = call.with_keys(|key| if key == foreign { "foreign" } else { key }.to_owned());
                let line = client.refusal(&words);
                assert!(line.starts_with(Error::WrongType.rule()), "{make}, {words}: {line}");
            }
        }
        assert_eq!(look(&mut client), before, "{make}");
    }
}
