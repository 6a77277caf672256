"""The transports of httpx: they wait before they send, hold a place in flight, and heed Retry-After."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from unittest.mock import MagicMock

import anyio
import anyio.from_thread
import httpx
import pytest
import redis

import tokenbucket.asyncio
import upstream as upstreams
from conftest import Blocking, until_waiting
from launch import ask
from paths import rows_of
from services import Service, wait_for
from tokenbucket import BadArgument, Decision, Denied, Limit, ServerAway
from tokenbucket.httpx import AsyncRateLimitTransport, RateLimitTimeout, RateLimitTransport
from tokenbucket.testing import FakeServer
from upstream import Upstream

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"
LONG_MS = 60_000
HOST = "127.0.0.1"

pytestmark = pytest.mark.usefixtures("admin")


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with upstreams.upstream() as one:
        yield one


def opened(client: Any, url: str) -> Any:
    """A response that is to be read or closed."""
    response = client.send(client.build_request("GET", url), stream=True)
    return Blocking(client._portal, response) if isinstance(client, Blocking) else response


Make = Callable[..., Any]


@pytest.fixture(params=["threads", "asyncio"])
def make(
    request: pytest.FixtureRequest, server: Service, portal: anyio.from_thread.BlockingPortal
) -> Iterator[Make]:
    """Makes a client whose transport has a limiter of its own, as in another process."""
    made: list[Any] = []
    asynchronous = request.param == "asyncio"
    package: Any = tokenbucket.asyncio if asynchronous else tokenbucket
    kind: Any = AsyncRateLimitTransport if asynchronous else RateLimitTransport
    library: Any = httpx.AsyncClient if asynchronous else httpx.Client

    def make(limit: Limit, *, at: Any = None, by: Any = "module", **options: Any) -> Any:
        of_limiter = {name: options.pop(name) for name in ("on_error", "shadow") if name in options}
        if isinstance(at, FakeServer):
            of = at.asyncio if asynchronous else at
        else:
            url = f"redis://127.0.0.1:{(at or server).port}"
            of = package.Server(url, timeout_ms=20_000, retry_every_ms=50, by=by)
        limiter = package.Limiter(of, limit, "out:", **({"on_error": "raise"} | of_limiter))
        transport = kind(limiter, **({"max_wait_ms": LONG_MS} | options))
        client: Any = library(transport=transport, timeout=60)
        if asynchronous:
            client, limiter = Blocking(portal, client), Blocking(portal, limiter)
        client.limiter = limiter
        made.append(client)
        return client

    yield make
    for one in made:
        one.close()
        one.limiter.close()


def give(server: Service, limit: Limit, amount: int = 1, name: str = HOST) -> None:
    ask(server, "TB.GIVE", f"out:{name}", limit.capacity, limit.rate, amount)


def held(server: Service, name: str = HOST) -> int:
    return len(ask(server, "TB.HOLDS", f"out:{name}:in-flight") or [])


def remaining(client: Any, name: str = HOST) -> int:
    return int(client.limiter.peek(name, 0).remaining)


# Tokens.


HOSTS = rows_of("httpx.md", "| URL | bucket |")


@pytest.mark.parametrize(("urls", "name"), HOSTS, ids=[name for _, name in HOSTS])
def test_every_url_of_a_host_shares_its_bucket(urls: str, name: str) -> None:
    limiter = tokenbucket.Limiter(FakeServer(), Limit(10, STILL))
    answers = httpx.MockTransport(lambda _: httpx.Response(200))
    client = httpx.Client(transport=RateLimitTransport(limiter, answers))
    all_urls = urls.split("`, `")
    for url in all_urls:
        client.get(url)
    assert limiter.peek(name, 0).remaining == 10 - len(all_urls)


def test_name_and_cost_may_be_functions_of_the_request(make: Make, upstream: Upstream) -> None:
    client = make(
        Limit(10, STILL),
        name=lambda request: request.url.params.get("user"),
        cost=lambda request: int(request.url.params["cost"]),
    )
    client.get(f"{upstream.url}/?user=ada&cost=3")
    client.get(f"{upstream.url}/?cost=100")
    assert (remaining(client, "ada"), len(upstream.seen)) == (7, 2)
    fixed = make(Limit(10, STILL), name="all", cost=4)
    fixed.get(upstream.url)
    assert remaining(fixed, "all") == 6


def test_a_request_whose_turn_does_not_come_is_an_error_of_httpx_and_of_the_package(
    make: Make, upstream: Upstream
) -> None:
    client = make(Limit(1, STILL), max_wait_ms=50)
    client.get(upstream.url)
    with pytest.raises(httpx.HTTPError) as late:
        client.get(f"{upstream.url}/late")
    error = late.value
    assert isinstance(error, RateLimitTimeout)
    assert isinstance(error, Denied)
    assert isinstance(error, httpx.TimeoutException)
    assert error.request.url.path == "/late"
    assert 50 < error.decision.retry_after_ms <= 360_000
    assert str(error) == "'127.0.0.1': not granted within 50 ms"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with pytest.raises(RateLimitTimeout, match="can never be sent"):
        make(Limit(1, STILL), cost=2).get(upstream.url)
    assert upstream.seen == ["/"]


def test_in_shadow_mode_no_request_waits(make: Make, upstream: Upstream) -> None:
    client = make(Limit(1, STILL), shadow=True, in_flight=1)
    with closing(opened(client, f"{upstream.url}/stream")):
        assert client.get(upstream.url).status_code == 200
    assert remaining(client) == 0


@pytest.mark.parametrize(
    "option",
    [
        *({"max_wait_ms": wait} for wait in (None, "60", -1, float("nan"), 2.6e9)),
        *({"ttl_ms": ttl} for ttl in (None, "30000", 0)),
        *({"in_flight": count} for count in (0, "5", 2.5, "")),
        *({"name": name} for name in (None, 7)),
        *({"cost": cost} for cost in (None, "", "one", -1)),
        {"transport": httpx.AsyncHTTPTransport()},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_that_cannot_be_is_named(option: dict[str, Any]) -> None:
    limiter = tokenbucket.Limiter(FakeServer(), Limit(1, 1))
    with pytest.raises(BadArgument, match=f"^{next(iter(option))}: "):
        RateLimitTransport(limiter, **option)


def test_the_transport_that_sends_is_entered_and_left(make: Make) -> None:
    sending = MagicMock(spec=httpx.MockTransport)
    with make(Limit(1, 1), at=FakeServer(), transport=sending):
        pass
    seen = [name for name, *_ in sending.mock_calls]
    assert seen in (["__enter__", "__exit__"], ["__aenter__", "__aexit__"])


# Cancellation.


def test_requests_that_are_cancelled_leave_the_queue_and_their_places(
    server: Service, upstream: Upstream, portal: anyio.from_thread.BlockingPortal
) -> None:
    async def cancelled(client: httpx.AsyncClient, until: Callable[[Any, int], Any], of: Any) -> None:
        """By anyio, which cancels a task again at each of its steps."""
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(client.get, f"{upstream.url}/slow")
            await anyio.to_thread.run_sync(until, of, 10)
            assert held(server) == 10
            group.cancel_scope.cancel()
        assert held(server) == 0

    async def work() -> None:
        url, limit = f"redis://127.0.0.1:{server.port}", Limit(10, STILL)
        of = tokenbucket.asyncio.Server(url, timeout_ms=20_000)
        limiter = tokenbucket.asyncio.Limiter(of, limit, "out:")
        transport = AsyncRateLimitTransport(limiter, in_flight=10, max_wait_ms=LONG_MS)
        async with limiter, httpx.AsyncClient(transport=transport) as client:
            await cancelled(client, Upstream.until_seen, upstream)
            await cancelled(client, until_waiting, server)
            await asyncio.to_thread(until_waiting, server, 0)
            give(server, limit)
            await client.get(upstream.url)

    portal.call(work)
    assert len(upstream.seen) == 11


# A place in flight.


def test_so_many_requests_are_in_flight_over_all_processes(
    make: Make, server: Service, upstream: Upstream, threads: ThreadPoolExecutor
) -> None:
    clients = [make(Limit(100, STILL), in_flight=2) for _ in range(2)]
    waits = [threads.submit(clients[at % 2].get, f"{upstream.url}/slow") for at in range(5)]
    upstream.until_seen(2)
    until_waiting(server, 3)
    # A request that waits for a place has not taken its token.
    assert (held(server), remaining(clients[0])) == (2, 98)
    upstream.let_go()
    assert {one.result().status_code for one in waits} == {200}
    assert (held(server), remaining(clients[0]), len(upstream.seen)) == (0, 95, 5)


def test_a_stream_holds_its_place_until_it_is_closed(
    make: Make, server: Service, upstream: Upstream, threads: ThreadPoolExecutor
) -> None:
    client = make(Limit(100, STILL), in_flight=1)
    response = opened(client, f"{upstream.url}/stream")
    assert held(server) == 1
    waits = threads.submit(client.get, f"{upstream.url}/next")
    until_waiting(server, 1)
    response.close()
    assert waits.result().status_code == 200
    response = opened(client, upstream.url)
    assert held(server) == 1
    assert response.read() == b"here"
    assert held(server) == 0


def test_an_error_gives_the_place_back(make: Make, server: Service, upstream: Upstream) -> None:
    client = make(Limit(3, STILL), in_flight=1, name="all", max_wait_ms=200)
    fails = {f"{upstream.url}/broken": httpx.RemoteProtocolError, "http://127.0.0.1:1": httpx.ConnectError}
    for url, error in [*fails.items(), ("", None), (upstream.url, RateLimitTimeout)]:
        with pytest.raises(error) if error else nullcontext():
            assert client.get(url or upstream.url).status_code == 200
        assert held(server, "all") == 0


def test_a_response_that_needs_no_connection_holds_nothing(make: Make, server: Service) -> None:
    mock = httpx.MockTransport(lambda _: httpx.Response(200, text="here"))
    client = make(Limit(100, STILL), in_flight=1, transport=mock)
    for _ in range(3):
        assert client.get(f"http://{HOST}").text == "here"
    assert held(server) == 0


def test_a_place_is_renewed_while_its_request_lasts(make: Make, server: Service, upstream: Upstream) -> None:
    client = make(Limit(100, STILL), in_flight=1, ttl_ms=6000)
    response = opened(client, f"{upstream.url}/stream")
    left: list[int] = []

    def was_renewed() -> bool:
        left.append(int(ask(server, "TB.HOLDS", f"out:{HOST}:in-flight")[0][2]))
        return any(later > earlier for earlier, later in itertools.pairwise(left))

    wait_for(was_renewed, "a renewal")
    response.close()


def test_a_response_that_is_forgotten_gives_its_place_back_in_time(
    make: Make, server: Service, upstream: Upstream
) -> None:
    client = make(Limit(100, STILL), in_flight=1, ttl_ms=1000)
    opened(client, f"{upstream.url}/stream")
    assert held(server) == 1
    gc.collect()
    wait_for(lambda: held(server) == 0, "the end of the hold")


# Retry-After.


@pytest.mark.parametrize(
    ("rate", "refused", "sent_at"),
    [
        # Three of five tokens, a pause, the two that were left, then one a second.
        ("1/s", 3, [0, 0, 0, 10, 10, 11, 12, 13]),
        ("5@d", 1, [0, 10, 10, 10, 10]),
        ("5@mo", 1, [0, 10, 10, 10, 10]),
    ],
)
def test_a_paused_bucket_has_afterwards_what_it_had_before(
    make: Make, rate: str, refused: int, sent_at: list[int]
) -> None:
    fake, seen = FakeServer(), []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(fake.monotonic())
        return httpx.Response(429 if len(seen) == refused else 200, headers={"Retry-After": "10"})

    client = make(Limit(5, rate), at=fake, transport=httpx.MockTransport(answer))
    for _ in sent_at:
        client.get("http://a")
    assert seen == sent_at


def http_date(seconds: float) -> str:
    return format_datetime(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("status", "headers", "paused_ms"),
    [
        (429, {"Retry-After": "7"}, 7000),
        (503, {"Retry-After": "0.5"}, 500),
        (429, {"Retry-After": http_date(9), "Date": http_date(0)}, 9000),
        (429, {"Retry-After": http_date(0), "Date": http_date(9)}, 0),
        (429, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONG_MS),
        (429, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        (429, {"Retry-After": "1e300"}, LONG_MS),
        (429, {"Retry-After": "inf"}, LONG_MS),
        (429, {"Retry-After": "nan"}, 0),
        (429, {"Retry-After": "-5"}, 0),
        (429, {"Retry-After": "soon"}, 0),
        (429, {"Retry-After": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, 0),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 +999999999999999999"}, 0),
        (429, {"Retry-After": ""}, 0),
        (429, {}, 0),
        (200, {"Retry-After": "7"}, 0),
        (301, {"Retry-After": "7"}, 0),
    ],
)
def test_what_retry_after_means(make: Make, status: int, headers: dict[str, str], paused_ms: int) -> None:
    fake = FakeServer()
    mock = httpx.MockTransport(lambda _: httpx.Response(status, headers=headers))
    client = make(Limit(5, "1/s"), at=fake, transport=mock)
    client.get("http://a")
    assert client.limiter.peek("a", 0).retry_after_ms == paused_ms
    deaf = make(Limit(5, "1/s"), at=FakeServer(), transport=mock, retry_after=False)
    deaf.get("http://a")
    assert deaf.limiter.peek("a", 0).retry_after_ms == 0


def test_a_pause_that_one_process_is_told_holds_for_all(
    make: Make, server: Service, upstream: Upstream, threads: ThreadPoolExecutor
) -> None:
    upstream.status, upstream.headers = 429, {"Retry-After": "600"}
    client, another = (make(Limit(100, STILL), max_wait_ms=30_000) for _ in range(2))
    sent = [threads.submit(client.get, f"{upstream.url}/slow") for _ in range(20)]
    upstream.until_seen(20)
    upstream.let_go()
    assert {one.result().status_code for one in sent} == {429}
    # As long as its caller would have waited, however many were told it.
    assert 15_000 < another.limiter.peek(HOST).retry_after_ms <= 30_001
    impatient = make(Limit(100, STILL), max_wait_ms=500)
    with pytest.raises(RateLimitTimeout):
        impatient.get(upstream.url)
    assert len(upstream.seen) == 20


def test_a_pause_that_fails_keeps_the_response(
    make: Make, server: Service, admin: redis.Redis, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.status, upstream.headers = 429, {"Retry-After": "30"}
    client = make(Limit(5, STILL))
    ask(server, "ACL", "SETUSER", "default", "-tb.peek")
    try:
        assert client.get(upstream.url).content == b"here"
    finally:
        ask(server, "ACL", "SETUSER", "default", "+@all")
    assert "Retry-After of '127.0.0.1' was not heeded" in caplog.text


# Servers that are away, or lack the module.


def test_while_redis_is_away_the_process_limits_itself(
    make: Make, own_server: Service, upstream: Upstream
) -> None:
    own_server.kill()
    client = make(Limit(5, "20/s"), at=own_server, on_error="local", in_flight=2)
    for _ in range(10):
        assert client.get(upstream.url).status_code == 200
    closed = make(Limit(1, STILL), at=own_server, on_error="closed", max_wait_ms=0)
    with pytest.raises(RateLimitTimeout, match="Redis is away"):
        closed.get(upstream.url)
    assert closed.limiter.server.degraded_count == 1
    with pytest.raises(ServerAway):
        make(Limit(1, STILL), at=own_server, on_error="raise").get(upstream.url)
    make(Limit(1, STILL), at=own_server, on_error="open", in_flight=1).get(upstream.url)
    assert len(upstream.seen) == 11


def test_requests_wait_through_a_restart_of_redis(
    make: Make, own_server: Service, upstream: Upstream, threads: ThreadPoolExecutor
) -> None:
    limit = Limit(1, STILL)
    client = make(limit, at=own_server, on_error="closed")
    client.get(upstream.url)
    waits = [threads.submit(client.get, upstream.url) for _ in range(3)]
    until_waiting(own_server, 3)
    own_server.kill()
    wait_for(lambda: client.limiter.server.degraded_count >= 3, "the outage")
    own_server.start()
    # Without a snapshot the bucket is full again: one token.
    for seen in (2, 3, 4):
        upstream.until_seen(seen)
        until_waiting(own_server, 4 - seen)
        give(own_server, limit)
    assert {one.result().status_code for one in waits} == {200}


def test_every_request_that_the_local_limit_has_tokens_for_is_sent(
    make: Make, own_server: Service, upstream: Upstream, threads: ThreadPoolExecutor
) -> None:
    own_server.kill()
    client = make(Limit(1, "40/s"), at=own_server, on_error="local", max_wait_ms=4000)
    sent = threads.map(lambda _: client.get(upstream.url).status_code, range(60))
    assert list(sent) == [200] * 60


def test_time_that_was_waited_in_the_server_is_not_waited_again_here(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeServer()
    limiter = tokenbucket.Limiter(fake, Limit(1, "1/m"))
    limiter.take(HOST)

    def breaks_off(*_: Any, **__: Any) -> Decision:
        fake.advance(50)
        return Decision(False, retry_after_ms=10_000, degraded=True)

    monkeypatch.setattr(limiter, "take", breaks_off)
    answers = httpx.MockTransport(lambda _: httpx.Response(200))
    with (
        httpx.Client(transport=RateLimitTransport(limiter, answers, max_wait_ms=55_000)) as client,
        pytest.raises(RateLimitTimeout),
    ):
        client.get(f"http://{HOST}/")


def test_more_than_may_wait_in_the_server_wait_here(
    make: Make, server: Service, upstream: Upstream, admin: redis.Redis
) -> None:
    admin.config_set("tokenbucket.max-waiters", 1)
    limit = Limit(1, "20/s")
    client = make(limit)
    try:
        with ThreadPoolExecutor(8) as threads:
            waits = [threads.submit(client.get, upstream.url) for _ in range(8)]
            assert {one.result().status_code for one in waits} == {200}
    finally:
        admin.config_set("tokenbucket.max-waiters", 1000)


def test_by_the_script_everything_works_but_places(
    make: Make, bare_server: Service, upstream: Upstream
) -> None:
    upstream.status, upstream.headers = 429, {"Retry-After": "30"}
    client = make(Limit(5, "5/s"), at=bare_server, by="script")
    client.get(upstream.url)
    paused = client.limiter.peek(HOST, 0)
    assert 25_000 < paused.retry_after_ms <= 30_100
    with pytest.raises(tokenbucket.ModuleMissing):
        make(Limit(5, "5/s"), at=bare_server, by="script", in_flight=1).get(upstream.url)
