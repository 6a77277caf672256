"""A mistake is an error whatever `on_error` says."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from conftest import Package, eventually
from drivers import DriverError
from launch import ask
from services import Service


def test_a_mistake_is_an_error_under_every_policy(package: Package, server: Service) -> None:
    package.server(server, retry_every_ms=100_000)
    policies = ("local", "open", "closed", "raise")
    for policy in policies:
        package.limiter(policy, capacity=10, rate="10/h", on_error=policy)
        package.limiter(f"{policy} pool", capacity=10, rate="0", on_error=policy, connect=False)
    ask(server, "SET", "tb:text", "hello")
    mistakes: list[tuple[str, str, dict[str, Any]]] = [
        *(("take", "", {"cost": -1}), ("take", "", {"cost": 1e13}), ("take_up_to", "", {"amount": 0})),
        *(("take", " pool", {}), ("charge", " pool", {"amount": 1})),
    ]
    of_the_server = ("take", "", {"name": "text"})
    for is_there, policy in product((True, False), policies):
        if not is_there:
            server.stop()
        for operation, on, words in [*mistakes, *[of_the_server] * is_there]:
            with pytest.raises(DriverError, match=r"(?i)must be|is not|pool|rate|wrong") as error:
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
