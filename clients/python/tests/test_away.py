"""Outages, and holds whose reply was lost, that were interrupted, forked or not asked for."""

from __future__ import annotations

import importlib
import os
import time
import traceback
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio

import tokenbucket
import tokenbucket.asyncio
from conftest import DRIVERS, Make
from proxy import Proxy
from services import Service, wait_for
from tokenbucket import BadArgument, Decision, Limit, Limiter, TokenBucketError
from tokenbucket.api.operations import done

STILL = "10/h"
# In a text, it would not look like an argument's end. A URL takes its part before the slash for a port.
SECRET = "s3cret>)>)> - Auth/word"
LIMITS = {"requests": Limit(5, STILL), "tokens": Limit(100, STILL), "inflight": Limit(2, 0)}
AMOUNTS = {"requests": 1, "tokens": 80, "inflight": 1}

pytestmark = [pytest.mark.usefixtures("admin"), pytest.mark.anyio]


def test_a_reset_without_the_server_is_one_of_this_process(make: Make, own_server: Service) -> None:
    limiter = make(own_server, Limit(10, STILL), on_error="local", retry_every_ms=60_000)
    assert limiter.take("a", 10).allowed
    own_server.stop()
    assert [limiter.take("a", 5).allowed for _ in range(3)] == [True, True, False]
    reset = limiter.reset("a")
    assert (reset.allowed, reset.degraded) == (False, True), "the server keeps its bucket"
    assert limiter.peek("a", 0).remaining == 10


def test_a_timeout_may_be_longer_than_the_system_counts(make: Make, server: Service) -> None:
    assert not make(server, Limit(10, STILL), timeout_ms=1e12).take("a").degraded


def test_an_unknown_client_is_refused(make: Make) -> None:
    for client in (object(), {"host": "localhost"}, "http://localhost", f"redis://:{SECRET}@localhost", make):
        for package in (tokenbucket, tokenbucket.asyncio):
            with pytest.raises(BadArgument, match="client") as mistake:
                package.Limiter(client, Limit(1, 1))
            assert "s3cret" not in text_of(mistake.value)
    with pytest.raises(BadArgument, match=r"tokenbucket\.asyncio"):
        tokenbucket.Limiter(redis.asyncio.Redis(), Limit(1, 1))
    with pytest.raises(BadArgument, match="for the limiters of tokenbucket"):
        tokenbucket.asyncio.Limiter(redis.Redis(), Limit(1, 1))


def text_of(error: BaseException) -> str:
    """What a log has of it, with its causes."""
    return "".join(traceback.format_exception(error))


async def take_from_sentinel(driver: str, port: int, password: str | None) -> Decision:
    package: Any = tokenbucket.asyncio if "asyncio" in driver else tokenbucket
    options = {"password": password, "retry": None}
    sentinel = importlib.import_module(f"{driver}.sentinel").Sentinel([("127.0.0.1", port)], 0, options)
    server = package.Server(sentinel.master_for("mymaster", password=SECRET), timeout_ms=20_000)
    limiter = package.Limiter(server, Limit(1, 1), on_error="open")
    try:
        decision: Decision = await done(limiter.take("a"))
        return decision
    finally:
        await done((limiter.aclose if server._is_asynchronous else limiter.close)())


@pytest.mark.parametrize("password", [SECRET, None], ids=["wrong", "none"])
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_password_that_sentinel_refuses_is_no_outage_and_in_no_text(
    driver: str, password: str | None, listening: dict[str, Any]
) -> None:
    with pytest.raises(TokenBucketError, match=r"cannot connect .* No master found .*Authentica") as mistake:
        await take_from_sentinel(driver, listening["sentinel"], password)
    assert "s3cret" not in text_of(mistake.value)
    assert "password=" not in text_of(mistake.value)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_the_password_of_a_sentinel_that_is_away_is_in_no_log(
    driver: str, listening: dict[str, Any], caplog: Any
) -> None:
    assert (await take_from_sentinel(driver, listening["closed"], SECRET)).degraded
    assert f"<127.0.0.1:{listening['closed']}> - " in caplog.text
    assert "s3cret" not in caplog.text
    assert "password=" not in caplog.text


def test_limiters_on_one_client_share_its_server() -> None:
    client = redis.Redis()
    one, other = (tokenbucket.Limiter(client, Limit(1, rate)) for rate in (1, 2))
    assert one.server is other.server
    assert tokenbucket.Limiter("redis://a", Limit(1, 1)).server is not one.server


# Holds.


def remaining(limiter: Any) -> Any:
    """What "a" has left: a hold of nothing changes nothing."""
    return limiter.hold("a", dict.fromkeys(LIMITS, 0)).remaining


def test_a_hold_is_sent_again_and_takes_once(make: Make, server: Service, proxy: Proxy) -> None:
    proxy.cut["TB.MHOLD"] = 1
    hold = make(proxy, LIMITS).hold("a", AMOUNTS)
    assert (hold.allowed, hold.decision.degraded) == (True, False)
    assert proxy.commands["TB.MHOLD"] == 2
    assert remaining(make(server, LIMITS)) == {"requests": 4, "tokens": 20, "inflight": 1}


def test_a_renewal_takes_nothing_anew_and_says_what_was_lost(
    make: Make, server: Service, admin: redis.Redis, caplog: Any
) -> None:
    limiter, note = make(server, LIMITS), Mock(side_effect=RuntimeError("of a caller"))
    with limiter.hold("a", AMOUNTS, ttl_ms=600) as hold:
        hold.on_lost = note
        admin.flushall()
        wait_for(lambda: hold.lost, "the renewal")
        hold._renew_now()
        assert not hold.allowed
        assert remaining(limiter) == {"requests": 5, "tokens": 100, "inflight": 2}
        hold.used = {"requests": 1, "tokens": 30}
    assert remaining(limiter) == {"requests": 4, "tokens": 70, "inflight": 2}
    note.assert_called_once()
    assert "a hold of tb:{a}:requests was lost" in caplog.text


def test_a_hold_whose_renewals_are_refused_is_lost_when_its_time_is_over(
    make: Make, server: Service, admin: redis.Redis
) -> None:
    with make(server, Limit(1, 0)).hold("a", 1, ttl_ms=900) as hold:
        began = time.monotonic()
        assert admin.rename("tb:a", "elsewhere")
        admin.set("tb:a", "of another type")
        wait_for(lambda: hold.lost, "the end of its time")
        assert time.monotonic() - began > 0.5, "the first refusal says nothing about the hold"
        admin.delete("tb:a")


def test_a_part_that_holds_nothing_is_not_lost(make: Make, server: Service) -> None:
    hold = make(server, LIMITS).hold("a", {"requests": 1, "tokens": 0})
    hold._renew_now()
    assert (hold.allowed, hold.lost) == (True, False)


def test_a_forked_process_leaves_the_holds_of_its_parent_alone(server: Service, admin: redis.Redis) -> None:
    limiter = Limiter(f"redis://127.0.0.1:{server.port}", Limit(5, STILL))
    hold = limiter.hold("a", 2)
    child = os.fork()
    if child == 0:
        try:
            hold.settle()
            limiter.take("a")
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert limiter.peek("a", 0).remaining == 2
    hold.settle(0)
    assert limiter.peek("a", 0).remaining == 4
