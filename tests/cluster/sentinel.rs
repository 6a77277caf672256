//! A failover that Sentinel decides on.

use crate::common::stored::{begin_to_follow, wait_until_linked};
use crate::common::{text, texts, wait_until, Connection, Server};
use crate::nodes::{CAPACITY, RATE, REFILL};
use redis::Value;

#[test]
fn after_a_sentinel_failover_a_bucket_holds_what_was_last_replicated() {
    let [mut master, replica] =
        [(); 2].map(|()| Server::builder().option("repl-diskless-sync-delay", 0).start());
    begin_to_follow(&replica, &master);
    wait_until_linked(&replica);
    let sentinel = watch(&master);
    let mut watching = sentinel.connect();
    wait_until("Sentinel knows the replica", || {
        let report = text(&watching.say("INFO sentinel"));
        report.contains("status=ok") && report.contains("slaves=1")
    });

    let mut client = master.connect();
    take(&mut client, 400);
    assert_eq!(client.say("WAIT 1 10000"), Value::Int(1), "the replica has followed");
    take(&mut client, 100); // May be lost with the master.
    master.kill();

    wait_until("Sentinel names the replica as the master", || {
        let address = texts(watching.say("SENTINEL get-master-addr-by-name limits"));
        address[1] == replica.port().to_string()
    });
    let mut client = replica.connect();
    wait_until("the replica is the master", || client.info("replication", "role") == "master");
    let (level, _) = client.state("user:1").expect("the bucket is there");
    let level: f64 = level.parse().unwrap();
    assert!(
        (500.0..=600.0 + REFILL).contains(&level),
        "400 to 500 of {CAPACITY} were taken, and {level} are left"
    );
    take(&mut client, 1);
}

fn take(client: &mut Connection, times: usize) {
    for _ in 0..times {
        assert_eq!(client.decide(&format!("TB.TAKE user:1 {CAPACITY} {RATE}")).allowed, 1);
    }
}

/// A Sentinel that decides alone.
fn watch(master: &Server) -> Server {
    let lines = format!(
        "sentinel monitor limits 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds limits 1000\n\
         sentinel failover-timeout limits 10000\n",
        master.port()
    );
    // The word is looked for anywhere, and a Sentinel loads no module: here it follows all options.
    Server::builder().configuration_file(&lines).module_arguments(&["--sentinel"]).start()
}
