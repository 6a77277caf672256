"""Asking a server: whether it is worth a try, what to send, and what an error means.

Nothing here waits or sends. `Server.ask` is a generator that yields commands and is sent replies, so
that threads and asyncio share every decision and differ in how they wait, see `_sync.run`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
import weakref
from collections.abc import Generator
from importlib import resources
from typing import Any, TypeVar

from ._command import NEED_THE_MODULE, Command, key_of, script_arguments, script_key
from ._connections import node_named, own_client
from ._errors import (
    ASKING_ERRORS,
    CrossSlot,
    Fault,
    ModuleMissing,
    fault_of,
    is_broken_connection,
    is_cross_slot,
    is_unknown_command,
    is_unknown_script,
)

log = logging.getLogger("tokenbucket")

T = TypeVar("T")
Steps = Generator[Command, Any, T]
"""Yields commands, is sent their replies or has their errors thrown in, and returns a T."""

_SECONDS_BETWEEN_REFUSALS_LOGGED = 60
_SECONDS_BETWEEN_LOOKS_FOR_THE_MODULE = 60


class Circuit:
    """Keeps calls from waiting for a server that is away; one at a time finds out whether it is back."""

    def __init__(self, who: str, retry_every_s: float) -> None:
        self._who = who
        self._retry_every_s = retry_every_s
        self._lock = threading.Lock()
        self._away = False
        self._probing = False
        self._next_probe = 0.0
        self._next_refusal_logged = 0.0

    def admits(self) -> bool:
        with self._lock:
            if not self._away:
                return True
            if self._probing or time.monotonic() < self._next_probe:
                return False
            self._probing = True
            return True

    def answered(self) -> None:
        with self._lock:
            was_away, self._away, self._probing = self._away, False, False
        if was_away:
            log.warning("%s is back, limiting again", self._who)

    def failed(self, error: Exception) -> None:
        with self._lock:
            was_away, self._away, self._probing = self._away, True, False
            self._next_probe = time.monotonic() + self._retry_every_s
        if not was_away:
            log.warning("cannot ask %s, every limit does as its on_error says: %r", self._who, error)

    def refused(self, error: Exception) -> None:
        """The server is there, and did not decide this call."""
        self.answered()
        with self._lock:
            now = time.monotonic()
            silent = now < self._next_refusal_logged
            if not silent:
                self._next_refusal_logged = now + _SECONDS_BETWEEN_REFUSALS_LOGGED
        if not silent:
            log.warning("%s refuses, on_error decides such calls: %r", self._who, error)

    def abandoned(self) -> None:
        """Whoever asked went away before there was an answer."""
        with self._lock:
            self._probing = False


class Script:
    """Whether the commands are asked as a Lua script, of a server without the module."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._until = 0.0
        self._is_needed = False

    @property
    def is_in_use(self) -> bool:
        return time.monotonic() < self._until

    def begin(self) -> None:
        self._until = time.monotonic() + _SECONDS_BETWEEN_LOOKS_FOR_THE_MODULE
        if not self._is_needed:
            log.warning("%s has no tokenbucket module: the script decides until it has", self._who)
        self._is_needed = True

    def end(self) -> None:
        if self._is_needed:
            log.warning("%s has the tokenbucket module: the script decides no longer", self._who)
        self._is_needed = False

    def look_for_module(self) -> None:
        """Lets the next call try the module again: the server may be another."""
        self._until = 0.0


@functools.cache
def _source() -> tuple[str, str]:
    """The script, and the name that the server gives it."""
    text = resources.files(__package__).joinpath("fallback.lua").read_text("utf-8")
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _run_script(command: Command) -> Steps[Any]:
    source, sha = _source()
    arguments = script_arguments(command)
    try:
        return (yield ("EVALSHA", sha, *arguments))
    except ASKING_ERRORS as error:
        if not is_unknown_script(error):
            raise
    return (yield ("EVAL", source, *arguments))


class Node:
    """What is known about a server, or about one node of a cluster."""

    def __init__(self, name: str, retry_every_s: float) -> None:
        who = f"the node {name}" if name else "the server"
        self.circuit = Circuit(who, retry_every_s)
        self.script = Script(who)


class Server:
    """What limiters on one client share: connections, and what is known about who answers there."""

    def __init__(self, client: Any, timeout_s: float, retry_every_s: float) -> None:
        # Not the client itself, or what is remembered about it would keep it alive.
        self.own_client = own_client(client, timeout_s, self._connected)
        self.timeout_s = timeout_s
        self.users = 0
        self._retry_every_s = retry_every_s
        self._nodes: dict[str, Node] = {}
        self._lock = threading.Lock()

    def _node_of(self, client: Any, key: str) -> Node:
        name = node_named(client, key)
        with self._lock:
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = Node(name, self._retry_every_s)
            return node

    def ask(
        self, client: Any, command: Command, *, script: bool, always: bool = False, repeatable: bool = False
    ) -> Steps[Any]:
        """The server's reply, or None when it does not decide. Raises what is the caller's mistake.

        `always`: asks also while the server is thought to be away. `repeatable`: a call that changes
        nothing the second time, sent once more if the connection broke before the reply.
        """
        key = key_of(command)
        node = self._node_of(client, key)
        if script and command[0] not in NEED_THE_MODULE:
            if not node.script.is_in_use:
                try:
                    return (yield from self._ask(node, self._send(node, command, repeatable), always))
                except ModuleMissing:
                    node.script.begin()
            # Its keys have other names, and so perhaps another node.
            node = self._node_of(client, script_key(key))
            return (yield from self._ask(node, _run_script(command), always))
        return (yield from self._ask(node, self._send(node, command, repeatable), always))

    def _ask(self, node: Node, sending: Steps[Any], always: bool) -> Steps[Any]:
        if not (node.circuit.admits() or always):
            return None
        try:
            reply = yield from sending
        except ASKING_ERRORS as error:
            fault = fault_of(error)
            if fault is Fault.AWAY:
                node.circuit.failed(error)
                return None
            if fault is Fault.REFUSING:
                node.circuit.refused(error)
                return None
            node.circuit.answered()
            if is_cross_slot(error):
                raise CrossSlot from error
            raise
        except ModuleMissing:
            node.circuit.answered()
            raise
        except BaseException:
            node.circuit.abandoned()
            raise
        node.circuit.answered()
        return reply

    @staticmethod
    def _send(node: Node, command: Command, repeatable: bool) -> Steps[Any]:
        try:
            reply = yield from Server._send_to_module(command, repeatable)
        except ASKING_ERRORS as error:
            if not is_unknown_command(error):
                raise
            if command[0] in NEED_THE_MODULE:
                raise ModuleMissing(
                    "holds need the tokenbucket module, which the server has not loaded"
                ) from error
            raise ModuleMissing(
                "the server has no tokenbucket module: load it, or set fallback='script'"
            ) from error
        node.script.end()
        return reply

    @staticmethod
    def _send_to_module(command: Command, repeatable: bool) -> Steps[Any]:
        try:
            return (yield command)
        except ASKING_ERRORS as error:
            if not (repeatable and is_broken_connection(error)):
                raise
        return (yield command)

    def _connected(self) -> None:
        with self._lock:
            nodes = list(self._nodes.values())
        for node in nodes:
            node.script.look_for_module()


_servers: weakref.WeakKeyDictionary[Any, dict[tuple[float, float], Server]] = weakref.WeakKeyDictionary()
_servers_lock = threading.Lock()


def join(client: Any, timeout_s: float, retry_every_s: float) -> Server:
    """The server behind `client`, shared with those who ask it in the same way; to be left."""
    with _servers_lock:
        of_client = _servers.setdefault(client, {})
        settings = (timeout_s, retry_every_s)
        server = of_client.get(settings)
        if server is None:
            server = of_client[settings] = Server(client, timeout_s, retry_every_s)
        server.users += 1
        return server


def leave(server: Server) -> bool:
    """Whether its connections are to be closed: nobody else uses them, and they are its own."""
    with _servers_lock:
        server.users -= 1
        if server.users > 0 or server.own_client is None:
            return False
        for of_client in _servers.values():
            for settings, one in list(of_client.items()):
                if one is server:
                    del of_client[settings]
        return True
