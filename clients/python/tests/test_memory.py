"""What limiters keep to themselves: denials, and tokens in batches."""

from __future__ import annotations

import pytest

import tokenbucket
from services import Service
from tokenbucket import Limit
from tokenbucket.testing import FakeServer

STILL = "10/h"

pytestmark = pytest.mark.usefixtures("admin")


def test_what_a_refused_caller_is_told_counts_down() -> None:
    server = FakeServer()
    limiter = tokenbucket.Limiter(server, Limit(1, "1/10s"), remember_denials=1)
    limiter.take("a")
    assert limiter.take("a").retry_after_ms == 10_000
    server.advance(4)
    assert limiter.take("a").retry_after_ms == 6_000
    server.advance(5.999)
    assert not limiter.take("a").allowed
    server.advance(0.001)
    assert limiter.take("a").allowed


def test_an_idle_process_does_not_spend_stale_tokens() -> None:
    server = FakeServer()
    limiter = tokenbucket.Limiter(server, Limit(10, "1/s"), batch=10)
    other = tokenbucket.Limiter(server, Limit(10, "1/s"))
    assert limiter.take("a").allowed
    server.advance(9.9)
    assert limiter.take("a").allowed, "eight are left, not all of which have flowed in again"
    server.advance(0.2)
    assert other.take("a", 10).allowed
    assert not limiter.take("a").allowed, "the ten that were fetched have flowed in again"


def test_a_batch_that_makes_room_for_others_gives_its_tokens_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenbucket.api.batches.MOST_BATCHES", 10)
    limiter = tokenbucket.Limiter(FakeServer(), Limit(100, STILL), batch=50)
    took = 0
    for _ in range(3):
        took += limiter.take("a").allowed
        for at in range(11):
            limiter.take(f"n{at}")
    while limiter.take("a").allowed:
        took += 1
    assert took == 100


def test_many_names_do_not_fill_a_drained_bucket_while_the_server_is_away(own_server: Service) -> None:
    own_server.stop()
    limiter = tokenbucket.Limiter(f"redis://127.0.0.1:{own_server.port}", Limit(5, STILL))
    assert [limiter.take("a").allowed for _ in range(6)] == [True] * 5 + [False]
    for at in range(10_001):
        assert limiter.take(f"n{at}").degraded
    assert not limiter.take("a").allowed
    limiter.close()
