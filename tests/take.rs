//! `TB.TAKE`, `TB.PEEK` and `TB.STATE` as a client sees them, on a clock that the test moves.

mod common;

use common::{Decision, Server};

fn decided(fields: [i64; 4]) -> Decision {
    fields.into()
}

#[test]
fn a_burst_passes_and_the_next_call_is_told_when_to_come_back() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 2, 0, 1000]));
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 1, 0, 2000]));
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 0, 0, 3000]));
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([0, 0, 1000, 3000]));
    server.clock().advance_ms(999);
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([0, 0, 1, 2001]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 0, 0, 3000]));
}
