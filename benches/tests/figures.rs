//! The figures that documents quote are those of the committed runs. `UPDATE_EXPECT=1 cargo test -p tokenbucket-bench` writes
//! those of a new run into the documents.

use regex::{Captures, Regex};
use std::collections::HashMap;
use std::fs;
use std::sync::{LazyLock, Mutex};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What a run found: the figure in a column of the row that has these cells.
fn figure(run: &str, cells: &[&str], column: &str) -> f64 {
    let mut csv = csv::Reader::from_path(format!("{ROOT}/docs/benchmarks/{run}.csv")).unwrap();
    let mut rows = csv.deserialize::<HashMap<String, String>>().map(Result::unwrap);
    let row = rows.find(|row| cells.iter().all(|cell| row.values().any(|own| own == cell)));
    row.unwrap_or_else(|| panic!("no row of {run} has {cells:?}"))[column].parse().unwrap()
}

/// A number, or several words in a row that break where a line does.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[0-9]+(?:[.,][0-9]+)*").unwrap());

/// Fails unless a document has each of these texts, wherever its lines are broken. Writes them if `UPDATE_EXPECT` is set.
fn assert_quotes(document: &str, quotes: &[String]) {
    // Two tests may write the same document.
    static WRITING: Mutex<()> = Mutex::new(());
    let _alone = WRITING.lock();
    let path = format!("{ROOT}/{document}");
    let mut text = fs::read_to_string(&path).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_missing = |text: &str, quote: &&String| !words(text).contains(&words(quote));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let missing = quotes.iter().filter(|quote| is_missing(&text, quote)).collect::<Vec<_>>();
        text = missing.into_iter().fold(text, |text, quote| with_figures(&text, quote));
        fs::write(&path, &text).unwrap();
    }
    let missing: Vec<&String> = quotes.iter().filter(|quote| is_missing(&text, quote)).collect();
    assert!(missing.is_empty(), "by the committed runs, {document} has to say: {missing:#?}");
}

/// The document with the figures of a quote, where it says the same with others. The first cell of a row is no figure.
fn with_figures(document: &str, quote: &str) -> String {
    let (fixed, quote) = match quote.strip_prefix("| ").and_then(|row| row.split_once(" | ")) {
        Some((cell, rest)) => (format!("| {cell} | "), rest),
        None => (String::new(), quote),
    };
    let pieces = NUMBER.split(quote).map(|piece| regex::escape(piece).replace(' ', r"\s+"));
    let same = format!("({})({})", regex::escape(&fixed), pieces.collect::<Vec<_>>().join(NUMBER.as_str()));
    Regex::new(&same)
        .unwrap()
        .replace(document, |found: &Captures| {
            let mut figures = NUMBER.find_iter(quote);
            let new =
                NUMBER.replace_all(&found[2], |_: &Captures| figures.next().unwrap().as_str().to_owned());
            format!("{}{new}", &found[1])
        })
        .into_owned()
}

const TAKE: &str = "TB.TAKE";
const ALLOWED: &str = "TB.TAKE, allowed";
const DENIED: &str = "TB.TAKE, denied";
const SCRIPT: &str = "Lua script, EVALSHA";
const KEYS: [&str; 2] = ["one hot key", "a key per user, 10,000 users"];

fn decisions_a_second(clients: &str, keys: &str, approach: &str) -> f64 {
    figure("decisions", &[clients, keys, approach], "decisions/s")
}

/// How many times as fast as another a take is served, under each load with which the server is the bottleneck: the least
/// and the most.
fn times_as_fast(other: &str, digits: usize) -> String {
    let loads = ["16 clients", "64 clients", "256 clients"].map(|clients| KEYS.map(|keys| (clients, keys)));
    let speed = |(clients, keys), approach| decisions_a_second(clients, keys, approach);
    let ratios = loads.into_iter().flatten().map(|load| speed(load, TAKE) / speed(load, other));
    let (least, most) = ratios.fold((f64::INFINITY, 0.0), |(least, most), it| (it.min(least), it.max(most)));
    format!("{least:.digits$} to {most:.digits$}")
}

#[test]
fn the_page_on_cost_quotes_instructions_and_microseconds() {
    let times = |call: &str| {
        ["no replica or AOF", "appendonly yes"].map(|listener| {
            let instructions = |call| figure("instructions", &[listener, call], "instructions");
            instructions(call) / instructions("INCR")
        })
    };
    let row = |name: &str, call: &str, bold: &str| {
        let [nobody, file] = times(call);
        format!("| {bold}{name}{bold} | {bold}{nobody:.1}{bold} | {bold}{file:.1}{bold} |")
    };
    let times_fewer = times(SCRIPT)[0] / times(ALLOWED)[0];
    let fallback = times("clients/fallback.lua, EVALSHA")[0];
    let [of_take, of_script] = [ALLOWED, SCRIPT].map(|call| fallback / times(call)[0]);
    assert_quotes(
        "docs/how-to/without-the-module.md",
        &[format!("a take costs {of_take:.0} times the instructions of `TB.TAKE`, and {of_script:.1} times those of the shorter script")],
    );
    let to_increx = |keys: &str, call: &str| {
        let us = |call| figure("commandstats", &[keys, call], "median µs");
        us(call) / us("INCREX")
    };
    let [hot, hot_denial] = [ALLOWED, DENIED].map(|call| to_increx("1,000 keys", call));
    let [take, denial, script] = [ALLOWED, DENIED, SCRIPT].map(|call| to_increx("100,000 keys", call));
    assert_quotes(
        "docs/explanation/cost.md",
        &[
            row("`TB.TAKE`, allowed", ALLOWED, "**"),
            row("`TB.TAKE`, denied", DENIED, "**"),
            row("`TB.PEEK`", "TB.PEEK", ""),
            row("`TB.MTAKE` of ten buckets", "TB.MTAKE of 10", ""),
            row("a token bucket as a Lua script, `EVALSHA`", SCRIPT, ""),
            row("`CL.THROTTLE` of redis-cell 0.2.2", "CL.THROTTLE (redis-cell 0.2.2)", ""),
            format!("A Lua script does the same for {times_fewer:.1} times the instructions"),
            format!("On 1,000 hot keys a take costs {hot:.1} times an `INCREX` and a denial {hot_denial:.1} times."),
            format!("a take costs {take:.1} times an `INCREX`, a denial {denial:.1} times, the Lua script {script:.0} times"),
        ],
    );
    let hot_and_wide =
        format!("{hot:.1} times as long as `INCREX` on 1,000 hot keys and {take:.1} times on 100,000");
    assert_quotes("README.md", &[format!("{hot_and_wide}, a denial {hot_denial:.1} and {denial:.1} times")]);
    assert_quotes(
        "docs/explanation/comparison.md",
        &[
            format!("[{times_fewer:.1} times the instructions](cost.md)"),
            format!("{hot:.1} times an `INCREX` on 1,000 hot keys and {take:.1} times on 100,000"),
        ],
    );
}

#[test]
fn the_readme_and_the_comparison_quote_what_others_cost() {
    let bytes = |approach: &str| figure("memory", &[approach], "bytes a key");
    let [of_script, of_counter, of_increx, of_cell, of_take] = [
        "Lua token bucket",
        "INCR + EXPIRE fixed window",
        "INCREX fixed window",
        "CL.THROTTLE (redis-cell 0.2.2)",
        TAKE,
    ]
    .map(bytes);
    assert_quotes(
        "README.md",
        &[
            format!("| bytes a key | {of_script:.0} | {of_counter:.0} | {of_increx:.0} | {of_cell:.0} | {of_take:.0} |"),
        ],
    );
    assert_quotes(
        "docs/explanation/comparison.md",
        &[
            format!("[{of_counter:.0} bytes a key](../benchmarks/README.md#memory) against {of_take:.0}"),
            format!("{of_cell:.0} against {of_take:.0} in that run"),
        ],
    );
}

#[test]
fn the_readme_quotes_the_decisions_and_the_memory() {
    let [own, possible] = ["allowed", "possible"].map(|column| figure("over-grant", &[TAKE], column));
    let (increx, script) = (times_as_fast("INCREX fixed window", 2), times_as_fast("Lua token bucket", 1));
    let bytes = figure("memory", &[TAKE], "bytes a key");
    assert_quotes(
        "README.md",
        &[
            format!("{increx} times as fast as `INCREX`, and {script} times as fast as the script"),
            format!("With 64 clients competing for {possible} tokens, exactly {own} pass."),
            format!("{bytes:.0} bytes a bucket on Redis 8.10 with jemalloc, with a 12-byte key"),
        ],
    );
}

#[test]
fn sizing_and_scaling_quote_sizes_and_speeds() {
    let bytes = figure("memory", &[TAKE], "bytes a key");
    let hold_bytes = figure("holding", &["TB.HOLD / TB.SETTLE"], "bytes a hold");
    let replicated = figure("replication", &[TAKE], "bytes, allowed");
    let counter = times_as_fast("INCR + EXPIRE fixed window", 2);
    let [take, incr] = [ALLOWED, "INCR"].map(|call| figure("pipelined", &[call], "calls/s"));
    let [below, above] =
        ["1047576", "1049576"].map(|buckets| figure("doubling", &[buckets], "bytes a bucket"));
    let [hot, each] = KEYS.map(|keys| decisions_a_second("64 clients", keys, TAKE) / 1000.0);
    assert_quotes(
        "docs/operate/sizing.md",
        &[
            format!("{bytes:.0} on Redis 8.10 with jemalloc, with a 12-byte key"),
            format!("50,000,000 × {bytes:.0} bytes = {:.1} GB on Redis 8.10", bytes / 20.0),
            format!("we measured {below:.0} bytes a bucket just below 2^20 buckets and {above:.0} just above"),
            format!("Plan with the peak: 50,000,000 × {above:.0} bytes = {:.1} GB", above / 20.0),
            format!("doubles the memory of the buckets: {:.1} GB at worst", above / 10.0),
            format!("{hold_bytes:.0} bytes on Redis 8.10 with jemalloc, with a 36-byte id"),
            format!(", {:.1} million on Redis 8.10 |", 1000.0 / bytes),
            format!("{replicated:.0} bytes per allowed take with a 12-byte key"),
            format!("without pipelining {counter} times as many as of INCR with EXPIRE"),
            format!("with pipelining {:.2} times as many as of INCR.", take / incr),
            format!("about {each:.0},000 without pipelining, with 10,000 users; with pipelining {:.0},000, with 100,000 users", take / 1000.0),
        ],
    );
    // What a core decides by the number of buckets, and half of it, in thousands rounded down.
    let growth =
        [("10000", "10,000"), ("100000", "100,000"), ("1000000", "1,000,000"), ("10000000", "10,000,000")];
    let rows = growth.map(|(buckets, shown)| {
        let us = figure("growth", &[buckets], "TB.TAKE, server CPU µs");
        let most = (1000.0 / us).round();
        format!("| {shown} | {us:.1} µs | {most:.0},000 | {:.0},000 |", (500.0 / us).floor())
    });
    assert_quotes("docs/operate/sizing.md", &rows);
    let planned = (500.0 / figure("growth", &["10000000"], "TB.TAKE, server CPU µs")).floor();
    let shards = (200.0 / planned).ceil();
    let [each_decides, one_fewer_decides] = [shards, shards - 1.0].map(|shards| 200.0 / shards);
    let [million, peak_gb] = [50.0, above / 20.0].map(|all| all / shards);
    assert_quotes(
        "docs/operate/sizing.md",
        &[
            format!("**{shards:.0} shards**, each a master with a replica. Each decides {each_decides:.0},000 takes a second"),
            format!("below the {planned:.0},000 planned, and has up to {million:.1} million buckets"),
            format!("{peak_gb:.1} GB at the peak of step 2 above, and at worst {:.1} GB while it forks", 2.0 * peak_gb),
            format!("With one shard fewer, each would have to decide {one_fewer_decides:.0},000."),
        ],
    );
    let by_themselves = |key, approach| {
        let of = |approach, column| figure("local", &[key, approach], column);
        (of(approach, "decisions/s") / of(TAKE, "decisions/s"), of(approach, "over %"))
    };
    let (remembering, over) = by_themselves("is empty", "TB.TAKE, denials remembered");
    let (in_batches, over_in_batches) = by_themselves("has plenty", "TB.TAKEUPTO in batches of 100");
    assert_quotes(
        "docs/operate/scaling.md",
        &[
            format!("{hot:.0},000 takes a second from 64 clients on one hot key without pipelining, and {each:.0},000 on a key per user"),
            format!("{remembering:.0} times as many decisions a second as without the cache. They were allowed {over} % more than it grants"),
            format!("{in_batches:.0} times as many decisions a second that way, bound by the one core they shared. They were \
                 allowed {over_in_batches} % more than by one bucket"),
        ],
    );
}

#[test]
fn the_summary_of_the_benchmarks_quotes_them() {
    const OTHERS: [&str; 4] = [
        "INCREX fixed window",
        "Lua token bucket",
        "CL.THROTTLE (redis-cell 0.2.2)",
        "throttlecrab-server 0.4.40",
    ];
    let [increx, script, cell, crab] = OTHERS.map(|other| times_as_fast(other, 2));
    let hot = |approach| decisions_a_second("64 clients", KEYS[0], approach);
    let pipelined = |call| figure("pipelined", &[call], "calls/s");
    let incr = pipelined("INCR") / pipelined(ALLOWED);
    let counter = hot("INCR + EXPIRE fixed window") / hot(TAKE);
    let over_grant = |approach, column| figure("over-grant", &[approach], column);
    let [own, possible] = ["allowed", "possible"].map(|column| over_grant(TAKE, column));
    let computed = over_grant("read, compute, write", "allowed");
    let [one, many] = ["1", "16"].map(|clients| {
        let us = |column| figure("latency", &[clients, "p50"], column);
        us("TB.TAKE µs") / us("GET µs")
    });
    let [take_bytes, increx_bytes, cell_bytes, script_bytes] =
        [TAKE, OTHERS[0], OTHERS[2], OTHERS[1]].map(|approach| figure("memory", &[approach], "bytes a key"));
    let [hold_bytes, set_bytes] = ["TB.HOLD / TB.SETTLE", "sorted-set semaphore in Lua"]
        .map(|way| figure("holding", &[way], "bytes a hold"));
    let grown = |call: &str| {
        let us = |buckets| figure("growth", &[buckets], &format!("{call}, in the call µs"));
        us("10000000") / us("10000")
    };
    let [take_sent, increx_sent, script_sent] =
        [TAKE, OTHERS[0], OTHERS[1]].map(|approach| figure("replication", &[approach], "bytes, allowed"));
    assert_quotes(
        "docs/benchmarks/README.md",
        &[
            format!("{increx} times as fast as `INCREX` and {script} times as fast as the Lua script. It decides {cell} times as \
                 fast as redis-cell and {crab} times as fast as throttlecrab-server"),
            format!("INCR with EXPIRE makes {counter:.2} times as many decisions. With pipelining, `INCR` runs {incr:.2} times as many calls."),
            format!("of {possible} tokens, `TB.TAKE` grants {own} and a read-modify-write in the client {computed:.0}"),
            format!("{one:.2} times that of `GET` with 1 client and {many:.2} times with 16"),
            format!("a bucket with a 12-byte key needs {take_bytes:.0} bytes; `INCREX` needs {increx_bytes:.0}, redis-cell {cell_bytes:.0} and the script {script_bytes:.0}"),
            format!("A sorted-set semaphore needs {set_bytes:.0} bytes a hold, `TB.HOLD` {hold_bytes:.0}."),
            format!("{:.2} times as long as beside 10,000; an `INCR` takes {:.2} times as long", grown("TB.TAKE"), grown("INCR")),
            format!("{take_sent:.0} bytes, one by `INCREX` {increx_sent:.0} and one by the script {script_sent:.0}"),
        ],
    );
}
