"""Limits and headers, which need no server."""

from __future__ import annotations

from typing import Any

import pytest

from tokenbucket import Decision, Limit


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


def test_headers_of_one_who_passes() -> None:
    decision = Decision(True, remaining=7, reset_after_ms=1501)
    assert decision.headers(Limit(10, "2/s")) == {
        "RateLimit-Policy": '"default";q=10;w=5',
        "RateLimit": '"default";r=7;t=2',
    }


def test_headers_of_one_who_is_denied() -> None:
    denied = Decision(False, remaining=-3, retry_after_ms=2001, reset_after_ms=6500)
    assert denied.headers(Limit(10, "2/s"), "search") == {
        "RateLimit-Policy": '"search";q=10;w=5',
        "RateLimit": '"search";r=0;t=7',
        "Retry-After": "3",
    }
    never = Decision(False, retry_after_ms=-1, reset_after_ms=10)
    assert "Retry-After" not in never.headers(Limit(10, "2/s"))
    pool = Decision(False, retry_after_ms=10, reset_after_ms=10)
    assert pool.headers(Limit(10, 0))["RateLimit-Policy"] == '"default";q=10'


def test_jitter_goes_only_upwards() -> None:
    denied = Decision(False, retry_after_ms=9500, reset_after_ms=9500)
    told = {int(denied.headers(Limit(1, 1), jitter=0.5)["Retry-After"]) for _ in range(300)}
    assert min(told) >= 10
    assert max(told) <= 15
    assert len(told) > 1


def test_nothing_is_said_of_a_bucket_that_nobody_looked_at() -> None:
    assert Decision(True, degraded=True).headers(Limit(10, 1)) == {}
    assert Decision(False, degraded=True, retry_after_ms=500).headers(Limit(10, 1)) == {"Retry-After": "1"}
