"""Every call does what its name says, and a mistake is an error whatever `on_error` says."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Package, eventually, level
from drivers import DriverError
from launch import ask
from services import Service


@pytest.fixture
def limited(package: Package, server: Service) -> Package:
    """With limiter "l" of ten tokens."""
    package.server(server, timeout_ms=5000)
    package.limiter(capacity=10, rate="10/h", connect=False, on_error="open")
    return package


def test_a_hold_that_is_gone_is_charged_what_it_used(limited: Package, server: Service) -> None:
    assert limited.do("hold", amount=5)["allowed"]
    ask(server, "DEL", "tb:user")
    limited.do("settle", used=4)
    assert level(server) == 6


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"cost": -1}, "cost"),
    ({"name": "text"}, "WRONGTYPE|wrong kind"),
    ({"on": "pool"}, "rate"),
]


def test_a_mistake_is_an_error_although_the_limiter_fails_open(limited: Package, server: Service) -> None:
    ask(server, "SET", "tb:text", "hello")
    limited.limiter("pool", capacity=1, rate="0", connect=False, on_error="open")
    for words, says in MISTAKES:
        with pytest.raises(DriverError, match=says):
            limited.do("take", **words)
    assert limited.take(cost=10)["allowed"]


def test_a_mistake_is_an_error_while_the_server_is_away(package: Package, server: Service) -> None:
    package.server(server, retry_every_ms=100_000)
    policies = ("local", "open", "closed", "raise")
    for policy in policies:
        package.limiter(policy, capacity=10, rate="10/h", on_error=policy)
        package.limiter(f"{policy} pool", capacity=10, rate="0", on_error=policy, connect=False)
    server.stop()
    mistakes: list[tuple[str, str, dict[str, Any]]] = [
        *(("take", "", {"cost": -1}), ("take", "", {"cost": 1e13}), ("take_up_to", "", {"amount": 0})),
        *(("take", " pool", {}), ("charge", " pool", {"amount": 1})),
    ]
    for policy in policies:
        for operation, on, words in mistakes:
            with pytest.raises(DriverError, match=r"(?i)must be|is not|pool") as error:
                package.do(operation, on=f"{policy}{on}", **words)
            assert error.value.kind != "ServerAway"


def test_who_may_not_call_is_told_although_the_limiter_fails_open(package: Package, server: Service) -> None:
    ask(server, "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@connection", "+info", "+tb.peek")
    ask(server, "ACL", "SETUSER", "default", ">right", "resetpass", ">secret")
    for user in ("", "default:wrong@", "reader:secret@"):
        package.server(server, url=f"redis://{user}127.0.0.1:{server.port}")
        package.limiter(capacity=10, rate="10/h", connect=False, on_error="open")
        with pytest.raises(DriverError, match=r"(?i)auth|password|permission"):
            eventually(lambda: not package.take()["allowed"])
