"""Limits, headers, and the rules that all packages share, which need no server."""

from __future__ import annotations

import inspect
import json
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from paths import REPOSITORY
from tokenbucket import BadArgument, Decision, JointLimiter, Limit, Limiter, Server
from tokenbucket.local.limiter import LocalLimiter
from tokenbucket.testing import FakeServer
from tokenbucket.values import constants
from tokenbucket.values.errors import ReplyError


def test_a_limit_is_read_from_text() -> None:
    assert Limit.parse("20 10/s") == Limit("20", "10/s")
    with pytest.raises(ValueError, match="capacity and a rate"):
        Limit.parse("20")


@pytest.mark.parametrize(
    ("limit", "window_s"),
    [
        (Limit(10, 0.25), 40),
        (Limit(1, "3/s"), 1),
        (Limit(10, "1/250ms"), 3),
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
        Decision(True, remaining=7, retry_after_ms=400, reset_after_ms=1501),
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
    # An operator's override counts.
    (Decision(True, remaining=10, reset_after_ms=500), Limit(9.5, 1), {"RateLimit": '"default";r=10;t=1'}),
    (Decision(True, degraded=True), POOL, {}),
    (Decision(False, degraded=True, retry_after_ms=500), POOL, {"Retry-After": "1"}),
]


@pytest.mark.parametrize(("decision", "limit", "headers"), HEADERS)
def test_headers_of_a_decision(decision: Decision, limit: Limit, headers: dict[str, str]) -> None:
    assert Limiter(FakeServer(), limit).headers(decision) == headers


def test_joint_headers_have_an_item_for_each_limit_that_the_call_names() -> None:
    limits = {"": Limit(60, "60/m"), "day": Limit(500, "500@d"), "other": POOL}
    limiter = JointLimiter(FakeServer(), limits)
    assert limiter.headers(limiter.take_all("alice", {"": 1, "day": 1})) == {
        "RateLimit-Policy": '"";q=60;w=60, "day";q=500;w=86400',
        "RateLimit": '"";r=59;t=1, "day";r=499;t=86400',
    }


def test_joint_headers_have_no_policy_in_place_of_which_an_override_counts() -> None:
    limits = {"minute": Limit(60, "60/m"), "day": Limit(500, "500@d")}
    of_the_day = Decision(True, remaining=500)
    decision = Decision(True, each={"minute": Decision(True, remaining=4999), "day": of_the_day})
    assert JointLimiter(FakeServer(), limits).headers(decision) == {
        "RateLimit-Policy": '"day";q=500;w=86400',
        "RateLimit": '"minute";r=4999;t=0, "day";r=500;t=0',
    }


# The rules and constants that the packages share.

RULES: dict[str, Any] = json.loads((REPOSITORY / "clients/conformance/rules.json").read_text())


@pytest.mark.parametrize(("cost", "micros"), RULES["costs"].items())
def test_an_amount_is_read_as_the_module_reads_it(cost: str, micros: int | None) -> None:
    buckets = LocalLimiter(lambda: Fraction(0))
    full = 10**12
    reply = buckets.execute("TB.TAKE", "a", full, full, cost)
    if micros is None:
        assert isinstance(reply, ReplyError)
        return
    assert reply[0] == 1
    # How long an empty bucket of a millionth a second takes to have that much again.
    buckets.execute("TB.CHARGE", "b", 1, "1e-6", cost)
    assert buckets.execute("TB.PEEK", "b", 1, "1e-6", 1)[2] == 1000 * micros


@pytest.mark.parametrize(("line", "fault"), RULES["errors"].items())
def test_an_error_means_what_it_means_to_all(line: str, fault: str) -> None:
    error = ReplyError(line)
    assert fault == ("away" if error.is_away else "refusing" if error.is_refusing else "caller")


def test_the_bounds_are_those_of_all() -> None:
    shares, longest = RULES["shares"], RULES["longest_ms"]
    assert shares["most_bytes"] == constants.MOST_SHARE_BYTES
    weights = constants.LEAST_WEIGHT, constants.MOST_WEIGHT
    assert (shares["least_weight"], shares["most_weight"]) == tuple(map(str, weights))
    assert longest["wait"] == longest["hold"] == constants.LONGEST_MS


def test_the_constants_are_those_of_all() -> None:
    options = inspect.signature(Server).parameters
    assert RULES["constants"] == {
        "timeout_ms": options["timeout_ms"].default,
        "retry_every_ms": options["retry_every_ms"].default,
        "connect_within_ms": 1000 * constants.CONNECT_WITHIN_S,
        "pulse_of_a_wait_ms": 1000 * constants.PULSE_S,
        "looked_at_if_idle_for_ms": 1000 * constants.IDLE_S,
        "settled_again_after_ms": 1000 * constants.AGAIN_S,
        "most_unsettled_holds": constants.MOST_UNSETTLED,
        "most_redirections": constants.MOST_REDIRECTIONS,
        "tries_of_a_split_slot": constants.TRIES_OF_A_SPLIT_SLOT,
    }


# Calendar rates, read as all packages and the module read them.

LINES = [
    line.split()
    for line in (REPOSITORY / "clients/conformance/rates.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
BOUNDARIES = [(line[0], line[1], line[2]) for line in LINES if len(line) == 3]
REFUSED = [
    *("", "fast", "10/", "10/w", "/s", "10/s/s", "-1", "10/-1s", "1 /s", "10@", "10@fortnight", "10@d+9"),
    *(line[0] for line in LINES if len(line) == 1),
]
NO_NUMBERS = ["", "ten", "-1", -1, "inf", float("nan"), "0x10", "1 0", "\u0661", "1e99999999999999999999"]
NO_LIMITS = [*((one, "1/s", "capacity") for one in NO_NUMBERS), *((10, one, "rate") for one in REFUSED)]


@pytest.mark.parametrize(("rate", "since", "until"), BOUNDARIES)
def test_tokens_come_at_the_boundary(rate: str, since: str, until: str) -> None:
    emptied_at, refilled_at = datetime.fromisoformat(since), datetime.fromisoformat(until)
    server = FakeServer(emptied_at)
    reset_after_ms = (refilled_at - emptied_at) / timedelta(milliseconds=1)
    assert server.execute_command("TB.TAKE", "k", 10, rate, 10) == [1, 0, 0, reset_after_ms]
    server.advance(reset_after_ms / 1000)
    assert server.execute_command("TB.TAKE", "k", 10, rate, 10)[:2] == [1, 0]


@pytest.mark.parametrize(("capacity", "rate", "named"), NO_LIMITS)
def test_what_is_no_capacity_or_no_rate_is_refused(capacity: Any, rate: str, named: str) -> None:
    with pytest.raises(BadArgument, match=f"^{named}: "):
        Limit(capacity, rate)
