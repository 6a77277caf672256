"""The Python package as a program of JSON lines, for the conformance suite.

Reads one request per line and writes one reply per line, each with the id of its request. Limiters for
asyncio run in the main event loop, those for threads in threads.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import uvloop

import tokenbucket
import tokenbucket.asyncio
from tokenbucket import Limit
from tokenbucket.api.operations import at_once, done

# By their modules. They and frameworks are loaded when a scenario needs them, so that a driver starts soon.
CLIENTS = {
    "redis-py": "redis",
    "redis-py-asyncio": "redis.asyncio",
    "valkey-py": "valkey",
    "valkey-py-asyncio": "valkey.asyncio",
}
KINDS = ("ReplyLost", "ServerAway", "ModuleMissing", "CrossSlot", "Denied", "BadArgument")
FIELDS = ("allowed", "granted", "remaining", "retry_after_ms", "degraded", "lost", "shadowed")
# So many calls at once are made by threads; more would only wait for the interpreter's lock.
MOST_THREADS = 512
STACK_BYTES = 256 * 1024

T = TypeVar("T")
servers: dict[str, Any] = {}
limiters: dict[str, Any] = {}
clients: dict[str, Any] = {}
holds: dict[str, Any] = {}
apps: list[Any] = []


def told(decision: Any) -> dict[str, Any]:
    said = {field: getattr(decision, field) for field in FIELDS}
    if each := getattr(decision, "each", None):
        said["each"] = {which: told(one) for which, one in each.items()}
    return said


def kind_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "Cancelled"
    return next((kind for kind in KINDS if isinstance(error, getattr(tokenbucket, kind))), "Other")


def is_asynchronous(limiter: Any) -> bool:
    return hasattr(limiter, "aclose") or hasattr(limiter, "__aenter__")


threads = ThreadPoolExecutor(MOST_THREADS)


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


async def run(on: Any, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Does the work of asyncio's kind here, and that of the threads' kind, which never waits, in a thread."""
    result: T = await (work() if is_asynchronous(on) else in_thread(lambda: at_once(work())))
    return result


# Requests


async def server(asked: dict[str, Any]) -> dict[str, Any]:
    library: Any = import_module(CLIENTS[asked["client"]])
    asynchronous = asked["client"].endswith("asyncio")

    def make() -> Any:
        if nodes := asked.get("cluster"):
            brand = library.__name__.split(".")[0]
            kind = getattr(library, f"{brand.title()}Cluster")
            node: Any = import_module(f"{library.__name__}.cluster").ClusterNode
            urls = [urlsplit(one) for one in nodes[1:]]
            others = [node(one.hostname, one.port) for one in urls]
            options = {"dynamic_startup_nodes": False} if asked["client"] == "valkey-py" else {}
            url = nodes[0].replace("redis://", f"{brand}://")
            return kind.from_url(url, startup_nodes=others, **options)
        if sentinel := asked.get("sentinel"):
            sentinels = import_module(f"{library.__name__}.sentinel")
            nodes = [tuple(one.rsplit(":", 1)) for one in sentinel["nodes"]]
            return sentinels.Sentinel(nodes).master_for(sentinel["master"])
        return library.from_url(asked["url"])

    client = make() if asynchronous else await asyncio.to_thread(make)
    options = {name: asked[name] for name in ("timeout_ms", "retry_every_ms", "by") if name in asked}
    package = tokenbucket.asyncio if asynchronous else tokenbucket
    clients[asked["name"]] = client
    servers[asked["name"]] = package.Server(client, **options)
    return {}


async def limiter(asked: dict[str, Any]) -> dict[str, Any]:
    on = servers[asked["server"]]
    package = tokenbucket.asyncio if is_asynchronous(on) else tokenbucket
    names = ("prefix", "on_error", "shadow", "batch", "remember_denials")
    options = {name: asked[name] for name in names if name in asked}
    if limits := asked.get("limits"):
        of = {which: Limit(*limit) for which, limit in limits.items()}
        limiters[asked["name"]] = package.JointLimiter(on, of, **options)
    else:
        limit = Limit(asked["capacity"], asked["rate"])
        limiters[asked["name"]] = package.Limiter(on, limit, **options)
    return {}


# What a call takes beside the name: the word for how much, and options.
AMOUNTS = {"take": "cost", "wait": "cost", "take_all": "costs"}
AMOUNTS |= dict.fromkeys(("take_any", "hold_any"), "alternatives")
OPTIONS = {
    "take": ("max_wait_ms", "share", "weight"),
    "take_all": ("max_wait_ms",),
    "wait": ("max_wait_ms",),
    "hold": ("max_wait_ms", "share", "weight", "ttl_ms"),
    "hold_any": ("ttl_ms",),
}


def prepared(on: Any, op: str, asked: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns what makes the call for a name."""
    amount = asked.get(AMOUNTS.get(op, "amount"), 1)
    options = {name: asked[name] for name in OPTIONS.get(op, ()) if name in asked}
    if "limit" in asked:
        options["limit"] = Limit(*asked["limit"])
    method = getattr(on, op)
    return lambda name: method(name, amount, **options)


def deadline_of(asked: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
    """Returns the deadline of a task; threads have none."""
    return asyncio.timeout(asked["deadline_us"] / 1e6) if "deadline_us" in asked else nullcontext()


async def call(on: Any, op: str, asked: dict[str, Any]) -> Any:
    async def work() -> Any:
        async with deadline_of(asked):
            return await done(prepared(on, op, asked)(asked["name"]))

    return await run(on, work)


async def operation(asked: dict[str, Any]) -> dict[str, Any]:
    return told(await call(limiters[asked["on"]], asked["do"], asked))


async def reset(asked: dict[str, Any]) -> dict[str, Any]:
    on = limiters[asked["on"]]
    await run(on, lambda: done(on.reset(asked["name"])))
    return {}


async def hold(asked: dict[str, Any]) -> dict[str, Any]:
    holds[asked["as"]] = held = await call(limiters[asked["on"]], asked["do"], asked)
    if held.allowed:
        held.keep_renewing()
    return told(held.decision)


async def lost(asked: dict[str, Any]) -> dict[str, Any]:
    one = holds[asked["hold"]]
    return {"lost": one.lost, "granted": one.decision.granted}


async def settle(asked: dict[str, Any]) -> dict[str, Any]:
    one = holds[asked["hold"]]
    return told(await run(one, lambda: done(one.settle(asked.get("used")))))


async def hold_cancelled(asked: dict[str, Any]) -> dict[str, Any]:
    """Enters the holds, and cancels them all together: tasks by anyio, threads by an error in each block."""
    on, count = limiters[asked["on"]], asked["count"]
    hold = prepared(on, "hold", asked)
    entered, is_over = threading.Semaphore(0), threading.Event()

    async def task() -> None:
        async with hold(asked["name"]) as held:
            held.used = 0
            entered.release()
            await anyio.sleep_forever()

    def thread() -> None:
        with suppress(InterruptedError), hold(asked["name"]) as held:
            held.used = 0
            entered.release()
            is_over.wait()
            raise InterruptedError

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(task if is_asynchronous(on) else lambda: in_thread(thread))
        for _ in range(count):
            while not entered.acquire(blocking=False):
                await anyio.sleep(0.001)
        is_over.set()
        if is_asynchronous(on):
            group.cancel_scope.cancel()
    return {}


# Many calls


class Tally:
    """What calls came to, by threads or tasks."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("calls", "allowed", "denied", "degraded", "cancelled"), 0)
        self.errors: Counter[str] = Counter()
        self.began = time.monotonic()
        self._lock = threading.Lock()

    def add(self, seen: Any) -> None:
        """A decision, a hold or an error."""
        with self._lock:
            self.counts["calls"] += 1
            if not isinstance(seen, Exception):
                decision = getattr(seen, "decision", seen)
                self.counts["allowed" if decision.allowed else "denied"] += 1
                self.counts["degraded"] += decision.degraded
            elif (kind := kind_of(seen)) == "Cancelled":
                self.counts["cancelled"] += 1
            else:
                self.errors[kind] += 1

    def told(self) -> dict[str, Any]:
        elapsed_us = (time.monotonic() - self.began) * 1e6
        per_call_us = elapsed_us / max(self.counts["calls"], 1)
        return self.counts | {"errors": dict(self.errors), "per_call_us": per_call_us}


def turns_of(asked: dict[str, Any], numbers: Iterator[int], began: float) -> Iterator[tuple[Any, float]]:
    """Yields the next calls and how long to wait before each, until the calls or the time end."""
    for at in numbers:  # which all callers share
        now = time.monotonic()
        due = began + at / asked["per_second"] if "per_second" in asked else now
        if "for_ms" in asked:
            if max(due, now) >= began + asked["for_ms"] / 1000:
                return
        elif at >= asked.get("count", 1):
            return
        yield f"n{at % asked['names']}" if "names" in asked else asked["name"], due - now


async def many(asked: dict[str, Any]) -> dict[str, Any]:
    on, tally, numbers = limiters[asked["on"]], Tally(), itertools.count()
    workers = min(asked.get("concurrency", 1), asked.get("count", sys.maxsize))
    if not is_asynchronous(on):
        workers = min(workers, MOST_THREADS)
    ask = prepared(on, asked["op"], asked)

    async def work() -> None:
        for name, wait_s in turns_of(asked, numbers, tally.began):
            if wait_s > 0:
                await done((asyncio if is_asynchronous(on) else time).sleep(wait_s))
            try:
                async with deadline_of(asked):
                    tally.add(await done(ask(name)))
            except Exception as error:
                tally.add(error)

    await asyncio.gather(*(run(on, work) for _ in range(workers)))
    return tally.told()


async def cost(asked: dict[str, Any]) -> dict[str, Any]:
    """So many takes, or commands of the bare client in their place, in a loop without anything else."""
    on, execute, words = limiters[asked["on"]], clients[asked["server"]].execute_command, asked["command"]
    each, workers = asked["count"] // asked["concurrency"], asked["concurrency"]

    async def work() -> None:
        for _ in range(each):
            await done(execute(*words) if asked["bare"] else on.take("user"))

    began = time.perf_counter()
    await asyncio.gather(*(run(on, work) for _ in range(workers)))
    return {"per_call_us": (time.perf_counter() - began) * 1e6 / (each * workers)}


async def second_runtime(asked: dict[str, Any]) -> dict[str, Any]:
    """Looks by one event loop, which then ends, and takes by another."""
    at_once = {"concurrency": asked["count"]}

    def twice() -> dict[str, Any]:
        asyncio.run(many({**asked, **at_once, "op": "take", "cost": 0}))
        return asyncio.run(many({**asked, **at_once, "op": "take"}))

    return await asyncio.to_thread(twice)


async def http(asked: dict[str, Any]) -> dict[str, Any]:
    """An application of Starlette with one route, served by uvicorn."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    on, name = limiters[asked["on"]], asked.get("name", "all")

    async def respond(request: Any) -> Any:
        decision = await run(on, lambda: done(on.take(name)))
        return PlainTextResponse("", 200 if decision.allowed else 429, on.headers(decision))

    app = Starlette(routes=[Route("/", respond)])
    served = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", access_log=False, lifespan="off", backlog=4096)
    )
    apps.append((served, asyncio.create_task(served.serve())))
    while not served.started:
        await asyncio.sleep(0.01)
    return {"port": served.servers[0].sockets[0].getsockname()[1]}


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
    await run(one, lambda: done((one.aclose if is_asynchronous(one) else one.close)()))
    return {}


REQUESTS = (server, limiter, reset, hold, lost, settle, hold_cancelled, many, second_runtime)
MORE = (cost, http, busy, degraded, memory, close)
DO: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    **{one.__name__: one for one in REQUESTS + MORE},
    **dict.fromkeys(("take", "take_all", "take_any", "take_up_to", "charge", "give", "wait"), operation),
    "hold_any": hold,
    "joint": limiter,
}


async def reply_to(asked: dict[str, Any]) -> None:
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


def fork_when_asked() -> None:
    """Imports everything once, and returns in a process for each message, with the files that it brings."""
    for name in CLIENTS.values():
        import_module(f"{name}.cluster"), import_module(f"{name}.sentinel")
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asking = socket.socket(fileno=os.dup(0))
    while files := socket.recv_fds(asking, 8, 3)[1]:
        if pid := os.fork():
            asking.send(pid.to_bytes(8, sys.byteorder))
        for to, file in enumerate(files):
            if not pid:
                os.dup2(file, to)
            os.close(file)
        if not pid:
            asking.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
    os._exit(0)


if __name__ == "__main__":
    if "--template" in sys.argv:
        fork_when_asked()
    threading.stack_size(STACK_BYTES)
    (asyncio if os.environ.get("LOOP") == "asyncio" else uvloop).run(main())
