"""Calls of one of several alternatives: what is held where, whatever becomes of the reply."""

from __future__ import annotations

import pytest

from conftest import Make
from launch import ask
from proxy import Proxy
from services import Service, wait_for
from tokenbucket import Limit

STILL = "10/h"
LIMITS = {
    "common": Limit(100, STILL),
    "a:slots": Limit(1, 0),
    "a:tokens": Limit(10, STILL),
    "b:slots": Limit(1, 0),
    "b:tokens": Limit(10, STILL),
}
EITHER = [{"common": 1, "a:slots": 1, "a:tokens": 4}, {"common": 1, "b:slots": 1, "b:tokens": 4}]

pytestmark = [pytest.mark.usefixtures("admin"), pytest.mark.anyio]


def held(server: Service, name: str = "x") -> list[str]:
    """Which limits have holds."""
    return [which for which in LIMITS if ask(server, "TB.HOLDS", f"tb:{{{name}}}:{which}")]


def test_the_parts_of_what_is_taken_or_denied_are_reported(make: Make, server: Service) -> None:
    reported: list[tuple[int, bool]] = []
    limiter = make(
        server,
        {"common": Limit(9, STILL), "a": Limit(1, STILL), "b": Limit(2, STILL)},
        on_decision=lambda _, limit, decision, __: reported.append((limit.capacity, decision.allowed)),
    )
    either = [{"common": 1, "a": 1}, {"common": 1, "b": 1}]
    *_, taken, denied = [limiter.take_any("x", either) for _ in range(4)]
    second = [(9, True), (2, True)]
    assert reported == [(9, True), (1, True), *second, *second, (9, False), (1, False), (2, False)]
    assert sorted(limiter.headers(taken)) == ["RateLimit", "RateLimit-Policy"]
    assert sorted(limiter.headers(denied)) == ["Retry-After"]


@pytest.mark.parametrize("common", [1, 0])
def test_a_hold_that_the_server_has_elsewhere_is_ended_there(
    make: Make, server: Service, proxy: Proxy, common: int
) -> None:
    """The server granted the second, and its reply came too late: the process decided for the first."""
    either = [{**EITHER[0], "common": common}, EITHER[1]]
    limiter = make(proxy, LIMITS, on_error="local", timeout_ms=200, retry_every_ms=50)
    blocking = make(server, LIMITS).hold_any("x", EITHER, ttl_ms=600_000)
    wait_for(lambda: not limiter.take_all("y", {"common": 0}).degraded, "a connection")
    proxy.in_part = "TB.HOLDANY"
    with limiter.hold_any("x", either, ttl_ms=600_000) as hold:
        assert (hold.decision.granted, hold.decision.degraded) == (1, True)
        wait_for(lambda: "b:slots" in held(server), "the hold of nobody")
        proxy.in_part = ""
        proxy.drop_connections()
        wait_for(lambda: not limiter.take_all("y", {"common": 0}).degraded, "the server")
        wait_for(lambda: "b:slots" not in held(server), "its end")
        # What fills up the first is no part of its hold.
        assert len(ask(server, "TB.HOLDS", "tb:{x}:common")) == 1 + common
        assert "a:slots" in held(server)
        hold.used = 0
    blocking.settle(0)
    wait_for(lambda: held(server) == [], "the settlement")


def test_a_hold_of_an_alternative_that_wants_nothing_is_settled(make: Make, server: Service) -> None:
    hold = make(server, LIMITS).hold_any("x", [{"a:slots": 0}, {"b:slots": 1}])
    settled = hold.settle()
    assert (hold.decision.granted, settled.allowed, hold.lost) == (1, True, False)


def test_in_shadow_mode_what_is_denied_passes_as_the_first(make: Make, server: Service) -> None:
    limiter = make(server, LIMITS, shadow=True)
    tokens = [{"a:tokens": 6}, {"b:tokens": 6}]
    seen = [(taken.granted, taken.shadowed) for taken in (limiter.take_any("x", tokens) for _ in range(3))]
    assert seen == [(1, False), (2, False), (1, True)]
    hold = limiter.hold_any("x", tokens)
    assert (hold.decision.granted, hold.decision.shadowed, hold.settle().allowed) == (1, True, True)
    assert held(server) == []
