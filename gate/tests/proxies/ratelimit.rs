//! What the integration scripts of envoyproxy/ratelimit expect, through Envoy.

use crate::clock::Clock;
use crate::envoy::{get_and_report, world_with_clock, Envoy};
use crate::gate::Gate;
use crate::http::{get, Backend};
use crate::world::{configured, statuses, World};

struct Replay {
    envoy: Envoy,
    gate: Gate,
    clock: Clock,
    _other: Backend,
    _world: World,
}

impl Replay {
    fn start() -> Self {
        let (world, clock) = world_with_clock(&configured("tests/proxies/ratelimit.yaml", &[]));
        let other = Backend::start("from the other");
        let gate = world.gate(&[("RESPONSE_DYNAMIC_METADATA", "true")]);
        let envoy = Envoy::with(&world, &[&gate], true, other.port);
        Self { envoy, gate, clock, _other: other, _world: world }
    }

    fn nested(&self, times: usize, headers: &[(&str, &str)]) -> Vec<u16> {
        statuses(times, || self.envoy.get("/nested", headers))
    }
}

#[test]
fn limits_shadows_and_metrics() {
    let replay = Replay::start();
    let open = [("plan", "a"), ("action", "read")];
    assert_eq!(replay.nested(4, &open), [200, 200, 200, 429]);
    assert_eq!(replay.nested(5, &[("plan", "a"), ("action", "free")]), [200; 5]);

    let dark = [("plan", "a"), ("action", "dark")];
    assert_eq!(replay.nested(6, &dark), [200; 6]);
    assert_eq!(replay.envoy.get("/nested", &dark).header("x-ratelimit-remaining"), Some("0"));

    assert_eq!(statuses(3, || replay.envoy.get("/key", &[("key", "some_value")])), [200, 200, 429]);
    let metrics = get(replay.gate.http, "/metrics", &[]).body;
    // The script takes all that begins so, and has room for one.
    let is_over = |line: &&str| {
        line.starts_with("ratelimit_service_rate_limit_over_limit") && line.contains("key_some_value")
    };
    let over: Vec<_> = metrics.lines().filter(is_over).collect();
    assert!(matches!(over[..], [line] if line.ends_with("} 1")), "{over:?}");
}

#[test]
fn limits_that_replace_others() {
    let replay = Replay::start();
    let banned = [("plan", "a"), ("action", "banned")];
    assert_eq!(replay.nested(1, &banned), [429]);
    assert_eq!(replay.nested(1, &[&banned[..], &[("from", "inside"), ("to", "plain")]].concat()), [429]);
    let open = [&banned[..], &[("from", "inside"), ("to", "open")]].concat();
    assert_eq!(replay.nested(3, &open), [200, 200, 429]);

    let vip = [("plan", "b"), ("action", "vip")];
    let replaced = [&vip[..], &[("from", "inside"), ("to", "vip")]].concat();
    assert_eq!(replay.nested(3, &replaced), [200, 200, 429]);
    // The limit that was replaced is still full.
    let not_replaced = [&vip[..], &[("from", "inside"), ("to", "nowhere")]].concat();
    assert_eq!(replay.nested(2, &not_replaced), [200, 429]);
    assert_eq!(replay.nested(1, &replaced), [429]);

    let guest = [&vip[..], &[("from", "inside"), ("to", "guest")]].concat();
    let staff = [&guest[..], &[("group", "staff")]].concat();
    assert_eq!(replay.nested(5, &staff), [200, 200, 200, 200, 429]);
    assert_eq!(replay.nested(2, &[("plan", "c"), ("action", "vip")]), [200, 429]);
    let guest = [("plan", "c"), ("action", "other"), ("from", "inside"), ("to", "guest")];
    assert_eq!(replay.nested(3, &guest), [200, 200, 429]);
    assert_eq!(replay.nested(1, &staff), [429]);
}

#[test]
fn quotas_deny_when_all_are_used_up() {
    let replay = Replay::start();
    assert_eq!(statuses(3, || replay.envoy.get("/quota", &[])), [200, 200, 429]);
    replay.clock.advance_ms(60_000);
    assert_eq!(replay.envoy.get("/quota", &[]).status, 200);
}

#[test]
fn quotas_that_are_paid_when_a_request_is_done() {
    let replay = Replay::start();
    let paid = || get_and_report(&replay.gate, 1, || replay.envoy.get("/tokens", &[])).status;
    assert_eq!([paid(), paid(), paid(), paid()], [200, 200, 200, 429]);
    replay.clock.advance_ms(60_000);
    assert_eq!(paid(), 200);
}

#[test]
fn metadata_choose_the_service_that_has_quota_left() {
    let replay = Replay::start();
    let served = || {
        let reply = get_and_report(&replay.gate, 1, || replay.envoy.get("/services", &[]));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body.trim().to_owned()
    };
    let (one, two) = ("from the backend", "from the other");
    assert_eq!([served(), served(), served(), served(), served()], [one, one, two, two, two]);
    // Nobody served it: there is no report.
    assert_eq!(replay.envoy.get("/services", &[]).status, 429);
    replay.clock.advance_ms(60_000);
    assert_eq!(served(), one);
}
