#!/usr/bin/env python3
"""Starts real servers on free ports, for examples and tests in any language, and ends them with their caller.

launch.py run COMMAND...
    Runs COMMAND while a server with the module is up. REDIS_URL, REDIS_ADDR and REDIS_PORT tell it where.

launch.py serve [--cluster] [--without-module] [--clock] [-- OPTION...]
    Starts one server, or a cluster of three masters, and runs until its input ends. OPTIONs are the server's
    own. With --clock the time of the server is what the file `clock` in the folder says: Unix microseconds,
    8 bytes, big-endian. Prints {"folder": ..., "nodes": [{"port": ..., "pid": ...}, ...]}. Then each line of
    input is a JSON array, with nodes by their index, and each reply a line of JSON, {"reply": ...} or
    {"error": ...}:

    ["start", node, OPTION...]   starts it again on its port, empty, with more options; its pid
    ["stop", node]               kills it
    ["ask", node, WORD...]       its reply to a command
    ["node_of", key]             the index of the master that has the key
    ["move_slot", key, node]     moves the slot of the key, with all its keys
    ["replica", node]            adds a replica that has all that its master has; its index, port and pid
    ["take_over", node]          makes a replica the master in place of its own, which is gone

SERVER and MODULE name the server and the module.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from services import Service, redis_server, wait_for

CLOCK_SOURCE = Path(__file__).resolve().parent.parent / "tests/common/fakeclock.c"
START_US = 1_767_225_600_000_000
SLOTS = 16_384
SHARE = -(-SLOTS // 3)
# All else is the server's default: the loss of a node stops the others after cluster-node-timeout, 15 s.
CLUSTER_OPTIONS = ["--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0"]


class ErrorReply(Exception):
    """An error reply of a server."""


def ask(server: Service, *words: object) -> Any:
    """The reply to one command: a string, an integer, None or a list of these."""
    parts = [str(word).encode() for word in words]
    request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as replies:
            return read(replies)


def read(replies: IO[bytes]) -> Any:
    line = replies.readline().decode().rstrip("\r\n")
    kind, rest = line[:1], line[1:]
    if kind == "+":
        return rest
    if kind == ":":
        return int(rest)
    if kind == "$":
        return None if rest == "-1" else replies.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == "*":
        return None if rest == "-1" else [read(replies) for _ in range(int(rest))]
    raise ErrorReply(rest or "connection closed")


class Servers:
    """One server, or a cluster of three masters and whatever a test adds; each in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        cluster: bool = False,
        with_module: bool = True,
        env: dict[str, str] | None = None,
    ) -> None:
        self.nodes: list[Service] = []
        self._folder = folder
        self._options = [*(CLUSTER_OPTIONS if cluster else []), *options]
        self._with_module = with_module
        self._env = env
        try:
            for _ in range(3 if cluster else 1):
                self._add()
            if cluster:
                self._join()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def _add(self) -> Service:
        folder = self._folder / str(len(self.nodes))
        folder.mkdir()
        node = redis_server(folder, *self._options, with_module=self._with_module, env=self._env)
        self.nodes.append(node)
        node.start()
        return node

    def _join(self) -> None:
        for at, node in enumerate(self.nodes):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            ask(node, "CLUSTER", "ADDSLOTS", *range(SHARE * at, min(SHARE * (at + 1), SLOTS)))
            self._meet(node)
        for node in self.nodes:
            wait_until(node, "CLUSTER INFO", "cluster_state:ok")
            wait_until(node, "CLUSTER INFO", f"cluster_slots_ok:{SLOTS}")

    def _meet(self, node: Service) -> None:
        ask(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)

    def add_replica_of(self, master: Service) -> Service:
        """Once it has all that its master has."""
        replica = self._add()
        self._meet(replica)
        id = ask(master, "CLUSTER", "MYID")
        wait_until(replica, "CLUSTER NODES", id)
        ask(replica, "CLUSTER", "REPLICATE", id)
        wait_until(replica, "INFO replication", "master_link_status:up")
        # Or it would take over before it knows which slots its master has.
        wait_until(replica, "CLUSTER INFO", f"cluster_slots_assigned:{SLOTS}")
        return replica

    def take_over(self, replica: Service) -> None:
        """Makes it the master, when its own is gone, and waits until the others know."""
        id = ask(replica, "CLUSTER", "MYID")
        ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        known = f"{id} 127.0.0.1:{replica.port}@{replica.port + 10_000} master"
        for node in self.nodes:
            if node is not replica and not node.ended():
                wait_until(node, "CLUSTER NODES", known)

    def node_of(self, key: str) -> Service:
        """The node that has the key, as the slots were dealt."""
        slot: int = ask(self.nodes[0], "CLUSTER", "KEYSLOT", key)
        return self.nodes[slot // SHARE]

    def name_on(self, node: Service, prefix: str = "tb:") -> str:
        """A name whose bucket that node has, and whatever shares its hash tag."""
        return next(name for at in range(1000) if self.node_of(prefix + (name := f"{{{at}}}")) is node)

    def begin_to_move_slot_of(self, key: str, to: Service) -> None:
        """From then on the node that has the slot redirects calls of keys that it does not have."""
        slot, owner = ask(to, "CLUSTER", "KEYSLOT", key), self.node_of(key)
        self._set_slot(to, slot, "IMPORTING", owner)
        self._set_slot(owner, slot, "MIGRATING", to)

    def move_slot_of(self, key: str, to: Service) -> None:
        """With all keys in it."""
        slot, owner = ask(to, "CLUSTER", "KEYSLOT", key), self.node_of(key)
        wait_for(lambda: len({self._epoch(node) for node in self.nodes}) == 1, "the last move's epoch")
        # Else an owner of a later epoch might have it back.
        self.begin_to_move_slot_of(key, to)
        while keys := ask(owner, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            ask(owner, "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        for node in (to, *(one for one in self.nodes if one is not to)):
            self._set_slot(node, slot, "NODE", to)

    def _epoch(self, node: Service) -> str:
        [line] = [line for line in ask(node, "CLUSTER", "INFO").split() if "current_epoch" in line]
        return str(line)

    def _set_slot(self, node: Service, slot: int, how: str, other: Service) -> None:
        ask(node, "CLUSTER", "SETSLOT", slot, how, ask(other, "CLUSTER", "MYID"))


def wait_until(node: Service, command: str, said: str) -> None:
    wait_for(lambda: said in ask(node, *command.split()), f"{command}: {said}")


def fake_clock(clock: Path) -> dict[str, str]:
    """The environment of a server whose time is what the file says."""
    library = clock.with_name("fakeclock.so")
    compiler = os.environ.get("CC", "cc")
    files = ["-o", str(library), str(CLOCK_SOURCE)]
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", *files, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FAKECLOCK": str(clock)}


def run(folder: Path, command: list[str]) -> int:
    end_with_parent()
    with Servers(folder) as servers:
        port = servers.nodes[0].port
        address = f"127.0.0.1:{port}"
        where = {"REDIS_URL": f"redis://{address}", "REDIS_ADDR": address, "REDIS_PORT": str(port)}
        with subprocess.Popen(command, env=os.environ | where) as process:
            # Ctrl-C reaches the command too: it ends first.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            return process.wait()


def serve(folder: Path, words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="launch.py serve")
    for flag in ("--cluster", "--without-module", "--clock"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("options", nargs="*")
    wanted = parser.parse_args(words)
    env = None
    if wanted.clock:
        clock = folder / "clock"
        clock.write_bytes(START_US.to_bytes(8, "big"))
        env = fake_clock(clock)
    options = {"cluster": wanted.cluster, "with_module": not wanted.without_module, "env": env}
    with Servers(folder, *wanted.options, **options) as servers:
        nodes = [{"port": node.port, "pid": node.pid} for node in servers.nodes]
        say({"folder": str(folder), "nodes": nodes})
        for line in sys.stdin:
            try:
                say({"reply": obey(servers, *json.loads(line))})
            except (ErrorReply, OSError, RuntimeError) as error:
                say({"error": str(error) or type(error).__name__})
    return 0


def say(line: object) -> None:
    print(json.dumps(line), flush=True)


def obey(servers: Servers, operation: str, *arguments: Any) -> Any:
    nodes = servers.nodes

    def start(at: int, *options: str) -> int:
        nodes[at].command += options
        nodes[at].start()
        return nodes[at].pid

    def replica(of: int) -> dict[str, int]:
        node = servers.add_replica_of(nodes[of])
        return {"node": nodes.index(node), "port": node.port, "pid": node.pid}

    operations: dict[str, Callable[..., Any]] = {
        "start": start,
        "stop": lambda at: nodes[at].kill(),
        "ask": lambda at, *words: ask(nodes[at], *words),
        "node_of": lambda key: nodes.index(servers.node_of(key)),
        "move_slot": lambda key, to: servers.move_slot_of(key, nodes[to]),
        "replica": replica,
        "take_over": lambda at: servers.take_over(nodes[at]),
    }
    return operations[operation](*arguments)


def end_with_parent() -> None:
    """Linux alone tells a program that its parent was killed."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="tokenbucket-", ignore_cleanup_errors=True) as folder:
        match sys.argv[1:]:
            case ["run", *command] if command:
                return run(Path(folder), command)
            case ["serve", *words]:
                return serve(Path(folder), words)
    sys.exit(__doc__)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (RuntimeError, FileNotFoundError) as error:
        sys.exit(str(error))
