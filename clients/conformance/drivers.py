"""Starts the driver programs of the packages and exchanges JSON lines with them, see README.md."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STARTS_WITHIN_S = 60
ANSWERS_WITHIN_S = 120

COMMANDS: Mapping[str, list[str]] = {
    "python": [str(HERE / "drivers/python/.venv/bin/python"), str(HERE / "drivers/python/driver.py")],
    "node": ["node", str(HERE / "drivers/node/dist/driver.js")],
    "go": [str(HERE / "drivers/go/driver")],
    "rust": [str(HERE / "drivers/rust/target/release/driver")],
}


@dataclass
class DriverError(Exception):
    """What a package raised: its kind is one word in all languages."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Template:
    """A driver for Python that has imported everything and forks others, which then start at once."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair()
        self._process = subprocess.Popen([*COMMANDS["python"], "--template"], stdin=its.fileno())
        its.close()

    def fork(self, *files: int) -> int:
        """Returns the process id of a driver with these files as its stdin, stdout and stderr."""
        socket.send_fds(self._socket, [b"fork"], files)
        return int.from_bytes(self._socket.recv(8), sys.byteorder)


@functools.cache
def template() -> Template:
    return Template()


class Driver:
    """One process of one package."""

    def __init__(self, language: str, log: Path) -> None:
        self.language, self.log = language, log
        self._process: subprocess.Popen[bytes] | None = None
        (stdin, asking), (saying, stdout) = os.pipe(), os.pipe()
        self._stdin, self._stdout = os.fdopen(asking, "wb", 0), os.fdopen(saying, "rb")
        with log.open("wb") as stderr:
            if language == "python":
                self.pid = template().fork(stdin, stdout, stderr.fileno())
            else:
                files: Any = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
                self._process = subprocess.Popen(COMMANDS[language], **files)
                self.pid = self._process.pid
        os.close(stdin)
        os.close(stdout)
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._ready: Future[list[str]] = Future()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.clients = self._ready.result(STARTS_WITHIN_S)
        """The client libraries that it knows."""

    def begin(self, do: str, **words: Any) -> Future[Any]:
        """Sends a request, and returns what will be its reply."""
        reply: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = reply
            self._stdin.write(json.dumps({"id": number, "do": do, **words}).encode() + b"\n")
        return reply

    def do(self, do: str, **words: Any) -> Any:
        return self.begin(do, **words).result(ANSWERS_WITHIN_S)

    def stop(self) -> None:
        self._stdin.close()
        self._reader.join(10)
        if self._reader.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self._reader.join()
        self._stdout.close()
        if self._process:
            self._process.wait()

    def _read(self) -> None:
        for line in self._stdout:
            said = json.loads(line)
            if said.get("ready"):
                self._ready.set_result(said["clients"])
                continue
            with self._lock:
                reply = self._waiting.pop(said["id"])
            if "error" in said:
                reply.set_exception(DriverError(**said["error"]))
            else:
                reply.set_result(said["ok"])
        gone = RuntimeError(f"the {self.language} driver has ended: see {self.log}")
        if not self._ready.done():
            self._ready.set_exception(gone)
        for reply in self._waiting.values():
            reply.set_exception(gone)
