"""Starts the driver programs of the packages and exchanges JSON lines with them, see README.md."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
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


class Driver:
    """One process of one package."""

    def __init__(self, language: str, log: Path, env: Mapping[str, str]) -> None:
        self.language, self.log = language, log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                COMMANDS[language],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **env},
            )
        self.pid = self._process.pid
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
            assert self._process.stdin
            self._process.stdin.write(json.dumps({"id": number, "do": do, **words}).encode() + b"\n")
            self._process.stdin.flush()
        return reply

    def do(self, do: str, **words: Any) -> Any:
        return self.begin(do, **words).result(ANSWERS_WITHIN_S)

    def kill(self) -> None:
        """Ends it in the middle of what it does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
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
