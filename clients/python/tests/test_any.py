"""Calls of one of several alternatives: what is held where, whatever becomes of the reply."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import tokenbucket.asyncio
from conftest import Make
from launch import ask
from proxy import Proxy
from services import Service, wait_for
from tokenbucket import Decision, JointLimiter, Limit, Server

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


def test_the_first_that_allows_is_taken_and_its_parts_are_reported(make: Make, server: Service) -> None:
    reported: list[tuple[str, Limit, int]] = []
    limits = {"common": Limit(9, STILL), "a": Limit(1, STILL), "b": Limit(2, "20/h")}
    limiter = make(
        server,
        limits,
        on_decision=lambda name, limit, decision, _: reported.append((name, limit, bool(decision))),
    )
    either = [{"common": 1, "a": 1}, {"common": 1, "b": 1}]
    decisions: list[Decision] = [limiter.take_any("x", either) for _ in range(4)]
    assert [decision.granted for decision in decisions] == [1, 2, 2, 0]
    assert [{which: one.remaining for which, one in decision.each.items()} for decision in decisions] == [
        {"common": 8, "a": 0},
        {"common": 7, "b": 1},
        {"common": 6, "b": 0},
        {},  # the reply does not say which is allowed first
    ]
    assert decisions[3].retry_after_ms > 0
    assert sorted(limiter.headers(decisions[3])) == ["Retry-After"]
    assert sorted(limiter.headers(decisions[2])) == ["RateLimit", "RateLimit-Policy"]
    common, a, b = limits.values()
    assert reported[:4] == [("x", common, 1), ("x", a, 1), ("x", common, 1), ("x", b, 1)]
    assert reported[6:] == [("x", common, 0), ("x", a, 0), ("x", b, 0)]


def test_what_fills_up_an_alternative_is_neither_renewed_nor_settled(make: Make, server: Service) -> None:
    limiter = make(server, LIMITS)
    hold = limiter.hold_any("x", [{"a:slots": 1, "a:tokens": 0}, {"b:slots": 1, "b:tokens": 1}])
    assert hold.decision.granted == 1
    settled = hold.settle()
    assert (settled.allowed, [*settled.each]) == (True, ["a:slots"]), settled
    nothing = limiter.hold_any("x", [{"a:slots": 0, "a:tokens": 0}])
    assert (nothing.allowed, nothing.settle().degraded) == (True, False)
    charged = limiter.hold_any("x", [{"a:slots": 1, "a:tokens": "0"}])
    assert charged.settle({"a:tokens": 4}).each["a:tokens"].remaining == 6


@pytest.mark.parametrize("common", [1, 0])
def test_a_hold_that_the_server_has_elsewhere_is_ended_there(
    make: Make, server: Service, proxy: Proxy, common: int
) -> None:
    """The server granted the second, and its reply came too late: the process decided for the first."""
    either = [{**EITHER[0], "common": common}, EITHER[1]]
    limiter = make(proxy, LIMITS, on_error="local", timeout_ms=200, retry_every_ms=50)
    other = JointLimiter(Server(f"redis://127.0.0.1:{server.port}"), LIMITS)
    blocking = other.hold_any("x", EITHER, ttl_ms=600_000)
    assert limiter.take_all("y", {"common": 1}).allowed
    proxy.in_part = "TB.HOLDANY"
    with limiter.hold_any("x", either, ttl_ms=600_000) as hold:
        assert (hold.decision.granted, hold.decision.degraded) == (1, True)
        wait_for(lambda: "b:slots" in held(server), "the hold of nobody")
        proxy.in_part = ""
        proxy.drop_connections()
        wait_for(lambda: limiter.take_all("y", {"common": 0}).degraded is False, "the server")
        wait_for(lambda: "b:slots" not in held(server), "its end")
        # What fills up the first is no part of its hold.
        assert len(ask(server, "TB.HOLDS", "tb:{x}:common")) == 1 + common
        assert "a:slots" in held(server)
        hold.used = 0
    blocking.settle(0)
    wait_for(lambda: held(server) == [], "the settlement")
    other.close()


@pytest.mark.parametrize(("on_error", "granted"), [("open", 1), ("closed", 0)])
def test_without_a_server_the_policy_decides(make: Make, proxy: Proxy, on_error: Any, granted: int) -> None:
    limiter = make(proxy, LIMITS, on_error=on_error)
    proxy.redirect(1)
    proxy.drop_connections()
    decision = limiter.take_any("x", [{"a:tokens": 1}, {"b:tokens": 1}])
    assert (decision.granted, decision.degraded, decision.each) == (granted, True, {})
    hold = limiter.hold_any("x", EITHER)
    assert (hold.decision.granted, hold.amounts) == (granted, EITHER[0] if granted else {})
    hold.settle()


def test_in_shadow_mode_what_is_denied_passes_as_the_first(make: Make, server: Service) -> None:
    limiter = make(server, LIMITS, shadow=True)
    tokens = [{"a:tokens": 6}, {"b:tokens": 6}]
    decisions = [limiter.take_any("x", tokens) for _ in range(3)]
    assert [(decision.granted, decision.shadowed) for decision in decisions] == [
        (1, False),
        (2, False),
        (1, True),
    ]
    hold = limiter.hold_any("x", tokens)
    assert (hold.decision.granted, hold.decision.shadowed, hold.settle().allowed) == (1, True, True)
    assert held(server) == []


async def test_a_task_that_is_cancelled_anywhere_leaves_nothing_held(server: Service, proxy: Proxy) -> None:
    proxy.delay_s = 0.0005
    draw = random.Random(1)

    async def work(limiter: Any) -> None:
        async with limiter.hold_any("x", EITHER, ttl_ms=600_000) as hold:
            hold.used = 0
            await asyncio.sleep(0.001)

    on = tokenbucket.asyncio.Server(proxy.url, timeout_ms=20_000, retry_every_ms=50)
    async with tokenbucket.asyncio.JointLimiter(on, LIMITS, on_error="raise") as limiter:
        await work(limiter)
        for at in range(200):
            tasks = [asyncio.create_task(work(limiter)) for _ in range(2)]
            if at % 2:
                await asyncio.sleep(draw.uniform(0, 0.006))
            else:  # at each step of the event loop
                for _ in range(at // 2):
                    await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(20):
            while held(server):
                await limiter.take_all("y", {"common": 0})
                await asyncio.sleep(0.02)
