"""The `limits` library by URI, and Flask-Limiter and slowapi as applications that are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import flask
import flask_limiter
import httpx
import limits
import limits.aio
import limits.errors
import pytest
import redis
import slowapi
import slowapi.errors
import slowapi.middleware
import slowapi.util
from limits.storage import storage_from_string
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import tokenbucket.limits
from conftest import PASSWORD, PLAIN
from launch import Servers
from services import Service
from serving import asgi, wsgi
from tokenbucket import BadArgument, ServerAway

pytestmark = pytest.mark.usefixtures("admin")

# Nothing flows in while a test runs.
TEN = limits.parse("10 per day")
STRATEGIES = ["fixed-window", "moving-window", "sliding-window-counter"]


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the connections of storages, as the library has no way to do so."""
    made: list[Any] = []
    kind = tokenbucket.limits.TokenBucketStorage
    begin = kind.__init__

    def note(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", note)
    yield
    for storage in made:
        storage.limiter.close()
        storage.redis.close()


@pytest.fixture
def uri(server: Service) -> str:
    return f"tokenbucket://127.0.0.1:{server.port}"


def limiter_on(uri: str, strategy: str = "fixed-window", **options: Any) -> Any:
    storage: Any = storage_from_string(uri, **options)
    kind: Any = limits.strategies.STRATEGIES[strategy]
    return kind(storage)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_decides_by_bucket(uri: str, strategy: str) -> None:
    limiter = limiter_on(uri, strategy)
    hits = [limiter.hit(TEN, "alice", cost=cost) for cost in (8, 3, 2, 1)]
    assert hits == [True, False, True, False], "what is denied takes nothing"
    limiter.clear(TEN, "alice")
    assert limiter.get_window_stats(TEN, "alice").remaining == 10


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_more_than_the_limit_remains_while_an_override_counts(
    uri: str, admin: redis.Redis, strategy: str
) -> None:
    limiter = limiter_on(uri, strategy)
    limiter.hit(TEN, "alice")
    [key] = admin.keys()
    admin.execute_command("TB.OVERRIDE", key, 50, "50/d", 60_000, "FULL")  # type: ignore[no-untyped-call]
    assert limiter.get_window_stats(TEN, "alice").remaining == 10


def test_the_reset_time_is_when_the_bucket_is_full_or_the_next_hit_passes(uri: str) -> None:
    limiter = limiter_on(uri)
    item = limits.parse("2 per 2 hours")
    for waits_s in (0, 3600, 3600):
        assert limiter.get_window_stats(item, "a").reset_time == pytest.approx(time.time() + waits_s, abs=60)
        limiter.hit(item, "a")


def test_moving_from_the_librarys_own_storage_needs_no_other_database(uri: str, admin: redis.Redis) -> None:
    for scheme in ("redis", "tokenbucket"):
        assert limiter_on(uri.replace("tokenbucket", scheme)).hit(TEN, "alice")
    assert len(admin.keys()) == 2


# As the library's own storages take them, with `redis` for `tokenbucket`.
STORAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "a user": ("tokenbucket://app:{password}@127.0.0.1:{port}", {}),
    "a password": ("tokenbucket://:{password}@127.0.0.1:{port}", {}),
    "a database": ("tokenbucket://:{password}@127.0.0.1:{port}/2", {}),
    "a database in the query": ("tokenbucket://:{password}@127.0.0.1:{port}?db=3", {}),
    "options": ("tokenbucket://127.0.0.1:{port}", {"username": "app", "password": PASSWORD}),
    "a socket": ("tokenbucket+unix://{socket}", {"password": PASSWORD}),
    "a socket with a user": ("tokenbucket+unix://app:{password}@{socket}", {}),
    "a socket and a database": ("tokenbucket+unix://:{password}@{socket}?db=2", {}),
    "Sentinel": (
        "tokenbucket+sentinel://:other@127.0.0.1:{sentinel}/mymaster",
        {"use_replicas": False, "sentinel_kwargs": {"socket_timeout": 5}},
    ),
    "Sentinel, the rest by options": (
        "tokenbucket+sentinel://127.0.0.1:{sentinel}",
        {"service_name": "mymaster", "password": PLAIN},
    ),
}


@pytest.mark.parametrize("name", STORAGES)
def test_a_storage_takes_what_the_librarys_own_takes(listening: dict[str, Any], name: str) -> None:
    uri, options = STORAGES[name]
    uri = uri.format(**listening)
    of_library: Any = storage_from_string(uri.replace("tokenbucket", "redis"), **options)
    of_threads: Any = storage_from_string(uri, timeout_ms=5000, on_error="raise", **options)
    for storage in (of_library, of_threads):
        assert limits.strategies.FixedWindowRateLimiter(storage).hit(TEN, name)

    async def hit() -> bool:
        storage: Any = storage_from_string(f"async+{uri}", timeout_ms=5000, on_error="raise", **options)
        hits: bool = await limits.aio.strategies.FixedWindowRateLimiter(storage).hit(TEN, name)
        await storage.limiter.aclose()
        for sentinel in sentinels_of(storage.redis):
            await sentinel.aclose()
        return hits

    assert asyncio.run(hit())
    where = of_threads.redis.connection_pool.connection_kwargs
    assert where.get("db", 0) == of_library.storage.connection_pool.connection_kwargs.get("db", 0)
    for client in (of_library.storage, *sentinels_of(of_library.storage), *sentinels_of(of_threads.redis)):
        client.close()


def sentinels_of(client: Any) -> list[Any]:
    return getattr(getattr(client.connection_pool, "sentinel_manager", None), "sentinels", [])


def test_a_storage_takes_the_pool_of_an_application(uri: str) -> None:
    pool: Any = redis.ConnectionPool.from_url(uri.replace("tokenbucket", "redis"))
    for scheme in ("redis", "tokenbucket"):
        assert limiter_on(f"{scheme}://not.looked.at", connection_pool=pool).hit(TEN, "alice")
    pool.disconnect()


def test_a_sentinel_without_the_name_of_its_master_is_a_mistake() -> None:
    for scheme in ("redis", "tokenbucket"):
        with pytest.raises(limits.errors.ConfigurationError, match="service_name"):
            storage_from_string(f"{scheme}+sentinel://127.0.0.1:1")


def test_a_cluster_is_a_storage(own_nodes: Servers) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in own_nodes.nodes)
    limiter = limiter_on(f"tokenbucket+cluster://{hosts}")
    assert [limiter.hit(TEN, name, cost=6) for name in "abcdabcd"] == [True] * 4 + [False] * 4
    assert limiter.storage.reset() == 4


def test_a_reset_leaves_what_has_another_prefix(uri: str, admin: redis.Redis) -> None:
    ours, theirs = (limiter_on(uri, key_prefix=prefix) for prefix in ("a*", "ab"))
    for limiter in (ours, theirs):
        limiter.hit(TEN, "alice")
    assert ours.storage.reset() == 1
    assert admin.keys() == ["ab:LIMITER/alice/10/1/day"]


def test_options_may_be_strings_as_from_the_environment(uri: str) -> None:
    options = {"batch": "2", "remember_denials": "9", "timeout_ms": "20000", "retry_every_ms": "5e2"}
    limiter = limiter_on(uri, **options)
    assert [limiter.hit(TEN, "alice") for _ in range(11)] == [True] * 10 + [False]
    for name in options:
        with pytest.raises(BadArgument, match=f"^{name}: 'ten' is not a (whole )?number"):
            storage_from_string(uri, **{name: "ten"})


def test_a_server_that_is_away_is_an_error_only_if_that_is_the_policy(own_server: Service) -> None:
    uri = f"tokenbucket://127.0.0.1:{own_server.port}"
    local, raising = limiter_on(uri), limiter_on(uri, on_error="raise")
    wrapping = limiter_on(uri, on_error="raise", wrap_exceptions=True)
    assert raising.storage.check()
    own_server.stop()
    assert not raising.storage.check()
    with pytest.raises(ServerAway):
        raising.hit(TEN, "alice")
    with pytest.raises(limits.errors.StorageError):
        wrapping.hit(TEN, "alice")
    assert [local.hit(TEN, "alice") for _ in range(11)] == [True] * 10 + [False], "by this process alone"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_policy_decides_every_question_while_the_server_is_away(own_server: Service, strategy: str) -> None:
    uri = f"tokenbucket://127.0.0.1:{own_server.port}"
    own_server.stop()
    for on_error in ("open", "closed"):
        limiter = limiter_on(uri, strategy, on_error=on_error)
        for _ in range(11):
            assert limiter.test(TEN, "alice") == limiter.hit(TEN, "alice") == (on_error == "open")
            stats = limiter.get_window_stats(TEN, "alice")
            assert stats.remaining == (10 if on_error == "open" else 0)
            if on_error == "closed":
                assert stats.reset_time > time.time() + 0.5, "not at once"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_denial_says_when_the_same_cost_passes(uri: str, strategy: str) -> None:
    limiter = limiter_on(uri, strategy)
    item = limits.parse("10 per hour")
    for used, cost, waits_s in ((4, 7, 360), (0, 9, 3 * 360), (0, 11, 3600)):
        assert limiter.hit(item, "a", cost=used) or not used
        assert not limiter.hit(item, "a", cost=cost)
        told = limiter.get_window_stats(item, "a").reset_time
        assert told == pytest.approx(time.time() + waits_s, abs=30)


def flask_app(uri: str, **options: Any) -> flask.Flask:
    app = flask.Flask("test")
    limiter = flask_limiter.Limiter(
        flask_limiter.util.get_remote_address,
        app=app,
        storage_uri=uri,
        headers_enabled=True,
        default_limits=["5 per day"],
        **options,
    )

    @app.get("/")
    def hello() -> str:
        return "hello"

    @app.get("/costly")
    @limiter.limit("5 per day", cost=3)
    def costly() -> str:
        return "costly"

    @app.get("/exempt")
    @limiter.exempt
    def exempt() -> str:
        return "exempt"

    return app


def slowapi_app(uri: str, **options: Any) -> Starlette:
    limiter = slowapi.Limiter(
        slowapi.util.get_remote_address,
        storage_uri=uri,
        headers_enabled=True,
        default_limits=["5/day"],
        **options,
    )

    def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    @limiter.limit("5/day", cost=3)
    def costly(request: Request) -> PlainTextResponse:
        return PlainTextResponse("costly")

    @limiter.exempt  # type: ignore[untyped-decorator]
    def exempt(request: Request) -> PlainTextResponse:
        return PlainTextResponse("exempt")

    routes = [Route("/", hello), Route("/costly", costly), Route("/exempt", exempt)]
    app = Starlette(routes=routes)
    handler: Any = slowapi._rate_limit_exceeded_handler
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, handler)
    app.add_middleware(slowapi.middleware.SlowAPIMiddleware)
    return app


APPS = [pytest.param(flask_app, wsgi, id="flask-limiter"), pytest.param(slowapi_app, asgi, id="slowapi")]


@pytest.mark.parametrize(("build", "serve"), APPS)
def test_an_application_limits_with_one_setting(uri: str, build: Callable[..., Any], serve: Any) -> None:
    with serve(build(uri)) as url, httpx.Client(base_url=url) as client:
        responses = [client.get("/") for _ in range(7)]
        assert [response.status_code for response in responses] == [200] * 5 + [429] * 2
        assert [response.headers["X-RateLimit-Remaining"] for response in responses[:5]] == list("43210")
        # A fifth of a day, in which one token flows in.
        retry_after_s = int(responses[-1].headers["Retry-After"])
        assert 86_400 / 5 - 60 < retry_after_s <= 86_400 / 5 + 1
        assert [client.get("/costly").status_code for _ in range(2)] == [200, 429]
        assert all(client.get("/exempt").status_code == 200 for _ in range(7))


@pytest.mark.parametrize(("build", "serve"), APPS)
def test_an_application_falls_back_to_memory_as_it_does_with_its_own_storages(
    own_server: Service, build: Callable[..., Any], serve: Any
) -> None:
    uri = f"tokenbucket://127.0.0.1:{own_server.port}"
    app = build(uri, in_memory_fallback=["2 per day"], storage_options={"on_error": "raise"})
    with serve(app) as url, httpx.Client(base_url=url) as client:
        assert client.get("/").status_code == 200
        own_server.stop()
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
