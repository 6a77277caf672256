"""The rules and constants that the packages share are those of this package."""

from __future__ import annotations

import inspect
import json
from fractions import Fraction
from typing import Any

import pytest

from paths import REPOSITORY
from tokenbucket import Server
from tokenbucket.api import operations, unsettled
from tokenbucket.local.limiter import Buckets
from tokenbucket.transport import driver, node, server
from tokenbucket.values.errors import AWAY, REFUSING, ReplyError

RULES: dict[str, Any] = json.loads((REPOSITORY / "clients/conformance/rules.json").read_text())


@pytest.mark.parametrize(("cost", "micros"), RULES["costs"].items())
def test_an_amount_is_read_as_the_module_reads_it(cost: str, micros: int | None) -> None:
    buckets = Buckets(lambda: Fraction(0))
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
    word = ReplyError(line).word
    assert fault == ("away" if word in AWAY else "refusing" if word in REFUSING else "caller")


def test_the_bounds_are_those_of_all() -> None:
    shares, longest = RULES["shares"], RULES["longest_ms"]
    assert shares["most_bytes"] == operations.MOST_SHARE_BYTES
    assert (shares["least_weight"], shares["most_weight"]) == (
        str(operations.LEAST_WEIGHT),
        str(operations.MOST_WEIGHT),
    )
    assert longest["wait"] == longest["hold"] == operations.LONGEST_MS


def test_the_constants_are_those_of_all() -> None:
    options = inspect.signature(Server).parameters
    assert RULES["constants"] == {
        "timeout_ms": options["timeout_ms"].default,
        "retry_every_ms": options["retry_every_ms"].default,
        "connect_within_ms": 1000 * driver.CONNECT_WITHIN_S,
        "pulse_of_a_wait_ms": 1000 * node.PULSE_S,
        "looked_at_if_idle_for_ms": 1000 * node.IDLE_S,
        "settled_again_after_ms": 1000 * unsettled.AGAIN_S,
        "most_unsettled_holds": unsettled.MOST_UNSETTLED,
        "most_redirections": server._MOST_REDIRECTIONS,
        "tries_of_a_split_slot": server._TRIES_OF_A_SPLIT_SLOT,
    }
