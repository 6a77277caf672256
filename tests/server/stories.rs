//! Stories: calls in order, and the reply of each. Most are in `stories/*.txt`, a few in the tests.
//!
//! A story begins with what it is about, behind `#`, and an empty line ends it. A line is `call => reply`, the reply as
//! [`tell`] writes it, or only its beginning up to `…`. A line may also let time pass: `(5 seconds later)`.
//! `# loadmodule ARGUMENTS` gives it a server of its own, and `# since 7.0` ends it on an older one.
//! After each call that denies, refuses or asks, the buckets are looked at: it has changed nothing, unless the clock had
//! stepped back before.

use crate::common::clock::START_US;
use crate::common::model::{number::exact, whole};
use crate::common::stored::{assert_same_buckets, buckets};
use crate::common::{is_before, tell, Connection, Server};

/// Plays each story, on a server without keys and from [`START_US`] on.
pub fn play_all(stories: &str) {
    let (server, mut client) = Server::with_clock_and_client();
    for story in stories.split("\n\n") {
        let Some(arguments) = story.lines().find_map(|line| line.strip_prefix("# loadmodule ")) else {
            play_each(&server, &mut client, story, str::to_owned);
            continue;
        };
        let arguments: Vec<_> = arguments.split(' ').collect();
        let server = Server::builder().controlled_clock().module_arguments(&arguments).start();
        play(&server, &mut server.connect(), story);
    }
}

/// Plays each story on this server. `words` are sent instead of the words of our commands.
pub fn play_each(server: &Server, client: &mut Connection, stories: &str, words: fn(&str) -> String) {
    for story in stories.split("\n\n") {
        client.say("FLUSHALL");
        server.clock().set_us(START_US);
        play_by(words, server, client, story);
    }
}

pub fn play(server: &Server, client: &mut Connection, story: &str) {
    play_by(str::to_owned, server, client, story);
}

fn play_by(words: fn(&str) -> String, server: &Server, client: &mut Connection, story: &str) {
    let mut has_stepped_back = false;
    let is_new = |line: &&str| {
        let version = line.strip_prefix("# since ").and_then(|version| version.split_once('.'));
        version.is_some_and(|(major, minor)| is_before(major.parse().unwrap(), minor.parse().unwrap()))
    };
    let lines = story.lines().map(str::trim).take_while(|line| !is_new(line));
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(us) = passing_us(line) {
            server.clock().advance_us(us);
            has_stepped_back |= us < 0;
            continue;
        }
        let (call, expected) = line.split_once(" => ").unwrap_or_else(|| panic!("{line} in\n{story}"));
        let before = buckets(client);
        let told = tell(client.attempt(&if call.starts_with("TB.") { words(call) } else { call.to_owned() }));
        match expected.strip_suffix('…') {
            Some(beginning) => assert!(told.starts_with(beginning), "{line} in\n{story}, not {told}"),
            None => assert_eq!(told, expected, "{call} in\n{story}"),
        }
        if changes_nothing(call, &told) && !has_stepped_back {
            assert_same_buckets(&buckets(client), &before, &format!("{call} has changed something"));
        }
    }
}

fn changes_nothing(call: &str, told: &str) -> bool {
    let only_asks =
        ["TB.PEEK ", "TB.STATE ", "TB.HOLDS ", "TB.TOP"].iter().any(|command| call.starts_with(command));
    let is_error = told.starts_with(char::is_alphabetic);
    // Of several holds, those that are there are settled.
    // An override replies whether the bucket is out of debt.
    let may_change = ["TB.MSETTLE ", "TB.OVERRIDE "].iter().any(|command| call.starts_with(command));
    let is_denied = call.starts_with("TB.") && !may_change && told.starts_with("[0 ");
    only_asks || is_error || is_denied
}

/// The microseconds of `(2 seconds later)`, or, negative, of `(2 seconds earlier)`.
pub fn passing_us(line: &str) -> Option<i64> {
    let remark = line.trim().strip_prefix('(')?.strip_suffix(')')?;
    let [number, unit, direction] = remark.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let sign = match direction {
        "later" => 1,
        "earlier" => -1,
        _ => return None,
    };
    let unit_us = match unit.strip_suffix('s').unwrap_or(unit) {
        "microsecond" => 1i64,
        "millisecond" => 1000,
        "second" => 1_000_000,
        "minute" => 60_000_000,
        "hour" => 3_600_000_000,
        "day" => 86_400_000_000,
        _ => return None,
    };
    let us = exact(number) * whole(sign * unit_us);
    Some(us.to_integer().try_into().expect("a time that fits"))
}
