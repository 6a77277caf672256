"""Asking a server: whether it is worth a try, what to send, and what an error means.

Nothing here waits or sends. `Server.ask` is a generator that yields commands and is sent replies, so
that threads and asyncio share every decision and differ in how they wait, see `_sync.run`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import weakref
from collections.abc import Generator
from importlib import resources
from typing import Any, TypeVar

from ._connections import own_client
from ._errors import (
    ASKING_ERRORS,
    Fault,
    ModuleMissing,
    ServerAway,
    fault_of,
    is_broken_connection,
    is_unknown_command,
    is_unknown_script,
)

log = logging.getLogger("tokenbucket")

T = TypeVar("T")
Word = str | int
Command = tuple[Word, ...]
Steps = Generator[Command, Any, T]
"""Yields commands, is sent their replies or has their errors thrown in, and returns a T."""

_SECONDS_BETWEEN_REFUSALS_LOGGED = 60
_SECONDS_BETWEEN_LOOKS_FOR_THE_MODULE = 60


class Circuit:
    """Keeps calls from waiting for a server that is away; one at a time finds out whether it is back."""

    def __init__(self, retry_every_s: float) -> None:
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
            log.warning("the server is back, limiting again")

    def failed(self, error: Exception) -> None:
        with self._lock:
            was_away, self._away, self._probing = self._away, True, False
            self._next_probe = time.monotonic() + self._retry_every_s
        if not was_away:
            log.warning("cannot ask the server, every limit does as its on_error says: %r", error)

    def refused(self, error: Exception) -> None:
        """The server is there, and did not decide this call."""
        self.answered()
        with self._lock:
            now = time.monotonic()
            silent = now < self._next_refusal_logged
            if not silent:
                self._next_refusal_logged = now + _SECONDS_BETWEEN_REFUSALS_LOGGED
        if not silent:
            log.warning("the server refuses, on_error decides such calls: %r", error)

    def abandoned(self) -> None:
        """Whoever asked went away before there was an answer."""
        with self._lock:
            self._probing = False


class Script:
    """The commands as a Lua script, for servers without the module."""

    def __init__(self) -> None:
        self._source = resources.files(__package__).joinpath("fallback.lua").read_text("utf-8")
        self._sha = hashlib.sha1(self._source.encode(), usedforsecurity=False).hexdigest()
        self._until = 0.0
        self._is_needed = False

    @property
    def is_in_use(self) -> bool:
        return time.monotonic() < self._until

    def begin(self) -> None:
        self._until = time.monotonic() + _SECONDS_BETWEEN_LOOKS_FOR_THE_MODULE
        if not self._is_needed:
            log.warning("the server has no tokenbucket module: the script decides until it has")
        self._is_needed = True

    def end(self) -> None:
        if self._is_needed:
            log.warning("the server has the tokenbucket module: the script decides no longer")
        self._is_needed = False

    def look_for_module(self) -> None:
        """Lets the next call try the module again: the server may be another."""
        self._until = 0.0

    def run(self, command: Command) -> Steps[Any]:
        arguments = self._arguments(command)
        try:
            return (yield ("EVALSHA", self._sha, *arguments))
        except ASKING_ERRORS as error:
            if not is_unknown_script(error):
                raise
        return (yield ("EVAL", self._source, *arguments))

    @staticmethod
    def _arguments(command: Command) -> Command:
        """`TB.TAKE key capacity rate cost` as the script takes it: keys first, under names of its own."""
        operation = str(command[0]).removeprefix("TB.")
        if operation == "MTAKE":
            keys, rest = command[2::4], command[2:]
            words = tuple(word for at, word in enumerate(rest) if at % 4)
        else:
            keys, words = command[1:2], command[2:]
        return (len(keys), *(f"{key}:script" for key in keys), operation, *words)


_NEED_THE_MODULE = {"TB.HOLD", "TB.MHOLD", "TB.SETTLE", "TB.MSETTLE"}


class Server:
    """What limiters on one client share: connections, and what is known about who answers there."""

    def __init__(self, client: Any, timeout_s: float, retry_every_s: float) -> None:
        # Not the client itself, or what is remembered about it would keep it alive.
        self.own_client = own_client(client, timeout_s, self._connected)
        self.timeout_s = timeout_s
        self.users = 0
        self._circuit = Circuit(retry_every_s)
        self._script: Script | None = None

    def ask(
        self, command: Command, *, script: bool, always: bool = False, repeatable: bool = False
    ) -> Steps[Any]:
        """The server's reply, or None when it does not decide. Raises what is the caller's mistake.

        `always`: asks also while the server is thought to be away. `repeatable`: a call that changes
        nothing the second time, sent once more if the connection broke before the reply.
        """
        if not (self._circuit.admits() or always):
            return None
        try:
            reply = yield from self._send(command, script, repeatable)
        except ASKING_ERRORS as error:
            fault = fault_of(error)
            if fault is Fault.AWAY:
                self._circuit.failed(error)
                return None
            if fault is Fault.REFUSING:
                self._circuit.refused(error)
                return None
            self._circuit.answered()
            raise
        except ModuleMissing:
            self._circuit.answered()
            raise
        except BaseException:
            self._circuit.abandoned()
            raise
        self._circuit.answered()
        return reply

    def _send(self, command: Command, script: bool, repeatable: bool) -> Steps[Any]:
        if script and command[0] not in _NEED_THE_MODULE and self._loaded_script().is_in_use:
            return (yield from self._loaded_script().run(command))
        try:
            reply = yield from self._send_to_module(command, repeatable)
        except ASKING_ERRORS as error:
            if not is_unknown_command(error):
                raise
            if command[0] in _NEED_THE_MODULE:
                raise ModuleMissing(
                    "holds need the tokenbucket module, which the server has not loaded"
                ) from error
            if not script:
                raise ModuleMissing(
                    "the server has no tokenbucket module: load it, or set fallback='script'"
                ) from error
            self._loaded_script().begin()
        else:
            if self._script is not None:
                self._script.end()
            return reply
        return (yield from self._loaded_script().run(command))

    @staticmethod
    def _send_to_module(command: Command, repeatable: bool) -> Steps[Any]:
        try:
            return (yield command)
        except ASKING_ERRORS as error:
            if not (repeatable and is_broken_connection(error)):
                raise
        return (yield command)

    def _loaded_script(self) -> Script:
        if self._script is None:
            self._script = Script()
        return self._script

    def _connected(self) -> None:
        if self._script is not None:
            self._script.look_for_module()


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


__all__ = ["Command", "Server", "ServerAway", "Steps", "Word", "join", "leave"]
