//! The services of envoyproxy/ratelimit's example: which one serves is chosen by the metadata of a quota that is left.

use crate::envoy::{get_and_report, world_with_clock, Envoy};
use crate::http::Backend;
use crate::world::configured;

#[test]
fn metadata_choose_the_service_that_has_quota_left() {
    let (world, clock) = world_with_clock(&configured("tests/proxies/ratelimit.yaml", &[]));
    let other = Backend::start("from the other");
    let gate = world.gate(&[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let envoy = Envoy::with(&world, &[&gate], true, other.port);
    let served = || {
        let reply = get_and_report(&gate, 1, || envoy.get("/services", &[]));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body.trim().to_owned()
    };
    let (one, two) = ("from the backend", "from the other");
    assert_eq!([served(), served(), served(), served(), served()], [one, one, two, two, two]);
    // Nobody served it: there is no report.
    assert_eq!(envoy.get("/services", &[]).status, 429);
    clock.advance_ms(60_000);
    assert_eq!(served(), one);
}
