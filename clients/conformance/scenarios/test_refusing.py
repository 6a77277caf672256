"""A server that is there and refuses writes, or still loads its data: on_error decides, and no call hangs."""

from __future__ import annotations

import pytest
import redis

from conftest import Package, StartServer, eventually, info
from drivers import DriverError
from launch import ask
from services import Service

NO_BGSAVE = "dump-is-a-folder"
# By which a server refuses, and what ends it.
REFUSALS = {
    "OOM": (("maxmemory", "1"), ("maxmemory", "0")),
    "MISCONF": (("save", "3600 1"), ("save", "")),
    "NOREPLICAS": (("min-replicas-to-write", "1"), ("min-replicas-to-write", "0")),
}


def test_a_server_that_refuses_writes_leaves_each_call_to_on_error(
    package: Package, start_server: StartServer
) -> None:
    server = start_server("--dbfilename", NO_BGSAVE)
    package.limit(server, "local", capacity=10, rate="10/h", timeout_ms=1000)
    package.limiter("raise", capacity=10, rate="10/h", on_error="raise")

    (server.folder / NO_BGSAVE).mkdir()  # no file can take its place
    ask(server, "BGSAVE")
    eventually(lambda: info(server)["rdb_last_bgsave_status"] == "err")
    for refusal, (begins, ends) in REFUSALS.items():
        words = {"on": "local", "name": refusal, "count": 100, "concurrency": 10}
        ask(server, "CONFIG", "SET", *begins)
        done = package.many(**words)
        assert (done["allowed"], done["degraded"], done["errors"]) == (10, 100, {}), refusal
        with pytest.raises(DriverError, match=f"ServerAway: .*{refusal}"):
            package.take(refusal, on="raise")

        ask(server, "CONFIG", "SET", *ends)
        # It was never away, so the very next call is its own to decide.
        done = package.many(**words)
        assert (done["allowed"], done["degraded"], done["errors"]) == (10, 0, {}), refusal


def test_a_hold_that_ends_while_the_server_refuses_writes_is_lost_when_it_takes_them(
    package: Package, server: Service
) -> None:
    package.limit(server, capacity=1, rate="0", connect=False, timeout_ms=1000)
    assert package.do("hold", amount=1, ttl_ms=900)["allowed"]
    begins, ends = REFUSALS["NOREPLICAS"]
    ask(server, "CONFIG", "SET", *begins)
    eventually(lambda: not ask(server, "TB.HOLDS", "tb:user"))
    assert not package.do("lost")["lost"]
    ask(server, "CONFIG", "SET", *ends)
    eventually(lambda: package.do("lost")["lost"])


def test_a_server_that_loads_its_data_is_away_until_it_has(
    package: Package, start_server: StartServer
) -> None:
    server = start_server()
    if info(server)["redis_version"].startswith("6."):
        pytest.skip("it answers nothing while it loads so little")
    package.limit(server, capacity=10, rate="10/h", timeout_ms=1000, retry_every_ms=100)
    assert package.many(count=20, concurrency=1)["allowed"] == 10
    with redis.Redis(port=server.port) as client:
        client.mset({f"filler:{number}": "x" * 1024 for number in range(1000)})
        client.save()
    server.kill()
    server.command += ["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"]
    server.start()

    assert is_loading(server)
    done = package.many(count=100, concurrency=10)
    assert is_loading(server)
    assert (done["allowed"], done["degraded"], done["errors"]) == (10, 100, {})
    eventually(lambda: not package.take("other")["degraded"], within_s=60)
    # Its bucket was saved empty.
    done = package.many(count=50, concurrency=10)
    assert (done["allowed"], done["degraded"], done["errors"]) == (0, 0, {})


def is_loading(server: Service) -> bool:
    return info(server)["loading"] == "1"
