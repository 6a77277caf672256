//! The script that decides where a server has no module: what it promises is what the commands promise, and it is judged
//! in the same way. On every server: the module is not loaded unless a test compares the two.

use super::decisions::{any_limit, judge_any_calls};
use super::multi_take::judge_takes_from_several;
use super::stories::play_each;
use crate::common::calls::{Call, CALLS};
use crate::common::judged_calls::{self, Backend, JudgedCalls, YEAR_US};
use crate::common::model::{Limit, MILLION};
use crate::common::script::{self, connect, stored, with_clock_and_client, without_module};
use crate::common::stored::{begin_to_follow, wait_until_replicated};
use crate::common::{tell, Connection, Random, Server, HOUR_MS};

/// Sends the words of a command to the script; its reply, or its error line, as it is shown.
fn ask(client: &mut Connection, command: &str) -> String {
    tell(client.attempt(&script::words(command)))
}

/// The commands that the script knows.
fn is_known(call: &Call) -> bool {
    let names = ["TAKE", "PEEK", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE", "MTAKE"];
    names.iter().any(|name| call.words.starts_with(&format!("TB.{name} ")))
}

#[test]
fn every_call_replies_what_the_command_replies_and_writes_only_what_it_moves() {
    let (_server, mut client) = with_clock_and_client();
    for call in CALLS.iter().filter(|call| is_known(call)) {
        client.say("FLUSHALL");
        for command in ["TB.TAKE k 10 1 6", "TB.CHARGE d 10 1 15"] {
            ask(&mut client, command);
        }
        let before = client.changes();
        assert_answers_like(&ask(&mut client, call.words), call.reply, call.words);
        assert_eq!(client.changes() > before, call.outcome.writes(), "{}", call.words);
    }
}

#[test]
fn no_token_is_lost_or_won_under_any_limit_by_any_mixture_of_calls() {
    let (server, _client) = with_clock_and_client();
    // Without pools and holds.
    judge_any_calls(&server, walk, 3..8, limit);
}

#[test]
fn what_doubles_would_round_is_not_rounded() {
    let (server, _client) = with_clock_and_client();
    // While limits change, and no wait is waited for: some take longer than doubles can count.
    judge_any_calls(&server, walk, 6..8, limit_of_large_numbers);
}

#[test]
fn several_buckets_are_taken_from_together_or_not_at_all() {
    let (server, _client) = with_clock_and_client();
    judge_takes_from_several(&server, walk, limit);
}

fn walk(server: &Server, number: u64) -> JudgedCalls<'_> {
    JudgedCalls::on(Backend::SCRIPT, server, number)
}

/// One that fills within a year: doubles count microseconds up to the year 2255, and a walk is long.
fn limit(random: &mut Random) -> Limit {
    // Calendars need the module.
    let mut limits = std::iter::repeat_with(|| any_limit(random));
    limits.find(|limit| !limit.words.contains('@') && limit.refill_us() <= YEAR_US).unwrap()
}

/// Large buckets and odd rates, whose products doubles do not hold.
fn limit_of_large_numbers(random: &mut Random) -> Limit {
    const RATES: &str =
        "1e12 999999.999999 123456.789012 0.000123456789012 0.333333333333 123456789.012/1.7h \
        99999999999/7d 999999999/999999937ms 7/11d 99991/99989ms 1000000007/998244353s 1/36525d";
    let rates: Vec<&str> = RATES.split_whitespace().collect();
    // So little that charges of all of it are no deeper debt than there may be.
    Limit::of_micro(random.between(1, 20_000_000 * MILLION), random.pick::<&str>(&rates))
}

/// The script's answer is the module's. But its errors are shorter: they have the module's code and name the same
/// argument, and do not quote the part of the value that is wrong.
#[track_caller]
fn assert_answers_like(of_script: &str, of_module: &str, command: &str) {
    let names_the_same = || {
        let named = [of_script, of_module].map(|line| line.replacen(':', "", 1));
        let [script, module] = named.each_ref().map(|line| line.split(' ').take(2).collect::<Vec<_>>());
        script == module && script[0] == "ERR"
    };
    assert!(of_script == of_module || names_the_same(), "{command}: {of_script}, not {of_module}");
}

/// The module's reply or error, and the script's, which must be alike, and what is stored, which must be the same.
#[track_caller]
fn assert_same(client: &mut Connection, command: &str) {
    let of_module = |words: &str| words.replace("{key}", "module");
    let of_script = |words: &str| script::words(&words.replace("{key}", "script"));
    client.say("DEL module script");
    let answers = [&of_module as &dyn Fn(&str) -> String, &of_script].map(|ask| {
        client.say(&ask("TB.TAKE {key} 10 1 6.5"));
        tell(client.attempt(&ask(command)))
    });
    assert_answers_like(&answers[1], &answers[0], command);
    assert_eq!(stored(client, "script"), judged_calls::stored(client.state("module")), "{command}");
}

const AMOUNTS: &str = "10 +10 0 00 0.0 .5 5. . + - -1 +-1 1e2 1E-2 1e+1 1e 1e- e1 1.5e1.5 0x10 inf nan ten 1,5 1_0 ١ 1e400 \
    1e-400 1e99999999999999999999 1e-99999999999999999999 0e99999999999999999999 0.29999999999999999 \
    0.30000000000000004 0.300000000001 0.3000000000010 0.300000000000999999 0.3000000000010001 0.299999999999 \
    0.2999999999989 0.000001 0.0000001 0.000000000001 0.0000000000011 9.9999999999995 9.999999 0.99999999999999 \
    1.00000000000001 33.333333333333336 999999999 1000000000 123456789.123456 1e13 1.5e12";

const RATES: &str = "5/m 5/ms 5/10s 5/1.5h 5/0s 5/0.0s 5/ / /s 5/s/s 5s 5/S 5/w 0/s 0.5/1e1s 5/1e-1m 5/+2s 5/-2s 5/1e 5/es \
    1/36525d 1/36525.1d 1/36526d 1e12 1e13 1e9/ms 1000000001/ms 0.333333333333333333 1/0.333333333333333333d \
    1/333333333333333333ms 1e-9 0.1e-9 999999999/999999999d 9999999999/9999999999d 1/9999999999d 1@ @d x@d 5/s@d \
    1@mo+31d 1@+14d";

/// Where an amount may stand.
const WITH_AMOUNT: &str = "TB.TAKE {key} {amount} 1;TB.TAKE {key} 10 {amount};TB.TAKE {key} 10 {amount}/m;\
    TB.TAKE {key} 10 0.001/{amount}s;TB.PEEK {key} 10 1 {amount};TB.TAKE {key} 10 1 {amount};\
    TB.TAKEUPTO {key} 10 1 {amount};TB.RESERVE {key} 10 1 {amount} 60000;TB.RESERVE {key} 10 1 1 {amount};\
    TB.CHARGE {key} 10 1 {amount};TB.GIVE {key} 10 1 {amount};TB.MTAKE 1 {key} 10 1 {amount}";

#[test]
fn numbers_and_rates_mean_what_they_mean_to_the_module() {
    let server = Server::with_clock();
    let mut client = connect(&server);
    let mut random = Random::new(8);
    let long =
        ["1".repeat(128), "1".repeat(129), format!("0.{}", "3".repeat(126)), format!("{}1", "0".repeat(127))];
    let drawn: Vec<_> = (0..300).map(|_| any_spelling(&mut random)).collect();
    let amounts = AMOUNTS.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
    let amounts: Vec<_> = amounts.chain(long).chain(drawn).collect();
    for amount in &amounts {
        for command in WITH_AMOUNT.split(';') {
            assert_same(&mut client, &command.replace("{amount}", amount));
        }
    }
    for rate in RATES.split_whitespace() {
        assert_same(&mut client, &format!("TB.TAKE {{key}} 10 {rate}"));
    }
}

/// Up to 9 digits, and up to 20 behind the point.
fn any_spelling(random: &mut Random) -> String {
    let (whole, behind) = (random.between(1, 999_999_999), random.between(0, 20));
    let behind: String = (0..behind).map(|_| char::from(b'0' + random.below(10) as u8)).collect();
    let near = *random.pick(&["", "", "999999999999", "000000000000", "0000001", "9999999"]);
    format!("{whole}.{near}{behind}")
}

/// The only errors that are not the module's, but for the words about holds, and what is stored, which scripts of later
/// versions read.
#[test]
fn stories_of_the_script() {
    let (server, mut client) = with_clock_and_client();
    play_each(&server, &mut client, include_str!("stories/fallback.txt"), script::words);
}

#[test]
fn a_key_of_another_type_is_left_alone() {
    let server = Server::with_clock();
    let mut client = connect(&server);
    client.say("TB.TAKE bucket 10 1 4");
    for make in
        ["RPUSH list 1", "HSET hash a 1", "SET string tb1", "SET number 5", "SET almost tb1\u{a0}1", "SET e "]
    {
        client.run(&make.split(' ').collect::<Vec<_>>());
    }
    for key in ["bucket", "list", "hash", "string", "number", "almost", "e"] {
        let before = client.dump(key);
        for command in [format!("TB.TAKE {key} 10 1"), format!("TB.MTAKE 2 n 10 1 1 {key} 10 1 1")] {
            let error = "WRONGTYPE Operation against a key holding the wrong kind of value";
            assert_eq!(ask(&mut client, &command), error, "{key}");
        }
        assert_eq!(client.dump(key), before, "{key}");
    }
    assert_eq!(stored(&mut client, "n"), None);
    // Nor does the module take the script's for its own.
    ask(&mut client, "TB.TAKE script 10 1");
    assert!(client.refusal("TB.TAKE script 10 1").starts_with("WRONGTYPE"));
}

/// Errors of the server arrive as they are, for clients that tell them apart by the first word.
#[test]
fn a_replica_only_looks_and_has_what_its_master_stored() {
    let (master, mut client) = with_clock_and_client();
    let replica = without_module().start();
    let mut reader = connect(&replica);
    master.clock().advance_ms(24 * HOUR_MS);
    begin_to_follow(&replica, &master);
    wait_until_replicated(&replica, &master);
    const CALLS: &str =
        "TB.TAKE a 10 1/3h 2.5;TB.CHARGE b 1 7/d 77.123456;TB.TAKE c 10 1/h 10;TB.GIVE c 10 1/h 10;\
        TB.RESERVE d 10 1/h 9.9 0;TB.MTAKE 2 a 10 1/3h 0.000001 d 10 1/h 0.1;TB.TAKE d 10 1/h 5";
    for command in CALLS.split(';') {
        let told = ask(&mut client, command);
        assert!(told.starts_with('['), "{command}: {told}");
        master.clock().advance_us(1_234_567);
    }
    wait_until_replicated(&replica, &master);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(stored(&mut reader, key), stored(&mut client, key), "{key}");
        assert_eq!(reader.expires_at_ms(key), client.expires_at_ms(key), "{key}");
    }
    assert!(ask(&mut reader, "TB.TAKE a 10 1/3h").starts_with("READONLY "));
    assert_eq!(ask(&mut reader, "TB.PEEK c 10 1/h"), "[1 9 0 3600000]");
}
