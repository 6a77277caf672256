"""Every call does what its name says, and a mistake is an error whatever `on_error` says."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import TOKEN_MS, Package, eventually, level
from drivers import DriverError
from launch import ask
from services import Service


@pytest.fixture
def limited(package: Package, server: Service) -> Package:
    """With limiter "l" of ten tokens."""
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=10, rate="10/h", connect=False, on_error="open")
    return package


def test_a_decision_says_what_is_left_and_when_to_come_back(limited: Package) -> None:
    taken = limited.take(cost=4)
    assert (taken["allowed"], taken["remaining"], taken["retry_after_ms"]) == (True, 6, 0)
    denied = limited.take(cost=7)
    assert (denied["allowed"], denied["remaining"], denied["degraded"]) == (False, 6, False)
    assert 0.8 * TOKEN_MS < denied["retry_after_ms"] <= TOKEN_MS
    assert limited.take(cost=11)["retry_after_ms"] == -1


def test_tokens_are_taken_as_far_as_they_go_charged_and_given(limited: Package) -> None:
    assert [limited.do("take_up_to", amount=8)["granted"] for _ in range(3)] == [8, 2, 0]
    assert limited.do("charge", amount=5)["remaining"] == -5
    assert not limited.take(cost=0)["allowed"]
    assert limited.do("give", amount=7)["remaining"] == 2
    assert limited.do("give", amount=100)["remaining"] == 10, "never above the capacity"


def test_of_several_limits_all_are_taken_or_none(limited: Package, server: Service) -> None:
    limited.joint({"requests": [3, "3/h"], "tokens": [100, "100/h"]})
    words = {"on": "j", "costs": {"requests": 1, "tokens": 60}}
    taken, denied = (limited.do("take_all", **words) for _ in range(2))
    assert (taken["allowed"], denied["allowed"]) == (True, False)
    each = {name: (one["allowed"], one["remaining"]) for name, one in denied["each"].items()}
    assert each == {"requests": (True, 2), "tokens": (False, 40)}
    assert ask(server, "EXISTS", "tb:{user}:requests", "tb:{user}:tokens") == 2


def test_a_hold_is_settled_by_what_was_used(limited: Package, server: Service) -> None:
    for used, left in ((3, 7), (0, 7), (9, -2)):
        assert limited.do("hold", amount=2)["allowed"]
        limited.do("settle", used=used)
        assert level(server) == left
    denied = limited.do("hold", amount=5)
    assert (denied["allowed"], level(server)) == (False, -2)


def test_a_hold_that_is_gone_is_charged_what_it_used(limited: Package, server: Service) -> None:
    assert limited.do("hold", amount=5)["allowed"]
    ask(server, "DEL", "tb:user")
    limited.do("settle", used=4)
    assert level(server) == 6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"cost": -1}, "cost"),
        ({"name": "text"}, "WRONGTYPE|wrong kind"),
        ({"on": "pool"}, "rate"),
    ],
)
def test_a_mistake_is_an_error_although_the_limiter_fails_open(
    limited: Package, server: Service, words: dict[str, object], says: str
) -> None:
    ask(server, "SET", "tb:text", "hello")
    limited.limiter("pool", capacity=1, rate="0", connect=False, on_error="open")
    with pytest.raises(DriverError, match=says):
        limited.do("take", **words)
    assert limited.take(cost=10)["allowed"]


@pytest.mark.parametrize("policy", ["local", "open", "closed", "raise"])
def test_a_mistake_is_an_error_while_the_server_is_away(
    package: Package, server: Service, policy: str
) -> None:
    package.server(server, retry_every_ms=100_000)
    package.limiter(capacity=10, rate="10/h", on_error=policy)
    package.limiter("pool", capacity=10, rate="0", on_error=policy, connect=False)
    server.stop()
    mistakes: list[tuple[str, dict[str, Any]]] = [
        *(("take", {"cost": -1}), ("take", {"cost": 1e13}), ("take_up_to", {"amount": 0})),
        *(("take", {"on": "pool"}), ("charge", {"on": "pool", "amount": 1})),
    ]
    for operation, words in mistakes:
        with pytest.raises(DriverError, match=r"(?i)must be|is not|pool") as error:
            package.do(operation, **words)
        assert error.value.kind != "ServerAway"


@pytest.mark.parametrize("user", ["", "default:wrong@", "reader:secret@"])
def test_who_may_not_call_is_told_although_the_limiter_fails_open(
    package: Package, server: Service, user: str
) -> None:
    ask(server, "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@connection", "+info", "+tb.peek")
    ask(server, "ACL", "SETUSER", "default", ">right", "resetpass", ">secret")
    package.server(server, url=f"redis://{user}127.0.0.1:{server.port}")
    package.limiter(capacity=10, rate="10/h", connect=False, on_error="open")
    with pytest.raises(DriverError, match=r"(?i)auth|password|permission"):
        eventually(lambda: not package.take()["allowed"])
