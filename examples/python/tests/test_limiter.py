"""The limiter class against a real server."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from limiter import HoldLimiter, Limit, Limiter, check_limit, connect
from services import Service, redis_server

pytestmark = pytest.mark.anyio

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"
PATIENT = {"timeout_ms": 5000}


async def test_a_burst_passes_and_the_next_is_denied(redis: Redis):
    limiter = Limiter(redis, "test", Limit(3, STILL), **PATIENT)
    assert [await limiter.is_allowed("a") for _ in range(4)] == [True, True, True, False]
    assert await limiter.is_allowed("b"), "each key has a bucket of its own"


async def test_the_decision_says_what_is_left_and_when_to_come_back(redis: Redis):
    limiter = Limiter(redis, "test", Limit(10, STILL), **PATIENT)
    decision = await limiter.take("a", tokens=4)
    assert (decision.allowed, decision.remaining, decision.retry_after_ms) == (True, 6, 0)
    assert 4 * 360_000 - 10_000 < decision.reset_after_ms <= 4 * 360_000

    denied = await limiter.take("a", tokens=7)
    assert (denied.allowed, denied.remaining) == (False, 6)
    assert 350_000 < denied.retry_after_ms <= 360_000
    assert denied.retry_after_s == -(-denied.retry_after_ms // 1000)

    never = await limiter.take("a", tokens=11)
    assert (never.allowed, never.retry_after_ms) == (False, -1)


async def test_after_the_retry_time_it_passes(redis: Redis):
    limiter = Limiter(redis, "test", Limit(1, "2/s"), **PATIENT)
    while (decision := await limiter.take("a")).allowed:
        pass
    assert 0 < decision.retry_after_ms <= 500
    await asyncio.sleep(decision.retry_after_ms / 1000)
    assert await limiter.is_allowed("a")


async def test_50_parallel_calls_get_no_more_than_there_is(redis: Redis):
    limiter = Limiter(redis, "test", Limit(10, STILL), **PATIENT)
    decisions = await asyncio.gather(*(limiter.take("a") for _ in range(50)))
    assert not any(decision.degraded for decision in decisions)
    assert sum(decision.allowed for decision in decisions) == 10


async def test_more_calls_than_connections_wait_instead_of_failing_open(redis_service: Service):
    redis = connect(f"redis://127.0.0.1:{redis_service.port}/0", max_connections=2)
    limiter = Limiter(redis, "narrow", Limit(10, STILL), **PATIENT)
    decisions = await asyncio.gather(*(limiter.take("a") for _ in range(50)))
    await redis.aclose()
    assert not any(decision.degraded for decision in decisions)
    assert sum(decision.allowed for decision in decisions) == 10


async def test_a_new_limit_counts_from_the_next_call(redis: Redis):
    assert await Limiter(redis, "test", Limit(3, STILL), **PATIENT).is_allowed("a", tokens=3)
    assert not await Limiter(redis, "test", Limit(3, STILL), **PATIENT).is_allowed("a")
    suspended = await Limiter(redis, "test", Limit(0, STILL), **PATIENT).take("a")
    assert (suspended.allowed, suspended.retry_after_ms) == (False, -1)


def holding(redis: Redis, *, ttl_ms: int = 60_000) -> HoldLimiter:
    limits = {"requests": Limit(5, STILL), "tokens": Limit(100, STILL), "inflight": Limit(2, 0)}
    return HoldLimiter(redis, "llm", limits, ttl_ms=ttl_ms, **PATIENT)


async def remaining(limiter: HoldLimiter) -> dict[str, int]:
    """What "a" has left: a hold of nothing changes nothing."""
    return (await limiter.hold("a", dict.fromkeys(limiter.limits, 0))).remaining


async def until_expired(redis: Redis) -> None:
    deadline = time.monotonic() + 10
    while await redis.execute_command("TB.HOLDS", "tb:llm:{a}:tokens"):
        assert time.monotonic() < deadline, "still held"
        await asyncio.sleep(0.01)


async def test_several_limits_are_held_all_or_none(redis: Redis):
    limiter = holding(redis)
    first = await limiter.hold("a", {"requests": 1, "tokens": 80, "inflight": 1})
    assert first.decision.allowed
    assert first.remaining == {"requests": 4, "tokens": 20, "inflight": 1}

    denied = await limiter.hold("a", {"requests": 1, "tokens": 30, "inflight": 1})
    assert not denied.decision.allowed and denied.decision.retry_after_ms > 0
    assert {name: one.allowed for name, one in denied.decision.each.items()} == {
        "requests": True,
        "tokens": False,
        "inflight": True,
    }
    assert await remaining(limiter) == first.remaining, "a denied hold takes from no bucket"


async def test_settling_gives_back_or_goes_into_debt(redis: Redis):
    limiter = holding(redis)
    async with await limiter.hold("a", {"requests": 1, "tokens": 80, "inflight": 1}) as hold:
        hold.used = {"requests": 1, "tokens": 30}
    assert (
        hold.remaining == await remaining(limiter) == {"requests": 4, "tokens": 70, "inflight": 2}
    )

    debt = await limiter.hold("a", {"requests": 1, "tokens": 10, "inflight": 1})
    await debt.settle({"requests": 1, "tokens": 90})
    assert debt.remaining == {"requests": 3, "tokens": -20, "inflight": 2}
    assert not (await limiter.hold("a", {"tokens": 1})).decision.allowed


async def test_work_that_fails_gives_everything_back(redis: Redis):
    limiter = holding(redis)
    with pytest.raises(ZeroDivisionError):
        async with await limiter.hold("a", {"requests": 1, "tokens": 80, "inflight": 1}):
            raise ZeroDivisionError
    assert await remaining(limiter) == {"requests": 5, "tokens": 100, "inflight": 2}


async def test_a_hold_that_expired_before_it_was_settled_is_charged(redis: Redis):
    limiter = holding(redis, ttl_ms=50)
    hold = await limiter.hold("a", {"requests": 1, "tokens": 80, "inflight": 1})
    await until_expired(redis)
    assert await remaining(limiter) == {"requests": 5, "tokens": 100, "inflight": 2}
    await hold.settle({"requests": 1, "tokens": 30})
    assert (
        hold.remaining == await remaining(limiter) == {"requests": 4, "tokens": 70, "inflight": 2}
    )


async def test_a_hold_is_renewed_until_the_end_of_the_work(redis: Redis):
    limiter = holding(redis, ttl_ms=600)
    hold = await limiter.hold("a", {"requests": 1, "tokens": 80, "inflight": 1})
    async with hold:
        await redis.delete("tb:llm:{a}:requests", "tb:llm:{a}:tokens", "tb:llm:{a}:inflight")
        deadline = time.monotonic() + 10
        while await remaining(limiter) != {"requests": 4, "tokens": 20, "inflight": 1}:
            assert time.monotonic() < deadline, "the renewal takes anew what was lost"
            await asyncio.sleep(0.01)
        hold.used = {"requests": 1, "tokens": 30}
    assert await remaining(limiter) == {"requests": 4, "tokens": 70, "inflight": 2}


async def test_work_let_through_unasked_is_held_by_a_renewal_and_charged_without(
    own_redis: Service,
):
    redis = connect(f"redis://127.0.0.1:{own_redis.port}/0")
    limiter = holding(redis)
    own_redis.stop()
    unasked = [await limiter.hold("a", {"requests": 1, "tokens": 80}) for _ in range(2)]
    assert all(hold.decision.allowed and hold.decision.degraded for hold in unasked)

    own_redis.start()
    renewed, not_renewed = unasked
    assert (await renewed.renew()).allowed
    assert await remaining(limiter) == {"requests": 4, "tokens": 20, "inflight": 2}
    for hold in (renewed, not_renewed):
        await hold.settle({"requests": 1, "tokens": 30})
    assert await remaining(limiter) == {"requests": 3, "tokens": 40, "inflight": 2}
    await redis.aclose()


@asynccontextmanager
async def losing_the_reply(port: int, command: bytes) -> AsyncIterator[int]:
    """A way to the server on which the first reply to `command` gets lost with its connection."""
    lost = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        lose = False

        async def answer() -> None:
            while (reply := await from_server.read(4096)) and not lose:
                writer.write(reply)
            writer.close()

        answering = asyncio.create_task(answer())
        while request := await reader.read(4096):
            nonlocal lost
            if command in request and not lost:
                lost = lose = True
            to_server.write(request)
        to_server.close()
        await answering

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield server.sockets[0].getsockname()[1]
        assert lost


async def test_a_hold_whose_reply_was_lost_is_sent_again_and_takes_once(
    redis: Redis, redis_service: Service
):
    async with losing_the_reply(redis_service.port, b"TB.MHOLD") as port:
        unlucky = connect(f"redis://127.0.0.1:{port}/0")
        hold = await holding(unlucky).hold("a", {"requests": 1, "tokens": 80, "inflight": 1})
        assert hold.decision.allowed and not hold.decision.degraded
        assert await remaining(holding(redis)) == {"requests": 4, "tokens": 20, "inflight": 1}
        await unlucky.aclose()


async def test_a_take_whose_reply_was_lost_is_not_sent_again(redis: Redis, redis_service: Service):
    async with losing_the_reply(redis_service.port, b"TB.TAKE") as port:
        unlucky = connect(f"redis://127.0.0.1:{port}/0")
        decision = await Limiter(unlucky, "test", Limit(5, STILL), **PATIENT).take("a")
        assert decision.degraded
        await unlucky.aclose()
    limiter = Limiter(redis, "test", Limit(5, STILL), **PATIENT)
    assert (await limiter.take("a", tokens=0)).remaining == 4


@pytest.mark.parametrize(("on_error", "allowed"), [("open", True), ("closed", False)])
async def test_redis_stopped_and_back(own_redis: Service, caplog, on_error, allowed):
    redis = connect(f"redis://127.0.0.1:{own_redis.port}/0")
    limiter = Limiter(redis, "test", Limit(2, STILL), on_error=on_error, **PATIENT)
    # Many connections, so that many are dead when the server comes back.
    assert sum(await asyncio.gather(*(limiter.is_allowed("a") for _ in range(20)))) == 2

    own_redis.stop()
    with caplog.at_level(logging.WARNING, "limiter"):
        for _ in range(3):
            decision = await limiter.take("a")
            assert (decision.allowed, decision.degraded) == (allowed, True)
        assert len(caplog.records) == 1, "an outage is logged once, not for every call"

        own_redis.start()
        decisions = await asyncio.gather(*(limiter.take("a") for _ in range(20)))
        assert not any(decision.degraded for decision in decisions), "from the first call on"
        assert sum(decision.allowed for decision in decisions) == 2
        assert len(caplog.records) == 2
    await redis.aclose()


async def test_a_server_that_hangs_costs_the_timeout_and_no_more(own_redis: Service):
    redis = connect(f"redis://127.0.0.1:{own_redis.port}/0")
    limiter = Limiter(redis, "test", Limit(2, STILL), timeout_ms=100)
    own_redis.signal(signal.SIGSTOP)
    began = time.monotonic()
    decisions = await asyncio.gather(*(limiter.take("a") for _ in range(60)))
    assert time.monotonic() - began < 2
    assert all(decision.allowed and decision.degraded for decision in decisions)

    own_redis.signal(signal.SIGCONT)
    deadline = time.monotonic() + 1
    while (await limiter.take("b")).degraded:
        assert time.monotonic() < deadline, "not limiting within a second of its return"
    await redis.aclose()


@pytest.mark.parametrize(
    "capacity", ["", "ten", "-1", -1, "inf", float("nan"), "0x10", "1 0", "\u0661"]
)
def test_a_capacity_that_is_no_number_is_refused(capacity):
    with pytest.raises(ValueError, match="capacity"):
        Limit(capacity, "1/s")


@pytest.mark.parametrize(
    "rate", ["", "fast", "10/", "10/w", "/s", "10/s/s", "-1", "10/-1s", "1 /s"]
)
def test_a_rate_that_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        Limit(10, rate)


@pytest.mark.parametrize(
    "limit", ["10 100/m", "0.5 0.25", "1e3 1e-3", "10 1/250ms", "7 5000/h", "2 .5"]
)
async def test_limits_that_are_good_are_good_for_the_server_too(redis: Redis, limit):
    limiter = Limiter(redis, "test", Limit.parse(limit), **PATIENT)
    await check_limit(redis, limiter.limit)
    assert not (await limiter.take("a", tokens=0)).degraded


async def test_a_limit_out_of_the_servers_bounds_is_refused(redis: Redis):
    # A rate of 0 is a pool, which only holds refill: a take would empty it for good.
    limiter = Limiter(redis, "test", Limit(10, 0), **PATIENT)
    with pytest.raises(ResponseError, match="rate"):
        await check_limit(redis, limiter.limit)
    with pytest.raises(ResponseError, match="rate"):
        await limiter.is_allowed("a")


async def test_a_wrong_call_does_not_pass_by_failing_open(redis: Redis):
    limiter = Limiter(redis, "test", Limit(10, STILL), **PATIENT)
    with pytest.raises(ResponseError, match="cost"):
        await limiter.is_allowed("a", tokens=-1)
    await redis.set("tb:test:{a}", "something else")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await limiter.is_allowed("a")


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="on_error"):
        Limiter(None, "test", Limit(1, 1), on_error="maybe")
    with pytest.raises(ValueError, match="timeout_ms"):
        Limiter(None, "test", Limit(1, 1), timeout_ms=0)


async def test_a_server_without_the_module_is_found_at_the_start(tmp_path):
    service = redis_server(tmp_path, with_module=False)
    service.start()
    redis = connect(f"redis://127.0.0.1:{service.port}/0")
    limiter = Limiter(redis, "test", Limit(1, STILL), on_error="closed", **PATIENT)
    try:
        with pytest.raises(ResponseError, match="unknown command"):
            await check_limit(redis, limiter.limit)
        decision = await limiter.take("a")
        assert (decision.allowed, decision.degraded) == (False, True)
    finally:
        await redis.aclose()
        service.stop()
