//! The figures that documents quote are those of the committed runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A table that a run wrote, by what its rows begin with and by its columns.
struct Run(Vec<HashMap<String, String>>);

impl Run {
    fn read(name: &str) -> Self {
        let mut csv = csv::Reader::from_path(root().join(format!("docs/benchmarks/{name}.csv"))).unwrap();
        Self(csv.deserialize().map(Result::unwrap).collect())
    }

    /// The figure in a column of the row that has these cells.
    fn figure(&self, cells: &[&str], column: &str) -> f64 {
        let has = |row: &&HashMap<_, String>| cells.iter().all(|cell| row.values().any(|own| own == cell));
        let row = self.0.iter().find(has).unwrap_or_else(|| panic!("no row has {cells:?}"));
        row[column].parse().unwrap()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Fails unless a document has each of these texts, wherever its lines are broken.
fn assert_quotes(document: &str, quotes: &[String]) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(&std::fs::read_to_string(root().join(document)).unwrap());
    let missing: Vec<&String> = quotes.iter().filter(|quote| !text.contains(&words(quote))).collect();
    assert!(missing.is_empty(), "by the committed runs, {document} has to say: {missing:#?}");
}

const TAKE: &str = "TB.TAKE";
const ALLOWED: &str = "TB.TAKE, allowed";
const DENIED: &str = "TB.TAKE, denied";
const SCRIPT: &str = "Lua script, EVALSHA";
/// The loads under which the server is the bottleneck.
const CLIENTS: [&str; 3] = ["16 clients", "64 clients", "256 clients"];
const KEYS: [&str; 2] = ["one hot key", "a key per user, 10,000 users"];

/// How many times as fast as another a take is served, under each load: the least and the most.
fn times_as_fast(other: &str, digits: usize) -> String {
    let run = Run::read("decisions");
    let loads = CLIENTS.iter().flat_map(|clients| KEYS.map(|keys| (clients, keys)));
    let ratios = loads.map(|(clients, keys)| {
        let speed = |approach| run.figure(&[clients, keys, approach], "decisions/s");
        speed(TAKE) / speed(other)
    });
    let (least, most) = ratios.fold((f64::INFINITY, 0.0), |(least, most), it| (it.min(least), it.max(most)));
    format!("{least:.digits$} to {most:.digits$}")
}

#[test]
fn the_readme_quotes_the_instructions() {
    let run = Run::read("instructions");
    let times = |call: &str| {
        ["nobody listens", "appendonly yes"].map(|listener| {
            run.figure(&[listener, call], "instructions") / run.figure(&[listener, "INCR"], "instructions")
        })
    };
    let row = |name: &str, call: &str, bold: &str| {
        let [nobody, file] = times(call);
        format!("| {bold}{name}{bold} | {bold}{nobody:.1}{bold} | {bold}{file:.1}{bold} |")
    };
    let script = times(SCRIPT)[0] / times(ALLOWED)[0];
    assert_quotes(
        "README.md",
        &[
            row("`TB.TAKE`, allowed", ALLOWED, "**"),
            row("`TB.TAKE`, denied", DENIED, "**"),
            row("`TB.PEEK`", "TB.PEEK", ""),
            row("`TB.MTAKE` of ten buckets", "TB.MTAKE of 10", ""),
            row("a token bucket as a Lua script, `EVALSHA`", SCRIPT, ""),
            row("`CL.THROTTLE` of redis-cell 0.2.2", "CL.THROTTLE (redis-cell 0.2.2)", ""),
            format!("A Lua script does the same for {script:.1} times the instructions"),
        ],
    );
}

#[test]
fn the_readme_quotes_the_servers_microseconds() {
    let run = Run::read("commandstats");
    let times = |call: &str| run.figure(&[call], "median µs") / run.figure(&["INCREX"], "median µs");
    let [take, denial, script] = [ALLOWED, DENIED, SCRIPT].map(times);
    let quote =
        format!("a take costs {take:.1} times an `INCREX`, a denial {denial:.1} times, the Lua script {script:.0} times");
    assert_quotes("README.md", &[quote]);
}

#[test]
fn the_readme_quotes_the_decisions() {
    let grants = Run::read("over-grant");
    let [own, possible] = ["allowed", "possible"].map(|column| grants.figure(&[TAKE], column));
    let computed = grants.figure(&["read, compute, write"], "allowed") / possible;
    let (increx, script) = (times_as_fast("INCREX fixed window", 2), times_as_fast("Lua token bucket", 1));
    assert_quotes(
        "README.md",
        &[
            format!("{increx} times as fast as `INCREX`, and {script} times as fast as the script"),
            format!("Of 64 clients on one key that can grant {possible}, it grants {own}; reading, computing in the client and \
                 writing grants {computed:.0} times as many."),
        ],
    );
}

#[test]
fn the_readme_quotes_the_memory() {
    let bytes = Run::read("memory").figure(&[TAKE], "bytes a key");
    assert_quotes("README.md", &[format!("{bytes:.0} bytes a bucket on Redis 8.10, with a 12-byte key")]);
}

#[test]
fn operations_quotes_sizes_and_speeds() {
    let bytes = Run::read("memory").figure(&[TAKE], "bytes a key");
    let hold_bytes = Run::read("holding").figure(&["TB.HOLD / TB.SETTLE"], "bytes a hold");
    let replicated = Run::read("replication").figure(&[TAKE], "bytes, allowed");
    let counter = times_as_fast("INCR + EXPIRE fixed window", 2);
    let pipelined = Run::read("pipelined");
    let [take, incr] = [ALLOWED, "INCR"].map(|call| pipelined.figure(&[call], "calls/s"));
    let single = Run::read("decisions").figure(&[CLIENTS[1], KEYS[1], TAKE], "decisions/s");
    assert_quotes(
        "docs/operations.md",
        &[
            format!("{bytes:.0} on Redis 8.10, with a 12-byte key"),
            format!("{hold_bytes:.0} bytes on Redis 8.10, with a 36-byte id"),
            format!("{:.1} million on Redis 8.10", 1000.0 / bytes),
            format!("{replicated:.0} bytes per allowed take with a 12-byte key"),
            format!("{counter} times as many as of INCR with EXPIRE"),
            format!("{:.2} times as many as of INCR with.", take / incr),
            format!("about {:.0},000 and {:.0},000", single / 1000.0, take / 1000.0),
        ],
    );
}

#[test]
fn scaling_quotes_what_one_core_decides() {
    let run = Run::read("decisions");
    let [hot, each] = KEYS.map(|keys| run.figure(&[CLIENTS[1], keys, TAKE], "decisions/s") / 1000.0);
    let quote = format!("{hot:.0},000 takes a second of 64 clients on one hot key, without pipelining, and {each:.0},000 on a key per user");
    assert_quotes("docs/scaling.md", &[quote]);
}
