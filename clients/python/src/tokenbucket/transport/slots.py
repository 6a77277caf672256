"""Which node of a cluster has a key."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from redis.crc import key_slot

from .circuit import Circuit
from .driver import Endpoint

SLOTS = 16_384


class Slots:
    """The map of slots, as the nodes tell it."""

    def __init__(
        self, seeds: list[Endpoint], manager: Any, new_circuit: Callable[[Endpoint], Circuit]
    ) -> None:
        self._manager = manager
        self._new_circuit = new_circuit
        self._any = seeds[0]
        self.circuits: dict[tuple[str, int], Circuit] = {}
        self._seeds = [self._circuit(one.options["host"], int(one.options["port"])) for one in seeds]
        self._slots: list[Circuit | None] = [None] * SLOTS

    def circuit_of(self, key: str) -> Circuit | None:
        return self._slots[key_slot(key.encode("utf-8", "surrogatepass"))]

    def whom_to_ask(self, besides: Circuit | None = None) -> Circuit:
        """Returns another node that may know the map, of those that are not away if there are any."""
        known = list(self.circuits.values())
        circuits = [circuit for circuit in known if circuit is not besides] or known
        return random.choice([circuit for circuit in circuits if not circuit.away_until] or circuits)

    def learn(self, reply: Any, asked: Circuit) -> None:
        for first, last, master, *_ in reply:
            circuit = self._circuit_said(master[0], master[1], asked)
            self._slots[first : last + 1] = [circuit] * (last + 1 - first)
        used = set(map(id, self._slots)) | set(map(id, self._seeds))
        for place, circuit in list(self.circuits.items()):
            if id(circuit) not in used and not circuit.transport.is_in_use:
                del self.circuits[place]
                circuit.transport.drop()

    def redirected(self, line: str, asked: Circuit) -> Circuit:
        """Follows `MOVED 866 10.0.0.1:6379` or `ASK …`; the first is remembered."""
        word, slot, address = line.split(" ")[:3]
        host, _, port = address.rpartition(":")
        circuit = self._circuit_said(host.encode(), int(port), asked)
        if word == "MOVED":
            self._slots[int(slot)] = circuit
        return circuit

    def _circuit_said(self, host: bytes | None, port: int, asked: Circuit) -> Circuit:
        if not host or host == b"?":  # the same host as the node that says so
            host = str(asked.endpoint.options["host"]).encode()
        return self._circuit(*self._manager.remap_host_port(host.decode(), int(port)))

    def _circuit(self, host: str, port: int) -> Circuit:
        circuit = self.circuits.get((host, port))
        if circuit is None:
            circuit = self.circuits[host, port] = self._new_circuit(self._any.at(host, port))
        return circuit
