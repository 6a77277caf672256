//! What a call costs beside others that wait elsewhere and name its key: beside many the same as beside ten.
//!
//! Costs are processor time of the server's main thread, compared in one run. `WAITERS=10000` lets as many wait, where the
//! system lets a process open as many connections.

use crate::common::{environment, wait_until, Connection, Server};
use std::fs;
use std::time::{Duration, Instant};

const FEW: usize = 10;
/// The least of at least so many measurements counts: others on the machine only add to it.
const TIMES: usize = 11;
/// They may add to all of these: a neighbour on one processor makes the server that runs there slower for a while. So a cost
/// above the bound is measured again, until it is below or so much time has passed.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much more a call may cost beside many.
const MOST: f64 = 1.5;

/// A server with clients, some of which wait for buckets of their own, and also name a common one.
struct Crowd {
    server: Server,
    client: Connection,
    _clients: Vec<Connection>,
}

impl Crowd {
    /// `call` of a number waits. So many clients are connected that only their waiting differs.
    fn new(clients: usize, waiting: usize, call: impl Fn(usize) -> String) -> Self {
        let most = (clients + 1).min(10_000).to_string();
        let server = Server::builder()
            .option("maxclients", clients + 100)
            .module_arguments(&["max-waiters", &most, "max-holds", "10000"])
            .start();
        let (mut client, mut clients): (_, Vec<_>) =
            (server.connect(), (0..clients).map(|_| server.connect()).collect());
        for (number, waiter) in clients[..waiting].iter_mut().enumerate() {
            client.say(&format!("TB.TAKE own:{number} 1 1/d"));
            waiter.send(&call(number));
        }
        wait_until("they wait", || client.waiting() == waiting as i64);
        Self { server, client, _clients: clients }
    }

    /// Processor time of the server's main thread, once it sleeps: what a thread that runs has spent is added late.
    fn cpu_ns(&self) -> u64 {
        let id = self.server.process_id();
        let read = |name| fs::read_to_string(format!("/proc/{id}/task/{id}/{name}")).unwrap();
        wait_until("the server sleeps", || read("stat").contains(") S "));
        read("schedstat").split(' ').next().unwrap().parse().unwrap()
    }

    /// Returns the processor time of what a client does.
    fn cost_ns(&mut self, act: &mut impl FnMut(&mut Connection)) -> u64 {
        let before_ns = self.cpu_ns();
        act(&mut self.client);
        self.cpu_ns() - before_ns
    }
}

/// Measures what a client does, beside few and beside many that wait by `call`, after it has prepared both servers.
fn assert_same_cost(
    what: &str,
    call: impl Fn(usize) -> String,
    mut prepare: impl FnMut(&mut Connection),
    mut act: impl FnMut(&mut Connection),
) {
    let many = environment("WAITERS", 1000) as usize;
    let mut crowds = [FEW, many].map(|waiting| Crowd::new(many, waiting, &call));
    crowds.iter_mut().for_each(|crowd| prepare(&mut crowd.client));
    let mut costs_ns = [u64::MAX; 2];
    let (start, mut times, mut ratio) = (Instant::now(), 0, f64::MAX);
    while times < TIMES || ratio > MOST && start.elapsed() < PATIENCE {
        for (crowd, cost_ns) in crowds.iter_mut().zip(&mut costs_ns) {
            *cost_ns = crowd.cost_ns(&mut act).min(*cost_ns);
        }
        times += 1;
        ratio = costs_ns[1] as f64 / costs_ns[0] as f64;
    }
    println!("{what}: {costs_ns:?} ns beside {FEW} and {many}, {ratio:.2} times, measured {times} times");
    assert!(ratio <= MOST, "{what} costs {costs_ns:?} ns beside {FEW} and {many}, {ratio:.2} times");
}

fn take(number: usize) -> String {
    format!("TB.BMTAKE 2 86400000 own:{number} 1 1/d 1 pool 1000000 1000 1")
}

/// Calls a script makes while a call is due, because its bucket has gained a little.
fn while_one_is_due(client: &mut Connection, command: &str, calls: usize) {
    let script = format!(
        "redis.call('TB.GIVE', 'own:0', 1, '1/d', '0.000001') \
         for _ = 1, {calls} do if redis.call('{command}', 'pool', 1000000, 1000, '0.000001')[1] ~= 1 then error('denied') end end"
    );
    client.run(&["EVAL", &script, "0"]);
}

#[test]
fn a_take_beside_calls_that_are_due_elsewhere_costs_what_it_costs_alone() {
    assert_same_cost("1,000 takes", take, |_| (), |client| while_one_is_due(client, "TB.TAKE", 1000));
}

#[test]
fn a_peek_beside_calls_that_are_due_elsewhere_costs_what_it_costs_alone() {
    assert_same_cost("1,000 peeks", take, |_| (), |client| while_one_is_due(client, "TB.PEEK", 1000));
}

/// They have ended, and no call has written since.
#[test]
fn a_pool_with_ended_holds_is_seen_once_whoever_waits() {
    let call = |number| format!("TB.BMHOLD 2 1000 id:{number} 86400000 own:{number} 1 1/d 1 pool 20000 0 1");
    let prepare = |client: &mut Connection| {
        for id in 0..9_999 {
            client.say(&format!("TB.HOLD pool 20000 0 1 1500 {id}"));
        }
        client.say("TB.HOLD pool 20000 0 1 86400000 stays");
        wait_until("they have ended", || client.decide("TB.PEEK pool 20000 0").remaining == 19_998);
    };
    assert_same_cost("200 peeks", call, prepare, |client| {
        (0..200).for_each(|_| drop(client.say("TB.PEEK pool 20000 0")));
    });
}

#[test]
fn a_grant_costs_the_same_whoever_waits_elsewhere() {
    let call = |number| format!("TB.BMTAKE 2 86400000 own:{number} 1 1/d 1 pool 10 500 1");
    let drain = |client: &mut Connection| drop(client.say("TB.TAKE pool 10 500 10"));
    assert_same_cost("100 grants", call, drain, |client| {
        for _ in 0..100 {
            assert_eq!(client.decide("TB.BTAKE pool 10 500 1 5000").allowed, 1);
        }
    });
}
