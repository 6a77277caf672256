"""Limits and headers, which need no server."""

from __future__ import annotations

from typing import Any

import pytest

from tokenbucket import Decision, JointLimiter, Limit, Limiter
from tokenbucket.testing import FakeServer


@pytest.mark.parametrize(
    "capacity", ["", "ten", "-1", -1, "inf", float("nan"), "0x10", "1 0", "\u0661", "1e99999999999999999999"]
)
def test_a_capacity_that_is_no_number_is_refused(capacity: Any) -> None:
    with pytest.raises(ValueError, match="capacity"):
        Limit(capacity, "1/s")


@pytest.mark.parametrize(
    "rate",
    ["", "fast", "10/", "10/w", "/s", "10/s/s", "-1", "10/-1s", "1 /s", "10@", "10@fortnight", "10@d+9"],
)
def test_a_rate_that_is_no_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="rate"):
        Limit(10, rate)


def test_a_limit_is_read_from_text() -> None:
    assert Limit.parse("20 10/s") == Limit("20", "10/s")
    with pytest.raises(ValueError, match="capacity and a rate"):
        Limit.parse("20")


@pytest.mark.parametrize(
    ("limit", "window_s"),
    [
        (Limit(10, "5/s"), 2),
        (Limit(10, 5), 2),
        (Limit(10, 0.25), 40),
        (Limit(1, "3/s"), 1),
        (Limit(100, "100/m"), 60),
        (Limit(10, "1/250ms"), 3),
        (Limit(1000, "1000@d+09:00"), 86_400),
        (Limit(10, "10@15m"), 900),
        (Limit(10, "10@mo+14d+09:00"), 30 * 86_400),
        (Limit(10, "10@3mo"), 90 * 86_400),
        (Limit(10, 0), None),
    ],
)
def test_how_long_a_bucket_takes_to_fill(limit: Limit, window_s: int | None) -> None:
    assert limit.window_s == window_s


POOL = Limit(10, 0)
HEADERS: list[tuple[Decision, Limit, dict[str, str]]] = [
    (
        Decision(True, remaining=7, reset_after_ms=1501),
        Limit(10, "2/s"),
        {"RateLimit-Policy": '"default";q=10;w=5', "RateLimit": '"default";r=7;t=2'},
    ),
    (
        Decision(False, remaining=-3, retry_after_ms=2001, reset_after_ms=6500),
        Limit(10, "2/s"),
        {
            "RateLimit-Policy": '"default";q=10;w=5',
            "RateLimit": '"default";r=0;t=7',
            "Retry-After": "3",
        },
    ),
    (
        Decision(False, retry_after_ms=-1, reset_after_ms=10),
        POOL,
        {"RateLimit-Policy": '"default";q=10', "RateLimit": '"default";r=0;t=1'},
    ),
    (Decision(True, degraded=True), POOL, {}),
    (Decision(False, degraded=True, retry_after_ms=500), POOL, {"Retry-After": "1"}),
]


@pytest.mark.parametrize(("decision", "limit", "headers"), HEADERS)
def test_headers_of_a_decision(decision: Decision, limit: Limit, headers: dict[str, str]) -> None:
    assert Limiter(FakeServer(), limit).headers(decision) == headers


def test_joint_headers_have_an_item_for_each_limit_that_the_call_names() -> None:
    limits = {"minute": Limit(60, "60/m"), "day": Limit(500, "500@d"), "other": POOL}
    limiter = JointLimiter(FakeServer(), limits)
    assert limiter.headers(limiter.take_all("alice", {"minute": 1, "day": 1})) == {
        "RateLimit-Policy": '"minute";q=60;w=60, "day";q=500;w=86400',
        "RateLimit": '"minute";r=59;t=1, "day";r=499;t=86400',
    }
