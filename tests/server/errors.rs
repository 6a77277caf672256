//! What every command refuses, in the server's words. (Which argument is the first that is wrong: `tests/requests.rs`. The
//! words of each error, and that nothing has changed: `docs.rs`. That a refused call leaves no trace: `traces.rs`. That
//! no error repeats what was sent: `hostile.rs`.)

use crate::common::calls::{prepare, prepared, Call, Outcome, CALLS, COMMANDS};
use crate::common::stored::buckets;
use crate::common::{is_before, Connection};
use tokenbucket::error::Error;

fn assert_wrong_arity(client: &mut Connection, words: &str) {
    let command = words.split(' ').next().unwrap();
    let expected = format!("err wrong number of arguments for '{}' command", command.to_lowercase());
    assert_eq!(client.refusal(words).to_lowercase(), expected, "{words}");
}

#[test]
fn a_wrong_number_of_arguments_is_refused_by_every_command() {
    let (_server, mut client) = prepared();
    let before = (buckets(&mut client), client.changes());
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
    assert_eq!((buckets(&mut client), client.changes()), before);
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
                assert_eq!(client.refusal(&words), Error::WrongType.to_string(), "{make}, {words}");
            }
        }
        assert_eq!(look(&mut client), before, "{make}");
    }
}
