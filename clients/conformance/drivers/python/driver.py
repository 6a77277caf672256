"""The Python package as a program of JSON lines, for the conformance suite.

Reads one request per line and writes one reply per line, each with the id of its request. Limiters for
asyncio run in the main event loop, those for threads in threads.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
import uvicorn
import uvloop
import valkey
import valkey.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import tokenbucket
import tokenbucket.asyncio
from tokenbucket import Limit
from tokenbucket.httpx import AsyncRateLimitTransport, RateLimitTransport

CLIENTS = {
    "redis-py": redis,
    "redis-py-asyncio": redis.asyncio,
    "valkey-py": valkey,
    "valkey-py-asyncio": valkey.asyncio,
}
KINDS = ("ReplyLost", "ServerAway", "ModuleMissing", "CrossSlot", "Denied", "BadArgument")
FIELDS = ("allowed", "granted", "remaining", "retry_after_ms", "reset_after_ms", "degraded", "lost")
# So many calls at once are made by threads; more would only wait for the interpreter's lock.
MOST_THREADS = 512
STACK_BYTES = 256 * 1024

servers: dict[str, Any] = {}
limiters: dict[str, Any] = {}
clients: dict[str, Any] = {}
holds: dict[str, Any] = {}
apps: list[Any] = []
senders: dict[Any, Any] = {}


class Unsupported(Exception):
    pass


def told(decision: Any) -> dict[str, Any]:
    said = {field: getattr(decision, field) for field in FIELDS}
    if each := getattr(decision, "each", None):
        said["each"] = {which: told(one) for which, one in each.items()}
    return said


def kind_of(error: BaseException) -> str:
    if isinstance(error, Unsupported):
        return "Unsupported"
    if isinstance(error, TimeoutError):
        return "Cancelled"
    return next((kind for kind in KINDS if isinstance(error, getattr(tokenbucket, kind))), "Other")


def is_asynchronous(limiter: Any) -> bool:
    return hasattr(limiter, "aclose") or inspect.iscoroutinefunction(getattr(limiter, "settle", None))


async def finished(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


# Requests


async def server(asked: dict[str, Any]) -> dict[str, Any]:
    library: Any = CLIENTS[asked["client"]]
    asynchronous = asked["client"].endswith("asyncio")

    def make() -> Any:
        if nodes := asked.get("cluster"):
            kind = library.RedisCluster if hasattr(library, "RedisCluster") else library.ValkeyCluster
            return kind.from_url(nodes[0].replace("redis://", f"{library.__name__.split('.')[0]}://"))
        if sentinel := asked.get("sentinel"):
            nodes = [
                (host, int(port)) for host, _, port in (one.rpartition(":") for one in sentinel["nodes"])
            ]
            return library.sentinel.Sentinel(nodes).master_for(sentinel["master"])
        kind = library.Redis if hasattr(library, "Redis") else library.Valkey
        return kind.from_url(asked["url"])

    client = make() if asynchronous else await asyncio.to_thread(make)
    options = {name: asked[name] for name in ("timeout_ms", "retry_every_ms", "fallback") if name in asked}
    package = tokenbucket.asyncio if asynchronous else tokenbucket
    clients[asked["name"]] = client
    servers[asked["name"]] = package.Server(client, **options)
    return {}


def package_of(of_server: Any) -> Any:
    return tokenbucket.asyncio if is_asynchronous(of_server) else tokenbucket


def options_of(asked: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: asked[name] for name in ("prefix", "on_error", *names) if asked.get(name) is not None}


async def limiter(asked: dict[str, Any]) -> dict[str, Any]:
    of_server = servers[asked["server"]]
    options = options_of(asked, "batch", "remember_denials")
    limit = Limit(asked["capacity"], asked["rate"])
    limiters[asked["name"]] = package_of(of_server).Limiter(of_server, limit, **options)
    return {}


async def joint(asked: dict[str, Any]) -> dict[str, Any]:
    of_server = servers[asked["server"]]
    limits = {which: Limit(*limit) for which, limit in asked["limits"].items()}
    limiters[asked["name"]] = package_of(of_server).JointLimiter(of_server, limits, **options_of(asked))
    return {}


def arguments_of(op: str, asked: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    waits = {name: asked[name] for name in ("max_wait_ms", "share", "weight") if asked.get(name)}
    match op:
        case "take":
            return [asked.get("cost", 1)], waits
        case "peek":
            return [asked.get("cost", 1)], {}
        case "take_up_to":
            return [asked["most"]], {}
        case "charge" | "give":
            return [asked["amount"]], {}
        case "reserve" | "wait":
            return [asked.get("cost", 1)], {"max_wait_ms": asked["max_wait_ms"]}
        case "take_all":
            return [asked["costs"]], waits
        case "hold":
            return [asked["amount"]], {"ttl_ms": asked["ttl_ms"], **waits}
    return [], {}


async def call(on: Any, op: str, name: Any, asked: dict[str, Any]) -> Any:
    positional, named = arguments_of(op, asked)
    deadline_us = asked.get("deadline_us")
    if is_asynchronous(on):
        if deadline_us is None:
            return await getattr(on, op)(name, *positional, **named)
        async with asyncio.timeout(deadline_us / 1e6):
            return await getattr(on, op)(name, *positional, **named)
    if deadline_us is not None:
        raise Unsupported("threads have no deadlines")
    return await in_thread(lambda: getattr(on, op)(name, *positional, **named))


threads = ThreadPoolExecutor(MOST_THREADS)


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


async def operation(asked: dict[str, Any]) -> dict[str, Any]:
    return told(await call(limiters[asked["on"]], asked["do"], asked["name"], asked))


async def hold(asked: dict[str, Any]) -> dict[str, Any]:
    on = limiters[asked["on"]]

    positional, named = arguments_of("hold", asked)

    def make() -> Any:
        return on.hold(asked["name"], *positional, **named)

    made = await make() if is_asynchronous(on) else await in_thread(make)
    holds[asked["as"]] = made
    return told(made.decision)


async def settle(asked: dict[str, Any]) -> dict[str, Any]:
    one = holds[asked["hold"]]
    if is_asynchronous(one):
        return told(await one.settle(asked.get("used")))
    return told(await in_thread(lambda: one.settle(asked.get("used"))))


async def settle_inside(asked: dict[str, Any]) -> dict[str, Any]:
    """Settles a hold twice inside its block, whose end settles it too."""
    on = limiters[asked["on"]]
    held = on.hold(asked["name"], asked["amount"], ttl_ms=asked["ttl_ms"])
    if is_asynchronous(on):
        async with held:
            first = await held.settle(asked["used"])
            assert await held.settle(asked["used"]) == first
        return told(first)

    def work() -> Any:
        with held:
            first = held.settle(asked["used"])
            assert held.settle(asked["used"]) == first
        return first

    return told(await in_thread(work))


async def hold_cancelled(asked: dict[str, Any]) -> dict[str, Any]:
    """Enters the holds, and cancels them all together: tasks by anyio, threads by an error in each block."""
    on, count = limiters[asked["on"]], asked.get("count", 30)
    words = (asked["name"], asked["amount"])
    if not is_asynchronous(on):
        everybody = threading.Barrier(count)

        def work() -> None:
            with on.hold(*words, ttl_ms=asked["ttl_ms"]) as held:
                held.used = 0
                everybody.wait()
                raise InterruptedError

        results = await asyncio.gather(*(in_thread(work) for _ in range(count)), return_exceptions=True)
        assert all(isinstance(result, InterruptedError) for result in results), results
        return {}
    entered = 0

    async def work_async() -> None:
        nonlocal entered
        async with on.hold(*words, ttl_ms=asked["ttl_ms"]) as held:
            held.used = 0
            entered += 1
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(work_async)
        while entered < count:
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    return {}


# Many calls


class Tally:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.began = time.monotonic()
        self._lock = threading.Lock()

    def add(self, began: float, decision: Any, error: BaseException | None) -> None:
        with self._lock:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.counts["calls"] += 1
            if error is None:
                self.counts["allowed" if decision.allowed else "denied"] += 1
                self.counts["degraded"] += decision.degraded
            elif kind_of(error) == "Cancelled":
                self.counts["cancelled"] += 1
            else:
                self.errors[kind_of(error)] += 1

    def told(self) -> dict[str, Any]:
        elapsed_s = time.monotonic() - self.began
        counted = {
            name: self.counts[name] for name in ("calls", "allowed", "denied", "degraded", "cancelled")
        }
        return counted | {
            "errors": dict(self.errors),
            "slowest_ms": self.slowest_s * 1000,
            "elapsed_ms": elapsed_s * 1000,
            "per_call_us": elapsed_s * 1e6 / max(self.counts["calls"], 1),
        }


class Turns:
    """Who is next, until the calls or the time are over, and not before the pace allows."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._began = time.monotonic()
        self._for_s = asked["for_ms"] / 1000 if asked.get("for_ms") else None
        self._count = None if self._for_s else asked.get("count", 1)
        self._per_second = asked.get("per_second")
        self._names = asked.get("names")
        self._name = asked.get("name")
        self._at = 0
        self._lock = threading.Lock()

    def next(self) -> tuple[Any, float] | None:
        """The name, and how long to wait first."""
        with self._lock:
            at, self._at = self._at, self._at + 1
        now = time.monotonic()
        due = self._began + at / self._per_second if self._per_second else now
        if self._count is not None and at >= self._count:
            return None
        if self._for_s is not None and max(due, now) >= self._began + self._for_s:
            return None
        return self._name if self._names is None else f"n{at % self._names}", due - now


async def many(asked: dict[str, Any]) -> dict[str, Any]:
    on, tally, turns = limiters[asked["on"]], Tally(), Turns(asked)
    workers = min(asked.get("concurrency", 1), asked.get("count") or asked.get("concurrency", 1))
    if is_asynchronous(on):
        await asyncio.gather(*(call_in_turn(on, asked, turns, tally) for _ in range(workers)))
    elif asked.get("deadline_us") is not None:
        raise Unsupported("threads have no deadlines")
    else:
        work = lambda: call_in_turn_by_thread(on, asked, turns, tally)  # noqa: E731
        await asyncio.gather(*(in_thread(work) for _ in range(min(workers, MOST_THREADS))))
    return tally.told()


async def call_in_turn(on: Any, asked: dict[str, Any], turns: Turns, tally: Tally) -> None:
    while (turn := turns.next()) is not None:
        name, wait_s = turn
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        began, decision, error = time.monotonic(), None, None
        try:
            decision = await call(on, asked["op"], name, asked)
        except Exception as raised:
            error = raised
        tally.add(began, getattr(decision, "decision", decision), error)


def call_in_turn_by_thread(on: Any, asked: dict[str, Any], turns: Turns, tally: Tally) -> None:
    positional, named = arguments_of(asked["op"], asked)
    while (turn := turns.next()) is not None:
        name, wait_s = turn
        if wait_s > 0:
            time.sleep(wait_s)
        began, decision, error = time.monotonic(), None, None
        try:
            decision = getattr(on, asked["op"])(name, *positional, **named)
        except Exception as raised:
            error = raised
        tally.add(began, getattr(decision, "decision", decision), error)


async def cost(asked: dict[str, Any]) -> dict[str, Any]:
    """So many takes, or commands of the bare client in their place, in a loop without anything else."""
    on, client, words = limiters[asked["on"]], clients[asked["server"]], asked["command"]
    each, workers = asked["count"] // asked["concurrency"], asked["concurrency"]
    if is_asynchronous(on):
        execute = client.execute_command

        async def calls_async() -> None:
            for _ in range(each):
                await (execute(*words) if asked["bare"] else on.take("user"))

        began = time.perf_counter()
        await asyncio.gather(*(calls_async() for _ in range(workers)))
        return {"per_call_us": (time.perf_counter() - began) * 1e6 / (each * workers)}

    def calls() -> None:
        for _ in range(each):
            if asked["bare"]:
                client.execute_command(*words)
            else:
                on.take("user")

    began = time.perf_counter()
    await asyncio.gather(*(in_thread(calls) for _ in range(workers)))
    return {"per_call_us": (time.perf_counter() - began) * 1e6 / (each * workers)}


async def second_runtime(asked: dict[str, Any]) -> dict[str, Any]:
    """Looks by one event loop, which then ends, and takes by another."""
    at_once = {"concurrency": asked["count"]}

    def twice() -> dict[str, Any]:
        asyncio.run(many({**asked, **at_once, "op": "peek", "cost": 0}))
        return asyncio.run(many({**asked, **at_once, "op": "take"}))

    return await asyncio.to_thread(twice)


async def fork(asked: dict[str, Any]) -> dict[str, Any]:
    """Takes once, unless `at_once`, and in every child of a fork, then here; how many were allowed."""
    on = limiters[asked["on"]]
    seen: Counter[str] = Counter()

    def see(decision: Any) -> None:
        seen.update(allowed=int(decision.allowed), degraded=int(decision.degraded))

    async def takes_async() -> None:
        for _ in range(asked["count"]):
            see(await on.take(asked["name"]))

    def takes() -> None:
        if is_asynchronous(on):
            asyncio.run(takes_async())
        for _ in range(0 if is_asynchronous(on) else asked["count"]):
            see(on.take(asked["name"]))

    def in_child() -> int:
        reading, writing = os.pipe()
        if os.fork() == 0:
            seen.clear()
            try:
                takes()
            finally:
                os.write(writing, json.dumps(seen).encode())
                os._exit(0)
        os.close(writing)
        return reading

    if not asked.get("at_once"):
        see(await call(on, "take", asked["name"], asked))
    for reading in [in_child() for _ in range(asked["processes"])]:
        seen.update(json.loads(await asyncio.to_thread(os.read, reading, 64)))
        os.close(reading)
        os.wait()
    for _ in range(asked["count"] if not asked.get("at_once") else 0):
        see(await call(on, "take", asked["name"], asked))
    return {"allowed": seen["allowed"], "degraded": seen["degraded"]}


def answer(allowed: bool, headers: dict[str, str] | None = None) -> PlainTextResponse:
    return PlainTextResponse("ok" if allowed else "slow down", 200 if allowed else 429, headers)


def limited(asked: dict[str, Any]) -> Callable[[Request], Any]:
    on, name = limiters[asked["on"]], asked.get("name", "all")

    async def limited_by_task(request: Request) -> PlainTextResponse:
        decision = await on.take(name)
        return answer(decision.allowed, on.headers(decision))

    def limited_by_thread(request: Request) -> PlainTextResponse:
        decision = on.take(name)
        return answer(decision.allowed, on.headers(decision))

    return limited_by_task if is_asynchronous(on) else limited_by_thread


def held(asked: dict[str, Any]) -> Callable[[Request], Any]:
    """Holds as long as it sends, which is until the caller hangs up."""
    on, name = limiters[asked["on"]], asked["name"]

    async def work() -> AsyncIterator[str]:
        async with on.hold(name, asked["amount"], ttl_ms=asked["ttl_ms"]) as held:
            held.used = 0
            while True:
                yield "more\n"
                await anyio.sleep(0.05)

    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(work())

    return stream


def limited_by_limits(asked: dict[str, Any]) -> Callable[[Request], Any]:
    """By the library of that name, to compare; no other scenario waits until it is loaded."""
    import limits
    import limits.aio

    pool = clients["s"].connection_pool
    storage = limits.aio.storage.RedisStorage(
        f"async+redis://127.0.0.1:{pool.connection_kwargs['port']}", implementation="redispy"
    )
    strategy = limits.aio.strategies.MovingWindowRateLimiter(storage)
    limit, name = limiters[asked["on"]].limit, asked["name"]
    item = limits.RateLimitItemPerSecond(int(limit.capacity), int(limit.capacity / limit.tokens_per_s))

    async def limited_by_task(request: Request) -> PlainTextResponse:
        return answer(await strategy.hit(item, name))

    return limited_by_task


FRAMEWORKS = {"starlette": limited, "starlette that holds": held, "starlette with limits": limited_by_limits}


async def http(asked: dict[str, Any]) -> dict[str, Any]:
    """An application of Starlette with one route, served by uvicorn."""
    if asked["framework"] not in FRAMEWORKS:
        raise Unsupported(asked["framework"])
    app = Starlette(routes=[Route("/", FRAMEWORKS[asked["framework"]](asked))])
    served = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", access_log=False, lifespan="off", backlog=4096)
    )
    apps.append((served, asyncio.create_task(served.serve())))
    while not served.started:
        await asyncio.sleep(0.01)
    return {"port": served.servers[0].sockets[0].getsockname()[1]}


async def request(asked: dict[str, Any]) -> dict[str, Any]:
    """Sends a request by httpx, through the transport of the limiter."""
    on, options = (
        limiters[asked["on"]],
        {name: asked[name] for name in ("in_flight", "ttl_ms") if name in asked},
    )
    key = (asked["on"], *options.values())
    asynchronous = is_asynchronous(on)
    if key not in senders:
        kind: Any = AsyncRateLimitTransport if asynchronous else RateLimitTransport
        client: Any = httpx.AsyncClient if asynchronous else httpx.Client
        transport = kind(on, max_wait_ms=asked["max_wait_ms"], **options)
        senders[key] = client(transport=transport, timeout=60)
    get = senders[key].get
    response = await get(asked["url"]) if asynchronous else await in_thread(lambda: get(asked["url"]))
    return {"status": response.status_code}


async def busy(asked: dict[str, Any]) -> dict[str, Any]:
    """Keeps the event loop from everything else for so long."""
    time.sleep(asked["ms"] / 1000)
    return {}


async def degraded(asked: dict[str, Any]) -> dict[str, Any]:
    return {"count": servers[asked["server"]].degraded_count}


async def memory(asked: dict[str, Any]) -> dict[str, Any]:
    gc.collect()
    with open("/proc/self/statm") as file:
        return {"bytes": int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}


async def close(asked: dict[str, Any]) -> dict[str, Any]:
    one = limiters.pop(asked["name"], None) or servers.pop(asked["name"])
    await finished(one.aclose() if is_asynchronous(one) else await in_thread(one.close))
    return {}


DO: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    one.__name__: one
    for one in (server, limiter, joint, hold, settle, settle_inside, hold_cancelled, many, fork, http)
} | {one.__name__: one for one in (second_runtime, cost, request, busy, degraded, memory, close)}
DO |= dict.fromkeys(
    ("take", "peek", "take_up_to", "charge", "give", "reserve", "wait", "reset", "take_all"), operation
)


async def reply_to(asked: dict[str, Any]) -> None:
    asked = {name: value for name, value in asked.items() if value is not None or name == "name"}
    try:
        said = {"id": asked["id"], "ok": await DO[asked["do"]](asked)}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        said = {"id": asked["id"], "error": {"kind": kind_of(error), "text": text}}
    print(json.dumps(said), flush=True)


async def main() -> None:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    print(json.dumps({"ready": True, "clients": [*CLIENTS]}), flush=True)
    answering = set()
    while line := await lines.get():
        task = asyncio.create_task(reply_to(json.loads(line)))
        answering.add(task)
        task.add_done_callback(answering.discard)
    os._exit(0)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    (asyncio if os.environ.get("LOOP") == "asyncio" else uvloop).run(main())
