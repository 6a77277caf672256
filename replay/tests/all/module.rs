//! The module, on a server whose clock the test moves, decides as the replay does.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use redis::ConnectionLike;
use tokenbucket_core::bucket::{Decision, Limit};
use tokenbucket_core::number::decimal_tokens;
use tokenbucket_replay::options::Named;
use tokenbucket_replay::replay::decisions;

use crate::clock::Clock;
use crate::exact::{calls, log, rates};
use crate::servers::Server;

fn limits() -> impl Strategy<Value = Vec<Named<Limit>>> {
    let capacity = prop_oneof![0..50u32, 1..100_000u32];
    let limit = (capacity, rates()).prop_filter_map("refills within a century", |(capacity, rate)| {
        format!("{capacity} {rate}").parse().ok()
    });
    prop::collection::vec(limit, 1..4)
}

#[test]
fn the_module_makes_the_same_decisions() {
    let server = Server::started(&["--clock"]);
    let (clock, mut connection) = (Clock::new(&server.folder), server.connection());
    let mut runner = TestRunner::default();
    for _ in 0..50 {
        let (calls, limits) = (calls(), limits()).new_tree(&mut runner).expect("a value").current();
        redis::cmd("FLUSHALL").exec(&mut connection).expect("a server");
        let log = log(&calls);
        let replayed = log.by_key().flat_map(|events| events.iter().zip(decisions(&limits, events)));
        let mut replayed: Vec<_> = replayed.collect();
        replayed.sort_by_key(|(event, _)| event.at_us);
        for (event, decision) in replayed {
            clock.set_us(event.at_us);
            let cost = decimal_tokens(event.cost_micro);
            let mut call = redis::cmd(if limits.len() == 1 { "TB.TAKE" } else { "TB.MTAKE" });
            if limits.len() > 1 {
                call.arg(limits.len());
            }
            for (place, limit) in limits.iter().enumerate() {
                let (capacity, rate) = limit.name.split_once(' ').expect("two words");
                call.arg(format!("{}:{place}", event.key)).arg(capacity).arg(rate).arg(&cost);
            }
            let mut reply = reply(&mut connection, &call);
            if decision.allowed == 0 {
                // The replay needs no level of the buckets that would have allowed it.
                (reply.remaining, reply.reset_after_ms) = (decision.remaining, decision.reset_after_ms);
            }
            assert_eq!(reply, decision, "{event:?} {limits:?} of {calls:?}");
        }
    }
}

/// Returns the decision, which is the beginning of the reply of `TB.MTAKE`.
fn reply(connection: &mut redis::Connection, call: &redis::Cmd) -> Decision {
    let reply = connection.req_command(call).expect("a decision");
    let numbers = reply.as_sequence().expect("a list").iter().map_while(|value| match value {
        redis::Value::Int(number) => Some(*number),
        _ => None,
    });
    let numbers: Vec<i64> = numbers.collect();
    let [allowed, remaining, retry_after_ms, reset_after_ms] = numbers[..4] else {
        unreachable!("four numbers")
    };
    Decision { allowed, remaining, retry_after_ms, reset_after_ms }
}
