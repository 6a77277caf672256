"""The network goes away and comes back: what was not delivered meanwhile arrives no later.

`make test` runs it in a network of its own, whose only device it switches off and on.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from pathlib import Path

import pytest

from conftest import Package, StartServer, eventually
from launch import ask

SIOCSIFFLAGS, IFF_UP = 0x8914, 1
# Longer than three of the system's sendings again: the next is seconds later.
PARTITION_S = 3.5

pytestmark = pytest.mark.partition


def switch(*, on: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP if on else 0))


def are_undelivered(port: int) -> bool:
    """Returns whether the system still sends what the sockets of this network have sent to the port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and not row[4].startswith("00000000:") for row in rows)


@pytest.mark.parametrize("on_error", ["local", "closed"])
def test_a_hold_that_was_asked_for_in_a_partition_stays_with_nobody(
    package: Package, start_server: StartServer, on_error: str
) -> None:
    switch(on=True)
    server = start_server()
    package.limit(server, capacity=10, rate="10/h", on_error=on_error, retry_every_ms=100)
    switch(on=False)
    began = time.monotonic()
    try:
        held = package.do("hold", amount=1, ttl_ms=600_000)
        assert held["degraded"]
        assert held["allowed"] == (on_error == "local")
        if held["allowed"]:
            package.do("settle", hold="h")
        time.sleep(max(0, began + PARTITION_S - time.monotonic()))
    finally:
        switch(on=True)
    eventually(lambda: not package.take(cost=0)["degraded"])
    eventually(lambda: not are_undelivered(server.port))
    eventually(lambda: ask(server, "TB.HOLDS", "tb:user") == [])
