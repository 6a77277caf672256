"""Runs the whole example: a Redis with the module, a replica of it, somebody who limits on it, and
the exporter.

The tests use the same pieces.
"""

from __future__ import annotations

import sys
from pathlib import Path

from redis import Redis

from services import (
    Service,
    free_port,
    redis_server,
    until_ctrl_c,
    wait_for,
    wait_until_over,
    wanted_port,
)

HERE = Path(__file__).resolve().parent
PORT = "9720"

# As docs/operate/monitoring.md has it.
MONITORING_USER = ["ACL", "SETUSER", "monitoring", "on", ">password", "-@all", "+info", "+tb.top"]

READY = """\
Redis with the module on port {redis}, a replica on port {replica}, a few hundred users.

for Prometheus         {url}/metrics
stop a node            redis-cli -p {replica} SHUTDOWN

Ctrl-C ends all of it.
"""


def client(service: Service) -> Redis:
    return Redis(port=service.port)


def start_node(folder: Path, *options: str, with_module: bool = True) -> Service:
    """A server that knows the user of the exporter."""
    service = redis_server(folder, *options, with_module=with_module)
    service.start()
    add_user(service, with_module)
    return service


def replica_of(master: Service) -> list[str]:
    return ["--replicaof", "127.0.0.1", str(master.port)]


def add_user(service: Service, with_module: bool = True) -> None:
    # A server without the module does not know the name of its command.
    user = MONITORING_USER if with_module else MONITORING_USER[:-1]
    wait_for(lambda: client(service).ping(), "PING")
    client(service).execute_command(*user)


def exporter(
    folder: Path, watched: list[Service], port: int | None = None, **settings: str
) -> Service:
    port = port or free_port()
    env = {
        "NODES": " ".join(f"redis://127.0.0.1:{node.port}" for node in watched),
        "REDIS_USERNAME": "monitoring",
        "REDIS_PASSWORD": "password",
        "PORT": str(port),
    }
    env |= {name.upper(): value for name, value in settings.items()}
    return Service("exporter", [sys.executable, str(HERE / "exporter.py")], port, folder, env)


def load(folder: Path, node: Service) -> Service:
    command = [sys.executable, str(HERE / "load.py"), str(node.port)]
    return Service("load", command, node.port, folder)


def main() -> None:
    port = wanted_port(PORT)
    with until_ctrl_c() as (folder, keep):
        redis = keep(start_node(folder))
        replica = keep(start_node(folder, *replica_of(redis)))
        keep(load(folder, redis)).start()
        watching = keep(exporter(folder, [redis, replica], port, every_s="2"))
        watching.start()
        url = f"http://127.0.0.1:{port}"
        print(READY.format(url=url, redis=redis.port, replica=replica.port), flush=True)
        wait_until_over(watching)


if __name__ == "__main__":
    main()
