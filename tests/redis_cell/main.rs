//! `CL.THROTTLE` side by side with redis-cell itself, on one clock that the test moves; and what the page on moving
//! from redis-cell says of redis-cell.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

mod cell;
mod walk;

use cell::{redis_cell, throttle, with_redis_cell, Cell, Limit};
use common::stored::{follow, is_writing_files, tells_of_a_crash, wait_while_time_passes};
use common::{text, Connection, Server};
use walk::{Met, Walk};

/// Limits at which nothing is rounded: count and period in seconds.
#[rustfmt::skip]
const EXACT: [(i64, i64); 18] = [
    (1, 1), (2, 1), (5, 1), (10, 1), (100, 1), (250, 1), (1000, 1), (1, 60), (10, 60), (30, 60), (60, 60),
    (120, 60), (60_000, 60), (1, 3600), (3600, 3600), (7, 7), (24, 86_400), (1, 86_400),
];

/// Limits at which a token takes no whole number of microseconds, or a microsecond brings no whole number of
/// millionths.
#[rustfmt::skip]
const ROUNDED: [(i64, i64); 12] = [
    (3, 1), (7, 1), (64, 1), (999, 1), (7, 60), (100, 60), (999, 60), (30, 7), (11, 3600), (1000, 3600),
    (5000, 86_400), (99_991, 86_400),
];

fn walk(salt: u64, rates: &[(i64, i64)]) -> Met {
    let mut walk = Walk::new(salt);
    for number in 0..120 {
        let limit = walk.begin(number, rates);
        for _ in 0..60 {
            let quantity = walk.quantity(&limit);
            if walk.step(&limit, quantity).is_none() {
                break;
            }
            walk.pause(&limit);
        }
    }
    let met = walk.met;
    assert!(met.compared > 5000, "{met:?}");
    assert!((met.compared / 10..met.compared / 2).contains(&met.limited), "{met:?}");
    met
}

#[test]
fn every_field_is_the_same_where_nothing_is_rounded() {
    assert!(EXACT.into_iter().all(|(count, period_s)| Limit { burst: 0, count, period_s }.is_exact()));
    let met = walk(60, &EXACT);
    assert!(met.parted == 0 && met.lost < met.compared / 20, "{met:?}");
}

#[test]
fn decisions_part_only_at_the_very_edge_where_something_is_rounded() {
    let met = walk(61, &ROUNDED);
    assert!(met.parted < met.compared / 500, "{met:?}");
}

#[test]
fn a_client_that_waits_as_told_sees_the_same() {
    let mut walk = Walk::new(62);
    for number in 0..10 {
        let limit = walk.begin(number, &EXACT);
        for _ in 0..30 {
            let quantity = Some(walk.random.between(1, limit.capacity()));
            let [limited, _, _, retry_after_s, _] = walk.step(&limit, quantity).unwrap();
            if limited == 1 {
                walk.server.clock().advance_ms(retry_after_s * 1000);
                assert_eq!(walk.step(&limit, quantity).unwrap()[0], 0, "{limit:?} {quantity:?}");
            }
        }
    }
}

// ---- Moving there and back ----------------------------------------------------------------------------------

#[test]
fn what_redis_cell_stores_goes_on_as_a_bucket() {
    const KEYS: u64 = 60;
    let mut walk = Walk::new(63);
    let mut moved = 0;
    for number in 0..KEYS {
        let limit = walk.begin(number, &EXACT);
        for _ in 0..10 {
            let quantity = walk.quantity(&limit);
            walk.cell.throttle(&walk.key, &limit, quantity);
            walk.server.clock().advance_us(walk.random.between(0, limit.fill_ns() / 20_000));
        }
        if !walk.take_over() {
            continue;
        }
        moved += 1;
        for _ in 0..20 {
            let quantity = walk.quantity(&limit);
            walk.step(&limit, quantity);
            walk.pause(&limit);
        }
    }
    assert!(moved > KEYS / 2, "{moved}");
}

/// A key of its own for each limit at which nothing is rounded.
fn keys(burst: i64) -> Vec<(String, Limit)> {
    let key = |(count, period_s)| (format!("key:{count}/{period_s}"), Limit { burst, count, period_s });
    EXACT.map(key).into()
}

/// The same calls on what both have of the same keys.
fn assert_same(cell: &mut Cell, ours: &mut Connection, keys: &[(String, Limit)], quantities: &[Option<i64>]) {
    for ((key, limit), quantity) in keys.iter().flat_map(|key| quantities.iter().map(move |one| (key, *one)))
    {
        let told = cell.throttle(key, limit, quantity);
        assert_eq!(throttle(ours, &limit.call(key, quantity)), told.reply, "{limit:?} {quantity:?}");
    }
}

#[test]
fn a_restart_with_the_other_module_resets_nobody() {
    for (name, value, write) in [("save", "3600 1", "SAVE"), ("appendonly", "yes", "BGREWRITEAOF")] {
        let mut cell = Cell::start(with_redis_cell().controlled_clock().option(name, value));
        let keys = keys(999);
        for (key, limit) in &keys {
            cell.throttle(key, limit, Some(960));
        }
        // As the page says.
        cell.client.say(write);
        wait_while_time_passes(&[cell.server.clock()], "the file is written", || {
            !is_writing_files(&mut cell.client)
        });
        cell.server.kill_and_restart();
        cell.client = cell.server.connect();
        let files = cell.server.folder();
        let ours = Server::builder().files_in(files).clock_of(&cell.server).option(name, value).start();
        assert_same(&mut cell, &mut ours.connect(), &keys, &[Some(0), None, Some(970), Some(13)]);
    }
}

#[test]
fn a_replica_with_the_module_takes_over_from_a_master_with_redis_cell() {
    let (replica, mut client) = Server::with_clock_and_client();
    let mut cell = Cell::start(with_redis_cell().clock_of(&replica));
    let keys = keys(99);
    for (key, limit) in &keys {
        cell.throttle(key, limit, Some(70));
    }
    follow(&replica, &cell.server);
    client.say("REPLICAOF NO ONE");
    assert_same(&mut cell, &mut client, &keys, &[None]);
}

#[test]
fn the_script_of_the_page_brings_buckets_back_to_redis_cell() {
    let (_, script) = include_str!("../../docs/redis-cell.md").split_once("```lua\n").expect("no script");
    let (script, _) = script.split_once("```").unwrap();
    let mut walk = Walk::new(64);
    for number in 0..100 {
        let limit = walk.begin(number, &EXACT);
        let Walk { server, client, cell, random, key, .. } = &mut walk;
        throttle(client, &limit.call(key, Some(random.between(0, limit.capacity()))));
        server.clock().advance_us(random.between(0, 500_000));
        let peek = limit.call(key, Some(0));
        let before = throttle(client, &peek);
        let words = limit.words();
        let mut eval = vec!["EVAL", script, "1", key];
        eval.extend(words.split(' '));
        client.run(&eval);
        let full_at = client.run(&["GET", key]);
        if full_at == redis::Value::Nil {
            assert_eq!((before[2], before[4]), (limit.capacity(), 0), "{peek}");
            assert_eq!(text(&client.run(&["TYPE", key])), "none");
            continue;
        }
        let left_ms = client.expires_at_ms(key).expect("no expiry").to_string();
        cell.client.run(&["SET", key, &text(&full_at)]);
        cell.client.run(&["PEXPIREAT", key, &left_ms]);
        let back = cell.throttle(key, &limit, Some(0)).reply;
        // A bucket is full up to a millisecond later: that is as much as the script is told.
        let fewest = before[2] - (limit.count / 1000 / limit.period_s).max(1);
        assert!((fewest..=before[2]).contains(&back[2]), "{peek}: {before:?} {back:?}");
        assert!((before[4]..=before[4] + 1).contains(&back[4]), "{peek}: {before:?} {back:?}");
    }
}

#[test]
fn whoever_is_loaded_first_has_the_command() {
    let server = Server::builder().option("loadmodule", redis_cell()).start();
    let mut client = server.connect();
    throttle(&mut client, "k 15 30 60");
    assert_eq!(text(&client.say("TYPE k")), "string", "redis-cell has it");
    client.decide("TB.TAKE other 10 1");
    assert!(server.log().contains("tokenbucket leaves cl.throttle to the module that has it already"));
    let quiet = Server::builder().module_arguments(&["cl-throttle", "no"]);
    let server = quiet.option("loadmodule", redis_cell()).start();
    throttle(&mut server.connect(), "k 15 30 60");
    assert!(!server.log().contains("tokenbucket leaves"));
    // The other way round: ours has it, and redis-cell refuses to be loaded.
    let server = Server::start();
    let mut client = server.connect();
    client.try_run(&["MODULE", "LOAD", &redis_cell()]).unwrap_err();
    throttle(&mut client, "k 15 30 60");
    assert_eq!(text(&client.say("TYPE k")), "tb-bucket");
}

// ---- What the page says of redis-cell -----------------------------------------------------------------------

#[test]
fn it_lets_too_much_pass_above_a_thousand_a_second() {
    let (server, mut ours) = Server::with_clock_and_client();
    let mut cell = Cell::start(with_redis_cell().clock_of(&server));
    let call = |client: &mut Connection| {
        server.clock().advance_us(20);
        1 - throttle(client, "k 0 1050 1")[0]
    };
    let admitted = |client: &mut Connection| (0..2000).map(|_| call(client)).sum::<i64>();
    // 40 ms at 1,050 a second, and one at once.
    let most = 43;
    assert!(admitted(&mut cell.client) > most * 18 / 10);
    assert!(admitted(&mut ours) <= most);
}

/// Calls and the fields that are wrong in what it replies: the first, and those.
const WRONG: [(&str, usize, &[i64]); 6] = [
    // More remains than the limit.
    ("fast 6000 6000 1", 1, &[6001, 6024]),
    // A larger limit fills its bucket.
    ("filled 9 1 1 8", 0, &[0]),
    ("filled 99 1 1 0", 2, &[92]),
    // Limits overflow.
    ("k 9223372036854775807 1 1", 0, &[1, i64::MIN]),
    ("k 9223372036854775806 1 1", 0, &[1, i64::MAX]),
    ("k 9 1 -60", 0, &[1, 10, 0, -1]),
];

#[test]
fn it_is_wrong_where_the_page_says_so() {
    let mut cell = Cell::start(with_redis_cell().controlled_clock());
    for (call, first, fields) in WRONG {
        assert_eq!(throttle(&mut cell.client, call)[first..][..fields.len()], *fields, "{call}");
    }
    // Errors have no code.
    assert!(cell.client.refusal("CL.THROTTLE k ten 1 1").starts_with("Cell error:"));
    // Keys are made over maxmemory.
    cell.client.say("CONFIG SET maxmemory 1");
    assert_eq!(throttle(&mut cell.client, "locked-out 9 1 1 10")[0], 0);
    // A clock that stepped back locks out.
    cell.server.clock().advance_ms(-3_600_000);
    assert!(throttle(&mut cell.client, "locked-out 9 1 1")[3] >= 3600);
    // Keys never expire.
    cell.client.say("CONFIG SET maxmemory 0");
    for (key, quantity) in [("negative", "-5"), ("overflow", "9223372036854775807")] {
        let error = cell.client.refusal(&format!("CL.THROTTLE {key} 10 1 60 {quantity}"));
        assert!(error.contains("Error while setting key expire"), "{error}");
        assert_eq!(text(&cell.client.run(&["PTTL", key])), "-1", "{quantity}");
    }
}

/// A key that is not UTF-8 ends any release; one that holds something else the newest alone, which has no error for it.
#[test]
fn it_ends_the_server_over_keys_that_it_does_not_expect() {
    for (prepare, key, ends_any) in
        [("PING", b"\xff", true), ("LPUSH k a", b"k", false), ("SET k alice", b"k", false)]
    {
        let mut cell = Cell::start(with_redis_cell().controlled_clock());
        cell.client.say(prepare);
        cell.client.try_run(&[b"CL.THROTTLE".as_slice(), key, b"9", b"1", b"1"]).unwrap_err();
        let has_ended = !cell.server.is_running() || tells_of_a_crash(&cell.server.log());
        assert_eq!(has_ended, ends_any || cell.rounds_up, "{prepare} {}", key.escape_ascii());
    }
}
