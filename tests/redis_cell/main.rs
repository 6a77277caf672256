//! `CL.THROTTLE` side by side with redis-cell itself, on one clock that the test moves; and what the page on moving
//! from redis-cell says of redis-cell.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

mod cell;
mod library;
mod walk;

use cell::{call, throttle, with_redis_cell, Cell, Limit};
use common::stored::{follow, is_writing_files, tells_of_a_crash, wait_while_time_passes};
use common::{is_before, text, Connection, Random, Server};
use library::redis_cell;
use std::path::Path;
use walk::{Comparison, Walk};

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

fn limit(random: &mut Random, rates: &[(i64, i64)]) -> Limit {
    let (count, period_s) = *random.pick(rates);
    let any = random.between(0, 1000);
    let burst = *random.pick(&[0, 1, 4, 15, 99, any]);
    Limit { burst, count, period_s }
}

/// What all walks together have met.
#[derive(Debug, Default)]
struct Met {
    calls: u64,
    limited: u64,
    parted: u64,
    lost: u64,
}

fn walk(salt: u64, rates: &[(i64, i64)]) -> Met {
    const KEYS: u64 = 120;
    const CALLS: u64 = 60;
    let server = Server::with_clock();
    let mut cell = Cell::beside(&server);
    let mut random = Random::new(salt);
    let mut met = Met::default();
    for number in 0..KEYS {
        let limit = limit(&mut random, rates);
        let mut walk = Walk::new(&server, &mut cell, format!("key:{number}"));
        for _ in 0..CALLS {
            let quantity = Walk::quantity(&mut random, &limit);
            if matches!(walk.step(&limit, quantity), Comparison::Parted) {
                met.parted += 1;
                break;
            }
            walk.pause(&mut random, &limit);
        }
        met.calls += walk.calls;
        met.limited += walk.limited;
        met.lost += walk.lost;
    }
    println!("{met:?}");
    assert!(met.calls > 5000 && met.limited > met.calls / 10 && met.limited < met.calls / 2, "{met:?}");
    met
}

#[test]
fn every_field_is_the_same_where_nothing_is_rounded() {
    assert!(EXACT
        .iter()
        .all(|(count, period_s)| { Limit { burst: 0, count: *count, period_s: *period_s }.is_exact() }));
    let met = walk(60, &EXACT);
    assert_eq!(met.parted, 0);
    assert!(met.lost < met.calls / 20, "{met:?}");
}

#[test]
fn decisions_part_only_at_the_very_edge_where_something_is_rounded() {
    let met = walk(61, &ROUNDED);
    assert!(met.parted < met.calls / 500, "{met:?}");
}

#[test]
fn a_client_that_waits_as_told_sees_the_same() {
    const ROUNDS: u64 = 300;
    let server = Server::with_clock();
    let mut cell = Cell::beside(&server);
    let mut random = Random::new(62);
    let limits: Vec<Limit> = (0..10).map(|_| limit(&mut random, &EXACT)).collect();
    for (number, limit) in limits.iter().enumerate() {
        let mut walk = Walk::new(&server, &mut cell, format!("key:{number}"));
        for _ in 0..ROUNDS / 10 {
            let quantity = Some(random.between(1, limit.capacity()));
            let Comparison::Same([limited, _, _, retry_after_s, _]) = walk.step(limit, quantity) else {
                unreachable!("nothing is rounded")
            };
            if limited == 1 {
                server.clock().advance_ms(retry_after_s * 1000);
                let Comparison::Same([limited, ..]) = walk.step(limit, quantity) else {
                    unreachable!("nothing is rounded")
                };
                assert_eq!(limited, 0, "{limit:?} {quantity:?}");
            }
        }
    }
}

// ---- Moving there and back ----------------------------------------------------------------------------------

#[test]
fn what_redis_cell_stores_goes_on_as_a_bucket() {
    const KEYS: u64 = 60;
    let server = Server::with_clock();
    let mut cell = Cell::beside(&server);
    let mut random = Random::new(63);
    let mut moved = 0;
    for number in 0..KEYS {
        let limit = limit(&mut random, &EXACT);
        let key = format!("key:{number}");
        for _ in 0..10 {
            cell.throttle(&key, &limit, Walk::quantity(&mut random, &limit));
            server.clock().advance_us(random.between(0, limit.fill_ns() / 20_000));
        }
        let Some(full_at_ns) = cell.stored_ns(&key) else { continue };
        moved += 1;
        let mut walk = Walk::taking_over(&server, &mut cell, key, full_at_ns);
        for _ in 0..20 {
            walk.step(&limit, Walk::quantity(&mut random, &limit));
            walk.pause(&mut random, &limit);
        }
    }
    assert!(moved > KEYS / 2, "{moved}");
}

#[test]
fn a_restart_with_the_other_module_resets_nobody() {
    for (name, value, write) in [("save", "3600 1", "SAVE"), ("appendonly", "yes", "BGREWRITEAOF")] {
        let mut cell = Cell::new(with_redis_cell().controlled_clock().option(name, value).start());
        let limits = EXACT.map(|(count, period_s)| Limit { burst: 999, count, period_s });
        for (number, limit) in limits.iter().enumerate() {
            cell.throttle(&format!("key:{number}"), limit, Some(960));
        }
        // As the page says.
        cell.client.say(write);
        let mut client = cell.server.connect();
        wait_while_time_passes(&[cell.clock()], "the file is written", || !is_writing_files(&mut client));
        cell.restart();
        let files = cell.server.folder();
        let ours = Server::builder().files_in(files).clock_of(&cell.server).option(name, value).start();
        let mut client = ours.connect();
        for (number, limit) in limits.iter().enumerate() {
            for quantity in [Some(0), None, Some(970), Some(13)] {
                let told = cell.throttle(&format!("key:{number}"), limit, quantity);
                let took_over = throttle(&mut client, &call(&format!("key:{number}"), limit, quantity));
                assert_eq!(took_over, told.reply, "{limit:?} {quantity:?}");
            }
        }
    }
}

#[test]
fn a_replica_with_the_module_takes_over_from_a_master_with_redis_cell() {
    let replica = Server::with_clock();
    let mut cell = Cell::beside(&replica);
    let limits = EXACT.map(|(count, period_s)| Limit { burst: 99, count, period_s });
    for (number, limit) in limits.iter().enumerate() {
        cell.throttle(&format!("key:{number}"), limit, Some(70));
    }
    follow(&replica, &cell.server);
    let mut client = replica.connect();
    client.say("REPLICAOF NO ONE");
    for (number, limit) in limits.iter().enumerate() {
        let told = cell.throttle(&format!("key:{number}"), limit, None);
        let ours = throttle(&mut client, &format!("key:{number} {}", limit.words()));
        assert_eq!(ours, told.reply, "{limit:?}");
    }
}

#[test]
fn the_script_of_the_page_brings_buckets_back_to_redis_cell() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/redis-cell.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, script) = page.split_once("```lua\n").expect("the page has a script");
    let (script, _) = script.split_once("```").unwrap();
    let server = Server::with_clock();
    let mut cell = Cell::beside(&server);
    let mut client = server.connect();
    let mut random = Random::new(64);
    for number in 0..100 {
        let (key, limit) = (format!("key:{number}"), limit(&mut random, &EXACT));
        let taken = random.between(0, limit.capacity());
        throttle(&mut client, &format!("{key} {} {taken}", limit.words()));
        server.clock().advance_us(random.between(0, 500_000));
        let peek = format!("{key} {} 0", limit.words());
        let before = throttle(&mut client, &peek);
        let [burst, count, period_s] =
            [limit.burst, limit.count, limit.period_s].map(|word| word.to_string());
        client.run(&["EVAL", script, "1", &key, &burst, &count, &period_s]);
        let full_at = client.run(&["GET", &key]);
        if full_at == redis::Value::Nil {
            assert_eq!((before[2], before[4]), (limit.capacity(), 0), "{peek}");
            assert_eq!(text(&client.say(&format!("TYPE {key}"))), "none");
            continue;
        }
        let left_ms = client.expires_at_ms(&key).expect("no expiry").to_string();
        cell.client.run(&["SET", &key, &text(&full_at)]);
        cell.client.run(&["PEXPIREAT", &key, &left_ms]);
        let back = cell.throttle(&key, &limit, Some(0)).reply;
        // A bucket is full up to a millisecond later: that is as much as the script is told.
        let fewest = before[2] - (limit.count / 1000 / limit.period_s).max(1);
        assert!((fewest..=before[2]).contains(&back[2]), "{peek}: {before:?} {back:?}");
        assert!((before[4]..=before[4] + 1).contains(&back[4]), "{peek}: {before:?} {back:?}");
    }
}

#[test]
fn whoever_is_loaded_first_has_the_command() {
    let first = redis_cell().display();
    let server = Server::builder().option("loadmodule", first).start();
    let mut client = server.connect();
    throttle(&mut client, "k 15 30 60");
    assert_eq!(text(&client.say("TYPE k")), "string", "redis-cell has it");
    client.decide("TB.TAKE other 10 1");
    assert!(server.log().contains("tokenbucket leaves cl.throttle to the module that has it already"));
    let quiet = Server::builder().option("loadmodule", redis_cell().display());
    let server = quiet.module_arguments(&["cl-throttle", "no"]).start();
    throttle(&mut server.connect(), "k 15 30 60");
    assert!(!server.log().contains("tokenbucket leaves"));
    if is_before(7, 0) {
        return;
    }
    // The other way round: ours has it, and redis-cell refuses to be loaded.
    let server = Server::start();
    let mut client = server.connect();
    client.try_run(&["MODULE", "LOAD", &redis_cell().display().to_string()]).unwrap_err();
    throttle(&mut client, "k 15 30 60");
    assert_eq!(text(&client.say("TYPE k")), "tb-bucket");
}

// ---- What the page says of redis-cell -----------------------------------------------------------------------

#[test]
fn it_lets_too_much_pass_above_a_thousand_a_second() {
    let server = Server::with_clock();
    let mut cell = Cell::beside(&server);
    let mut ours = server.connect();
    let admitted = |client: &mut Connection| {
        (0..2000)
            .map(|_| {
                server.clock().advance_us(20);
                1 - throttle(client, "k 0 1050 1")[0]
            })
            .sum::<i64>()
    };
    // 40 ms at 1,050 a second, and one at once.
    let most = 43;
    assert!(admitted(&mut cell.client) > most * 18 / 10);
    assert!(admitted(&mut ours) <= most);
}

#[test]
fn it_is_wrong_where_the_page_says_so() {
    let mut cell = Cell::alone();
    // More remains than the limit.
    assert_eq!(throttle(&mut cell.client, "fast 6000 6000 1")[1..3], [6001, 6024]);
    // A larger limit fills its bucket.
    throttle(&mut cell.client, "filled 9 1 1 8");
    assert_eq!(throttle(&mut cell.client, "filled 99 1 1 0")[2], 92);
    // Limits overflow.
    assert_eq!(throttle(&mut cell.client, "k 9223372036854775807 1 1")[..2], [1, i64::MIN]);
    assert_eq!(throttle(&mut cell.client, "k 9223372036854775806 1 1")[..2], [1, i64::MAX]);
    assert_eq!(throttle(&mut cell.client, "k 9 1 -60")[..4], [1, 10, 0, -1]);
    // Errors have no code.
    assert!(cell.client.refusal("CL.THROTTLE k ten 1 1").starts_with("Cell error:"));
    // Keys are made over maxmemory.
    cell.client.say("CONFIG SET maxmemory 1");
    assert_eq!(throttle(&mut cell.client, "locked-out 9 1 1 10")[0], 0);
    // A clock that stepped back locks out.
    cell.clock().advance_ms(-3_600_000);
    assert!(throttle(&mut cell.client, "locked-out 9 1 1")[3] >= 3600);
}

#[test]
fn it_leaves_keys_that_never_expire() {
    let mut cell = Cell::alone();
    for (key, quantity) in [("negative", "-5"), ("overflow", "9223372036854775807")] {
        let words = format!("CL.THROTTLE {key} 10 1 60 {quantity}");
        if is_before(6, 2) {
            // The oldest server takes the negative expiry for what it is.
            cell.client.say(&words);
            continue;
        }
        let error = cell.client.refusal(&words);
        assert!(error.contains("Error while setting key expire"), "{error}");
        assert_eq!(text(&cell.client.run(&["PTTL", key])), "-1", "{quantity}");
    }
}

#[test]
fn it_ends_the_server_over_keys_that_it_does_not_expect() {
    let crashes = |prepare: &[&[u8]], key: &[u8]| {
        let mut cell = Cell::alone();
        if !prepare.is_empty() {
            cell.client.run(prepare);
        }
        cell.client.try_run(&[b"CL.THROTTLE".as_slice(), key, b"9", b"1", b"1"]).unwrap_err();
        let is_newest = cell.rounds_up;
        let ended = !cell.server.is_running() || tells_of_a_crash(&cell.server.log());
        (ended, is_newest)
    };
    assert!(crashes(&[], b"\xff").0, "a key that is not UTF-8");
    for prepare in [[b"LPUSH".as_slice(), b"k", b"a"], [b"SET".as_slice(), b"k", b"alice"]] {
        let (ended, is_newest) = crashes(&prepare, b"k");
        assert_eq!(
            ended, is_newest,
            "the published crate replies with an error, the newest release does not"
        );
    }
}
