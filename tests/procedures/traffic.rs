//! A client that takes tokens while a procedure is carried out, and what it was granted.

use crate::common::wait::wait_for;
use crate::common::{decision, texts, wait_until, Connection};
use crate::machine::{Machine, Machines};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A bucket that no test empties, which refills by a token an hour.
const CAPACITY: i64 = 1_000_000;
const CALL: &str = "TB.TAKE traffic 1000000 1000000/36500d";

/// More grants than are on their way to a replica at one moment, and fewer than a client gets in a second.
pub const IN_FLIGHT: i64 = 100;

/// A client that takes a token about every millisecond until [`Traffic::end`].
///
/// It keeps its connection, as most drivers do, until that breaks or its server is no master any more.
pub struct Traffic {
    shared: Arc<Shared>,
    client: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    granted: AtomicI64,
    ends: AtomicBool,
}

impl Traffic {
    /// Begins, and waits for the first grants. `find_master` returns the port to connect to.
    pub fn begin(find_master: impl FnMut() -> Option<u16> + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let of_client = Arc::clone(&shared);
        let client = thread::spawn(move || of_client.take_tokens(find_master));
        let traffic = Self { shared, client };
        traffic.wait_for_grants();
        traffic
    }

    /// Takes from the machine that serves, of two.
    pub fn on(machines: [Machine; 2]) -> Self {
        let mut ports = machines.map(|machine| machine.port()).into_iter().cycle();
        Self::begin(move || ports.next())
    }

    /// Takes from the master that Sentinel names.
    pub fn by_sentinel(machines: &Machines) -> Self {
        let port = machines.get("sentinel").port();
        Self::begin(move || {
            let reply = Connection::try_open(port).ok()?.attempt("SENTINEL get-master-addr-by-name mymaster");
            texts(reply.ok()?)[1].parse().ok()
        })
    }

    /// Waits until the client has been granted some more.
    pub fn wait_for_grants(&self) {
        let begin = self.shared.granted.load(Ordering::SeqCst);
        wait_until("the client is granted tokens", || {
            assert!(!self.client.is_finished(), "the client has ended");
            self.shared.granted.load(Ordering::SeqCst) > begin + 20
        });
    }

    /// Ends it after some more grants. Returns the grants of which the last master knows nothing: they can be taken again. It may
    /// know of some whose reply got lost.
    pub fn end_and_count_lost(self, master: Machine) -> i64 {
        self.wait_for_grants();
        self.shared.ends.store(true, Ordering::SeqCst);
        self.client.join().unwrap();
        (self.shared.granted.load(Ordering::SeqCst) - taken(&mut master.connect())).max(0)
    }
}

impl Shared {
    fn take_tokens(&self, mut find_master: impl FnMut() -> Option<u16>) {
        while !self.ends.load(Ordering::SeqCst) {
            let mut client = wait_for("a server listens", || Connection::try_open(find_master()?).ok());
            while self.take(&mut client) && !self.ends.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Takes a token; returns whether to stay on this connection.
    fn take(&self, client: &mut Connection) -> bool {
        loop {
            match client.attempt(CALL) {
                Ok(reply) => {
                    assert_eq!(decision(&reply).allowed, 1, "the bucket is empty");
                    self.granted.fetch_add(1, Ordering::SeqCst);
                    return true;
                }
                // Drivers raise such an error and keep the connection.
                Err(error) if error.starts_with("NOREPLICAS") => thread::sleep(Duration::from_millis(1)),
                Err(error) => {
                    assert!(!error.starts_with("ERR ") || error.contains("unknown command"), "{error}");
                    return false;
                }
            }
        }
    }
}

/// Returns the tokens that a server knows to be taken.
fn taken(client: &mut Connection) -> i64 {
    let (level, _) = client.state("traffic").expect("a bucket that is not full");
    CAPACITY - level.split('.').next().unwrap().parse::<i64>().unwrap()
}
