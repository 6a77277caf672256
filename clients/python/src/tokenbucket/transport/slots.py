"""Which node of a cluster has a key."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from redis.crc import key_slot

from .driver import Endpoint
from .node import Node

SLOTS = 16_384


class Slots:
    """The map of slots, as the nodes tell it."""

    def __init__(self, seeds: list[Endpoint], manager: Any, new_node: Callable[[Endpoint], Node]) -> None:
        self._manager = manager
        self._new_node = new_node
        self._any = seeds[0]
        self.nodes: dict[tuple[str, int], Node] = {}
        self._seeds = [self._node(one.options["host"], int(one.options["port"])) for one in seeds]
        self._slots: list[Node | None] = [None] * SLOTS

    def node_of(self, key: str) -> Node | None:
        return self._slots[key_slot(key.encode("utf-8", "surrogatepass"))]

    def whom_to_ask(self) -> Node:
        """Returns a node that may know the map, of those that are not away if there are any."""
        nodes = list(self.nodes.values())
        return random.choice([node for node in nodes if not node.away_until] or nodes)

    def learn(self, reply: Any, asked: Node) -> None:
        for first, last, master, *_ in reply:
            node = self._node_said(master[0], master[1], asked)
            self._slots[first : last + 1] = [node] * (last + 1 - first)
        used = set(map(id, self._slots)) | set(map(id, self._seeds))
        for place, node in list(self.nodes.items()):
            if id(node) not in used and not node.transport.is_in_use:
                del self.nodes[place]
                node.transport.drop()

    def redirected(self, line: str, asked: Node) -> Node:
        """Follows `MOVED 866 10.0.0.1:6379` or `ASK …`; the first is remembered."""
        word, slot, address = line.split(" ")[:3]
        host, _, port = address.rpartition(":")
        node = self._node_said(host.encode(), int(port), asked)
        if word == "MOVED":
            self._slots[int(slot)] = node
        return node

    def _node_said(self, host: bytes | None, port: int, asked: Node) -> Node:
        if not host or host == b"?":  # the same host as the node that says so
            host = str(asked.endpoint.options["host"]).encode()
        return self._node(*self._manager.remap_host_port(host.decode(), int(port)))

    def _node(self, host: str, port: int) -> Node:
        node = self.nodes.get((host, port))
        if node is None:
            node = self.nodes[host, port] = self._new_node(self._any.at(host, port))
        return node
