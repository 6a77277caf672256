//! Redis that is away, or refuses.

use tokenbucket_client::OnError;
use tokenbucket_gate::decide::Policy;
use tokenbucket_gate::messages::{Duration, Status};

use crate::servers::{ask, Server};
use crate::{connect, decide, decider, descriptor, hourly, policy, quota, request, rule, summary};

#[tokio::test]
async fn while_redis_is_away_all_pass_or_none() {
    let server = Server::away();
    let found = [rule(hourly(5), "a"), rule(hourly(5), "b"), rule(quota(5), "c"), None];
    for (on_error, is_over) in [(OnError::Open, false), (OnError::Closed, true)] {
        let (decider, counters) = decider(&connect(&server), Policy { on_error, ..policy() });
        let response = decide(&decider, &found, &[None, None, None, None]).await;
        let over = [(is_over, 0), (is_over, 0), (is_over, 0), (false, 0)];
        assert_eq!(summary(&response), (over.to_vec(), is_over));
        // What is left is unknown. Denied requests may come again when Redis is asked again.
        let duration_until_reset = is_over.then_some(Duration { seconds: 1, nanos: 0 });
        let bare = Status { code: response.statuses[0].code, duration_until_reset, ..Status::default() };
        assert_eq!(response.statuses[0], bare);
        assert!(counters.render().contains("err_type=\"redis_error\"} 1\n"));
    }
}

#[tokio::test]
async fn warm_up_ends_when_redis_decides() {
    let mut server = Server::away();
    let (decider, _) = decider(&connect(&server), policy());
    let warm_up = decider.warm_up();
    let start = async {
        tokio::task::yield_now().await;
        server.start_again();
    };
    tokio::join!(warm_up, start);
    let found = [rule(hourly(5), "a")];
    assert_eq!(summary(&decide(&decider, &found, &[None]).await).0, [(false, 4)]);
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_even_where_all_pass() {
    let server = Server::start();
    let (decider, _) = decider(&connect(&server), Policy { on_error: OnError::Open, ..policy() });
    let found = vec![rule(hourly(5), "a")];
    ask::<String>(&server, &["SET", "shop|{a=v}", "1"]);
    let refusal = decider.decide_by(found, &request([descriptor("a")])).await.unwrap_err();
    assert!(format!("{refusal:?}").contains("WRONGTYPE"), "{refusal:?}");
}
