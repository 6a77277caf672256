//! A key of another type stays as it is. (The line that each wrong call gets, and that it changes nothing: `docs.rs`, by the
//! pages of the commands and `errors.md`. Which argument is the first that is wrong: `core/tests/pure/requests.rs`. What a line quotes of the
//! call: `core/tests/pure/errors.rs`.)

use crate::common::calls::{prepare, Outcome, CALLS};
use crate::common::stored::buckets;
use crate::common::{Connection, Server};
use tokenbucket_core::error::Error;

#[test]
fn a_key_of_another_type_is_refused_by_every_call_and_stays_as_it_is() {
    let (_server, mut client) = Server::with_clock_and_client();
    let look =
        |client: &mut Connection| (client.dump("foreign"), client.expires_at_ms("foreign"), buckets(client));
    const MAKE: &str = "SET _ word;RPUSH _ a;SADD _ a;ZADD _ 1 a;HSET _ level 5;XADD _ 1-1 a b;SETBIT _ 7 1";
    for make in MAKE.split(';') {
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
