//! A failover that Sentinel decides on.

use crate::common::stored::begin_to_follow;
use crate::common::wait::wait_for;
use crate::common::{decision, text, texts, timeout, wait_until, Connection, Server};
use crate::nodes::wait_until_linked;
use redis::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Slots of the pool.
const SLOTS: usize = 3;
const MAX_WAIT_MS: u64 = 20_000;

/// Clients hold slots and wait for them while their master is killed. They call again where Sentinel sends them, under the
/// same ids. A slot counts as held when the replica has it.
#[test]
fn a_sentinel_failover_ends_all_waits_and_neither_loses_slots_nor_grants_them_twice() {
    const CLIENTS: usize = 12;
    let (mut master, replica, sentinel) = watched_pair();
    let counts = Counts::default();
    thread::scope(|scope| {
        for id in 0..CLIENTS {
            let worker = Worker {
                id,
                sentinel: sentinel.connect(),
                last_master: replica.port().to_string(),
                counts: &counts,
            };
            scope.spawn(|| worker.work());
        }
        let mut client = master.connect();
        wait_until("slots change hands and clients wait", || {
            counts.grants.load(Ordering::SeqCst) > 200 && client.waiting() > 1
        });
        master.kill();
    });
    assert!(counts.interrupted.load(Ordering::SeqCst) > 0, "nobody waited when the master was killed");
    let mut client = replica.connect();
    assert_eq!(client.keys(), 0, "not all slots are free");
    assert_eq!(client.waiting(), 0);
}

#[derive(Default)]
struct Counts {
    grants: AtomicUsize,
    /// Those who hold a slot at this moment.
    holders: AtomicUsize,
    /// Waits that ended with an error.
    interrupted: AtomicUsize,
}

/// A client that gets a slot again and again, and settles it.
struct Worker<'test> {
    id: usize,
    sentinel: Connection,
    /// The port of the replica, which is the last master.
    last_master: String,
    counts: &'test Counts,
}

impl Worker<'_> {
    /// Until it has had some slots on the last master.
    fn work(mut self) {
        while !self.use_slots().unwrap_or(false) {}
    }

    /// Gets slots of one master; whether it was the last.
    fn use_slots(&mut self) -> Result<bool, String> {
        const GRANTS: usize = 20;
        let sentinel = &mut self.sentinel;
        let (port, mut client) = wait_for("there is a master", || {
            let port = master_port(sentinel);
            let client = Connection::try_open(port.parse().unwrap());
            client.ok().map(|client| (port, client))
        });
        let is_last = port == self.last_master;
        for _ in 0..if is_last { GRANTS } else { usize::MAX } {
            self.get_slot(&mut client)?;
            let is_safe = is_last || client.attempt("WAIT 1 1000")? == Value::Int(1);
            if is_safe {
                let holders = self.counts.holders.fetch_add(1, Ordering::SeqCst) + 1;
                thread::sleep(Duration::from_millis(1));
                self.counts.holders.fetch_sub(1, Ordering::SeqCst);
                assert!(holders <= SLOTS, "{holders} hold one of {SLOTS} slots");
            }
            client.attempt(&format!("TB.SETTLE p {SLOTS} 0 {} 0", self.id))?;
        }
        Ok(is_last)
    }

    fn get_slot(&self, client: &mut Connection) -> Result<(), String> {
        let begin = Instant::now();
        let reply = client.attempt(&format!("TB.BHOLD p {SLOTS} 0 1 86400000 {} {MAX_WAIT_MS}", self.id));
        assert!(begin.elapsed() < Duration::from_millis(MAX_WAIT_MS) + timeout(), "no reply in time");
        let reply = reply.inspect_err(|_| {
            self.counts.interrupted.fetch_add(1, Ordering::SeqCst);
        })?;
        assert_eq!(decision(&reply).allowed, 1, "it waited in vain");
        self.counts.grants.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A master, its replica, and a Sentinel that watches them.
fn watched_pair() -> (Server, Server, Server) {
    let [master, replica] = [(); 2].map(|()| Server::builder().option("repl-diskless-sync-delay", 0).start());
    begin_to_follow(&replica, &master);
    wait_until_linked(&replica);
    let sentinel = watch(&master);
    let mut watching = sentinel.connect();
    wait_until("Sentinel knows the replica", || {
        let report = text(&watching.say("INFO sentinel"));
        report.contains("status=ok") && report.contains("slaves=1")
    });
    (master, replica, sentinel)
}

/// The port of the master, as Sentinel says.
fn master_port(sentinel: &mut Connection) -> String {
    texts(sentinel.say("SENTINEL get-master-addr-by-name limits")).swap_remove(1)
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
