"""Where things are, and clusters of real servers. SERVER and MODULE say which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from services import Service, redis_server, wait_for

PACKAGE = Path(__file__).resolve().parent.parent
REPOSITORY = PACKAGE.parent.parent
SLOTS = 16_384


class Cluster:
    """Three masters, and whatever a test adds."""

    def __init__(self, folder: Path, keep: Callable[[Service], object], with_module: bool = True) -> None:
        self._folder = folder
        self._keep = keep
        self._with_module = with_module
        self.nodes = [self._start() for _ in range(3)]
        share = -(-SLOTS // 3)
        for at, node in enumerate(self.nodes):
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            self.ask(node, "CLUSTER", "ADDSLOTS", *range(share * at, min(share * (at + 1), SLOTS)))
            self._meet(node)
        self._until_ok()

    def _start(self) -> Service:
        # A node that is away takes its slots with it, and leaves the others at work.
        options = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"]
        options += ["--repl-diskless-sync-delay", "0"]
        # Each in a folder of its own: there it writes what it knows of the others.
        folder = self._folder / str(len(list(self._folder.iterdir())))
        folder.mkdir()
        node = redis_server(folder, *options, with_module=self._with_module)
        node.start()
        self._keep(node)
        return node

    def _meet(self, node: Service) -> None:
        self.ask(node, "CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)

    def _until_ok(self) -> None:
        for node in self.nodes:
            wait_for(lambda node=node: self._is_ok(node), "the cluster")  # type: ignore[misc]

    def _is_ok(self, node: Service) -> bool:
        info = self.ask(node, "CLUSTER", "INFO")
        return f"cluster_slots_ok:{SLOTS}" in info and "cluster_state:ok" in info

    def add_replica_of(self, master: Service) -> Service:
        """Once it has all that its master has."""
        replica = self._start()
        self._meet(replica)
        id = self.ask(master, "CLUSTER", "MYID")
        wait_for(lambda: id in str(self.ask(replica, "CLUSTER", "NODES")), "the master's name")
        self.ask(replica, "CLUSTER", "REPLICATE", id)
        wait_for(
            lambda: self.ask(replica, "INFO", "replication")["master_link_status"] == "up", "the replica"
        )
        # Or it would take over before it knows which slots its master has.
        assigned = f"cluster_slots_assigned:{SLOTS}"
        wait_for(lambda: assigned in self.ask(replica, "CLUSTER", "INFO"), "the slots")
        return replica

    def take_over(self, replica: Service) -> None:
        """Makes it the master, when its own is gone, and waits until the others know."""
        self.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
        wait_for(
            lambda: all(self._knows_as_master(replica, node) for node in self._alive()), "the new master"
        )

    def _alive(self) -> list[Service]:
        return [node for node in self.nodes if not node.ended()]

    def _knows_as_master(self, one: Service, node: Service) -> bool:
        lines = self.ask(node, "CLUSTER", "NODES").splitlines()
        return any(f":{one.port}@" in line and "master" in line for line in lines)

    def node_of(self, key: str) -> Service:
        slot = int(self.ask(self.nodes[0], "CLUSTER", "KEYSLOT", key))
        return self.nodes[slot // -(-SLOTS // 3)]

    def name_on(self, node: Service, prefix: str = "tb:") -> str:
        """A name whose bucket that node has, and whatever shares its hash tag."""
        return next(name for at in range(1000) if self.node_of(prefix + (name := f"{{{at}}}")) is node)

    def move_slot_of(self, key: str, to: Service) -> None:
        """Where there is nothing in it yet."""
        slot, owner = self.ask(to, "CLUSTER", "KEYSLOT", key), self.node_of(key)
        wait_for(lambda: len({self._epoch(node) for node in self.nodes}) == 1, "the last move's epoch")
        # Else an owner of a later epoch might have it back.
        self._set_slot(to, slot, "IMPORTING", owner)
        self._set_slot(owner, slot, "MIGRATING", to)
        for node in (to, *(one for one in self.nodes if one is not to)):
            self._set_slot(node, slot, "NODE", to)

    def _epoch(self, node: Service) -> str:
        [line] = [line for line in self.ask(node, "CLUSTER", "INFO").split() if "current_epoch" in line]
        return str(line)

    def _set_slot(self, node: Service, slot: int, how: str, other: Service) -> None:
        self.ask(node, "CLUSTER", "SETSLOT", slot, how, self.ask(other, "CLUSTER", "MYID"))

    @staticmethod
    def ask(node: Service, *words: Any) -> Any:
        with redis.Redis(port=node.port, decode_responses=True) as admin:
            return admin.execute_command(*words)


@contextmanager
def cluster(folder: Path, with_module: bool = True) -> Iterator[Cluster]:
    with ExitStack() as at_the_end:
        yield Cluster(folder, lambda node: at_the_end.callback(node.stop), with_module)
