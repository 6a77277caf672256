"""What limiters keep to themselves: denials, and tokens in batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import tokenbucket
from conftest import Make
from services import Service
from tokenbucket import Limit
from tokenbucket.testing import FakeServer

STILL = "10/h"

pytestmark = pytest.mark.usefixtures("admin")

Asked = Callable[[], int]


@pytest.fixture
def asked(admin: redis.Redis) -> Asked:
    """How many commands of the module the server has executed since the last question."""
    admin.config_resetstat()

    def count() -> int:
        stats = admin.info("commandstats")
        admin.config_resetstat()
        return sum(one["calls"] for name, one in stats.items() if name.lower().startswith("cmdstat_tb."))

    return count


def test_a_denied_name_is_refused_without_asking(make: Make, server: Service, asked: Asked) -> None:
    limiter = make(server, Limit(3, STILL), remember_denials=10)
    decisions = [limiter.take("a") for _ in range(50)]
    assert [decision.allowed for decision in decisions] == [True] * 3 + [False] * 47
    assert asked() == 4
    assert all(350_000 < denied.retry_after_ms <= 360_000 for denied in decisions[3:])
    assert not any(denied.degraded for denied in decisions)
    assert limiter.take("b").allowed


def test_a_denial_of_a_large_cost_says_nothing_about_a_small_one(
    make: Make, server: Service, asked: Asked
) -> None:
    limiter = make(server, Limit(3, STILL), remember_denials=10)
    limiter.take("a")
    assert not limiter.take("a", 3).allowed
    assert asked() == 2
    assert limiter.take("a", 2).allowed
    assert asked() == 1


def test_denials_of_so_many_names_are_remembered(make: Make, server: Service, asked: Asked) -> None:
    limiter = make(server, Limit(0, STILL), remember_denials=10)
    one = make(server, Limit(1, STILL), remember_denials=2)
    for name in "abc":
        one.take(name)
        one.take(name)
    asked()
    assert not any(one.take(name).allowed for name in "bc")
    assert asked() == 0
    one.take("a")
    assert asked() == 1, "the oldest was forgotten"
    assert limiter.take("never").retry_after_ms == -1


def test_who_gives_back_may_take_again(make: Make, server: Service) -> None:
    limiter = make(server, Limit(1, STILL), remember_denials=10)
    limiter.take("a")
    assert not limiter.take("a").allowed
    limiter.give("a", 1)
    assert limiter.take("a").allowed


def test_a_remembered_denial_outlives_a_del_and_ends_with_a_reset(
    make: Make, server: Service, admin: redis.Redis
) -> None:
    limiter = make(server, Limit(1, STILL), remember_denials=10)
    limiter.take("a")
    assert not limiter.take("a").allowed
    assert admin.delete("tb:a") == 1
    assert not limiter.take("a").allowed
    limiter.reset("a")
    assert limiter.take("a").allowed


@pytest.mark.parametrize("batch", [0, 5])
def test_a_remembered_denial_ends_with_a_hold_that_is_settled(
    make: Make, server: Service, batch: int
) -> None:
    limiter = make(server, Limit(3, STILL), remember_denials=10, batch=batch)
    with limiter.hold("a", 3) as hold:
        assert not limiter.take("a").allowed
        hold.used = 1
    assert limiter.take("a").allowed


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


def test_a_batch_is_fetched_at_once_and_spent_here(make: Make, server: Service, asked: Asked) -> None:
    limiter = make(server, Limit(100, STILL), batch=10)
    decisions = [limiter.take("a") for _ in range(30)]
    assert all(decision.allowed for decision in decisions)
    assert [decision.remaining for decision in decisions] == list(range(99, 69, -1))
    assert asked() == 3


@pytest.mark.parametrize("batch", [2, 7, 100])
def test_batches_never_grant_more_than_there_is(make: Make, server: Service, batch: int) -> None:
    limiters = [make(server, Limit(50, STILL), batch=batch) for _ in range(3)]
    with ThreadPoolExecutor(24) as threads:
        decisions = list(threads.map(lambda call: limiters[call % 3].take("a"), range(300)))
    # Every limiter went on until it was denied: nothing lies unused.
    assert sum(decision.allowed for decision in decisions) == 50
    assert not any(decision.degraded for decision in decisions)


def test_a_batched_denial_says_when_to_come_back(make: Make, server: Service) -> None:
    limiter = make(server, Limit(5, STILL), batch=4)
    assert [limiter.take("a", 2).allowed for _ in range(3)] == [True, True, False]
    denied = limiter.take("a", 2)
    assert denied.remaining == 1
    assert 350_000 < denied.retry_after_ms <= 360_000, "one token is here, one is lacking"
    assert limiter.take("a").allowed


def test_what_a_batch_cannot_hold_is_taken_as_ever(make: Make, server: Service) -> None:
    limiter = make(server, Limit(100, STILL), batch=4)
    limiter.take("a")
    assert limiter.take("a", 50).remaining == 46
    assert limiter.take("a", 0.5).remaining == 45


def test_what_is_left_of_batches_is_given_back(make: Make, server: Service, admin: redis.Redis) -> None:
    limiter = make(server, Limit(100, STILL), batch=10)
    limiter.take("a")
    limiter.take("b", 3)
    close = limiter.close if isinstance(limiter, tokenbucket.Limiter) else limiter.aclose
    close()
    ask: Any = admin.execute_command
    left = [ask("TB.PEEK", f"tb:{name}", 100, STILL, 0)[1] for name in "ab"]
    assert left == [99, 97]


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


def test_batches_and_denials_go_together(make: Make, server: Service, asked: Asked) -> None:
    limiter = make(server, Limit(20, STILL), batch=10, remember_denials=5)
    decisions = [limiter.take("a") for _ in range(100)]
    assert sum(decision.allowed for decision in decisions) == 20
    assert asked() == 4, "three fetches, and a look at what the last one lacks"


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
