"""How many calls wait their turn in a server."""

from __future__ import annotations

from typing import Any

import redis

from services import Service, wait_for


def waiting(server: Service) -> int:
    with redis.Redis(port=server.port) as admin:
        info: Any = admin.info("everything")
        return int(info["tokenbucket_waiting"])


def until_waiting(server: Service, count: int) -> None:
    wait_for(lambda: waiting(server) == count, f"{count} waiting calls")
