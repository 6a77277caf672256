"""All packages decide alike: the same random calls have the same outcomes, also while the server is away.

Tokens flow in so slowly that the moment of a call does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from conftest import CLIENTS, LANGUAGES, Client, Package, StartDriver, StartProxy, StartServer, disconnect
from drivers import DriverError
from launch import ask
from proxy import Proxy
from services import Service

# Of the calendar, those whose boundaries hardly ever come while this runs.
RATES = ["0", "1/d", "2/7d", "0.5/d", "1000@y", "10@3mo", "3@mo+09:00"]
OPERATIONS = ["take"] * 5 + ["take_up_to", "charge", "give", "wait", "take_all", "take_all", "hold", "hold"]
OFTEN, ROUNDS = 0.3, 25
# What others may differ by: calls of a package come at moments of their own.
LATER_MS = 300_000

# The last limits that fill within 100 years and the first that do not, and other bounds of rates.
BOUNDS = [
    *((1200, "1@mo"), (1201, "1@mo"), (400, "1@3mo"), (401, "1@3mo"), (100, "1@y"), (101, "1@y")),
    *((5217, "1@w"), (5218, "1@w"), (36_525, "1@d"), (36_526, "1@d"), (36_525, "1/d"), (36_526, "1/d")),
    *((1, "1/36525d"), (1, "1/36526d"), (1, "1000@36525d"), (1, "1000@36526d"), (250, "1/146.1d")),
    *((0, "0.000834@mo"), (0, "0.000833@mo"), (0, "0.0025@3mo"), (0, "0.00249@3mo"), (0, "0.0099@y")),
    *((0, "0.000001@m"), (0, "0.0000009@m"), (2, "1.0000009@36525d"), (1, "1e9/ms"), (1, "1000000001/ms")),
    *((1, "1e9@ms"), (1, "1000000001@ms"), (1, "0/m"), (1, "0@mo")),
]

Words = dict[str, Any]


@dataclass
class Round:
    """Calls to make in turn, of limiters to make first."""

    limiter: Words
    joint: Words
    calls: list[tuple[str, Words]]
    away_from: int
    """Before which call the server goes away."""


def a_round(random: Random) -> Round:
    capacity, rate = random.choice([1, 2, 5, 10, 100, 2.5]), random.choice(RATES)
    limits = {"a": [capacity, rate], "b": [random.choice([1, 3, 20]), random.choice(RATES)]}
    shared: Words = {"on_error": random.choice(["local", "local", "open", "closed", "raise"])}
    if random.random() < OFTEN:
        shared["shadow"] = True
    own: Words = {"capacity": capacity, "rate": rate, **shared}
    if random.random() < OFTEN:
        own["batch"] = random.choice([2, 5, 50])
    if random.random() < OFTEN:
        own["remember_denials"] = 100
    calls: list[tuple[str, Words]] = []
    for number in range(random.randint(4, 12)):
        calls += a_call(random, f"h{number}", own)
    away_from = random.randint(0, len(calls)) if random.random() < OFTEN else len(calls)
    return Round(own, {"limits": limits, **shared}, calls, away_from)


def a_call(random: Random, hold: str, limiter: Words) -> list[tuple[str, Words]]:
    capacity: float = limiter["capacity"]
    in_batches = "batch" in limiter

    def amount() -> float:
        return random.choice([1, 1, 1, 2, 3, 0, 0.5, capacity, capacity + 1, 1.25, 7, -1, 1e12, 1e13])

    def amounts() -> dict[str, float]:
        return {which: amount() for which in random.choice([["a"], ["a", "b"], ["b", "a"]])}

    words: Words = {"name": random.choice(["u", "u", "v"])}
    match operation := random.choice(OPERATIONS):
        case "take":
            # How much a fetch takes from the bucket is each package's own.
            words["cost"] = 1 if in_batches else amount()
        case "take_up_to":
            words["amount"] = random.choice([1, 2, 3, 7, 0, 10**12, 10**13])
        case "charge" | "give":
            words["amount"] = amount()
        case "wait":
            words |= {"cost": random.choice([1, 2, capacity]), "max_wait_ms": random.choice([0, 20])}
        case "take_all":
            words |= {"on": "j", "costs": amounts()}
        case "hold":
            is_joint = random.random() < OFTEN
            words |= {"on": "j", "amount": amounts()} if is_joint else {"amount": amount()}
            words["as"] = hold
            settle: Words = {"hold": hold}
            if not is_joint and limiter["rate"] != "0" and random.random() < OFTEN:
                settle["used"] = random.choice([0, 1, 2.5])
            return [(operation, words), ("settle", settle)]
    if in_batches and operation in ("charge", "give", "take_up_to", "wait"):
        return []
    return [(operation, words)]


def outcomes(package: Package, of: Round, server: Service, proxy: Proxy, prefix: str) -> list[Any]:
    """What came of each call, or the kind of its error, and at last what the buckets hold."""
    package.limit(proxy, **of.limiter, prefix=prefix, connect=False, timeout_ms=5000, retry_every_ms=100_000)
    package.joint(**of.joint, prefix=f"{prefix}j:")
    seen: list[Any] = []
    held: set[str] = set()
    for number, (operation, words) in enumerate(of.calls):
        if number == of.away_from:
            disconnect(proxy)
            outcome(package, "take", {"name": "finds out"})
        if operation == "settle" and words["hold"] not in held:
            continue
        seen.append(outcome(package, operation, words))
        if operation == "hold" and isinstance(seen[-1], dict) and seen[-1]["allowed"]:
            held.add(words["as"])
    proxy.redirect(server.port)
    keys = sorted(ask(server, "KEYS", f"{prefix}*"))
    # All amounts are quarters, from which the millionths that have flowed in are far.
    seen.append({key.removeprefix(prefix): round(float(ask(server, "TB.STATE", key)[0]), 2) for key in keys})
    return seen


def outcome(package: Package, operation: str, words: Words) -> Any:
    try:
        decision: Words = package.do(operation, **words)
        # Where a hold was not there, some tell what it was charged instead.
        return decision | {"each": {}} if operation == "settle" else decision
    except DriverError as error:
        return "ServerAway" if error.kind == "ServerAway" else "an error"


def are_alike(one: Any, other: Any) -> bool:
    if not (isinstance(one, dict) and isinstance(other, dict) and "allowed" in one):
        return bool(one == other)
    waits = [one["retry_after_ms"], other["retry_after_ms"]]
    is_same_wait = waits[0] == waits[1] or (min(waits) > 0 and abs(waits[0] - waits[1]) < LATER_MS)
    fields = ("allowed", "granted", "remaining", "degraded", "shadowed")
    # A package may leave out the only part.
    each, others = one.get("each") or {}, other.get("each") or {}
    return (
        all(one[field] == other[field] for field in fields)
        and (is_same_wait or min(waits) > 10**12)
        and all(are_alike(each[which], others[which]) for which in each if which in others)
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_same_calls_have_the_same_outcomes(
    start_driver: StartDriver, start_server: StartServer, start_proxy: StartProxy, seed: int
) -> None:
    server, random = start_server(), Random(seed)
    packages = [
        (Package(start_driver, Client(language, library)), start_proxy(server))
        for language in LANGUAGES
        for library in CLIENTS[language]
    ]
    for number in range(ROUNDS):
        of = a_round(random)
        seen = [
            (package.client, outcomes(package, of, server, proxy, f"{number}:{package.client}:"))
            for package, proxy in packages
        ]
        (first, expected), *others = seen
        for client, found in others:
            for at, (one, other) in enumerate(zip(expected, found, strict=True)):
                if not are_alike(one, other):
                    pytest.fail(f"{first}: {one}\n{client}: {other}\nfor outcome {at} of {of}", pytrace=False)


@pytest.mark.only("redis-py", "ioredis", "go-redis", "redis-rs")
def test_what_is_no_limit_for_the_server_is_none_while_it_is_away(
    package: Package, server: Service, proxy: Proxy
) -> None:
    package.server(proxy, timeout_ms=5000, retry_every_ms=100_000)

    def ask_for(capacity: float, rate: str) -> Any:
        try:
            package.limiter(capacity=capacity, rate=rate, on_error="local", connect=False)
        except DriverError:
            return "an error"
        return outcome(package, "take", {"cost": 0})

    by_server = [ask_for(*bound) for bound in BOUNDS]
    disconnect(proxy)
    assert ask_for(1, "1/s")["degraded"]
    for bound, one in zip(BOUNDS, by_server, strict=True):
        assert (ask_for(*bound) == "an error") == (one == "an error"), bound
    assert by_server.count("an error") == 17
