"""What limiters do on a real server, by threads and by asyncio, on redis-py and on valkey-py."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import redis

from conftest import Make
from services import Service
from tokenbucket import BadArgument, Decision, Denied, Limit

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"

pytestmark = pytest.mark.usefixtures("admin")


def test_reset_says_what_the_full_bucket_has(make: Make, server: Service) -> None:
    limiter = make(server, Limit("10.5", STILL))
    limiter.take("a", 4)
    reset = limiter.reset("a")
    assert (reset.allowed, reset.remaining, reset.degraded) == (True, 10, False)
    assert limiter.peek("a", 0).remaining == 10
    joint = make(server, {"one": Limit(10, STILL), "other": Limit(3, STILL)})
    assert joint.reset("a").remaining == 3


def test_a_reservation_waits_for_its_turn(make: Make, server: Service) -> None:
    limiter = make(server, Limit(1, "10/s"))
    began = time.monotonic()
    told = [limiter.wait("a", max_wait_ms=5000) for _ in range(4)]
    assert all(decision.allowed for decision in told)
    assert time.monotonic() - began >= 0.3, "the fourth waits until three tokens have flowed in"


def test_a_limit_given_to_a_call_is_for_that_call(make: Make, server: Service) -> None:
    limiter = make(server, Limit(1, STILL))
    assert limiter.take("a", 5, limit=Limit(10, STILL)).remaining == 5
    assert limiter.take("b").remaining == 0


def test_several_limits_may_have_several_names(make: Make, server: Service, admin: redis.Redis) -> None:
    limiter = make(server, {"user": Limit(3, STILL), "team": Limit(9, STILL)}, prefix="")
    limiter.take_all({"user": "u42", "team": "t7"}, {"user": 1, "team": 1})
    assert sorted(admin.keys()) == ["t7:team", "u42:user"]


def test_the_work_of_a_denied_hold_is_not_begun(make: Make, server: Service) -> None:
    limiter = make(server, Limit(10, STILL))
    with limiter.hold("a", 8):
        denied = limiter.hold("a", 8)
        assert not denied.allowed
        with pytest.raises(Denied) as told, denied:
            pytest.fail("let in")
        assert told.value.decision.retry_after_ms > 0


def test_a_use_that_cannot_be_is_an_error_and_the_hold_ends_all_the_same(
    make: Make, server: Service, caplog: Any
) -> None:
    limiter = make(server, {"tokens": Limit(1000, STILL), "slots": Limit(1, 0)})
    wrong: list[Any] = [5, {"token": 5}, {"tokens": -1}, {"tokens": "1e13"}, {"slots": 1}]
    for at, used in enumerate(wrong):
        hold = limiter.hold("a", {"tokens": 100, "slots": 1})
        with pytest.raises(BadArgument, match="used"):
            hold.settle(used)
        with pytest.raises(BadArgument, match="used"), hold:
            hold.used = used
        assert hold.remaining == {"tokens": 900 - 200 * at, "slots": 1}
        with contextlib.suppress(ConnectionError), limiter.hold("a", {"tokens": 100, "slots": 1}) as hold:
            hold.used = used
            raise ConnectionError("which the error of `used` does not hide")
        assert hold.remaining == {"tokens": 800 - 200 * at, "slots": 1}
    assert "used" in caplog.text


def test_every_decision_is_told(make: Make, server: Service) -> None:
    told: list[tuple[str, Limit, Decision]] = []

    def tell(name: str, limit: Limit, decision: Decision, seconds: float) -> None:
        assert 0 <= seconds < 60
        told.append((name, limit, decision))

    limit = Limit(1, STILL)
    limiter = make(server, limit, on_decision=tell)
    decisions = [limiter.take("a"), limiter.take("a"), limiter.peek("b")]
    assert told == [("a", limit, decisions[0]), ("a", limit, decisions[1]), ("b", limit, decisions[2])]
