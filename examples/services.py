"""Processes that the examples in Python start and end: a server with the module, and others.

SERVER and MODULE say which server and which module.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

READY_WITHIN_S = 30


def free_port() -> int:
    """A port below those that the kernel gives to clients, so that it is still free for a restart."""
    for port in random.sample(range(20000, 32000), 100):
        if not answers(port):
            return port
    raise RuntimeError("no free port")


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wanted_port(default: str) -> int:
    """The PORT of `make run`; asked first, because somebody else's answer looks like the app's."""
    text = os.environ.get("PORT", default)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        sys.exit(f"PORT: {text!r} is not a port")
    if answers(int(text)):
        sys.exit(f"port {text} is in use: set PORT to another")
    return int(text)


class Service:
    """A child process that is ready once its port answers; ended by its own pid."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        folder: Path,
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = command
        self.port = port
        self.log = folder / f"{name}-{port}.log"
        self.folder = folder
        self.env = os.environ | (env or {})
        self.show = False
        """Whether what it says goes to the terminal instead of the log."""
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts the process and waits for nothing."""
        atexit.register(self.stop)  # for when this program ends before it came to that
        with self.log.open("ab") as log:
            out = None if self.show else log
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdout=out, stderr=out
            )

    def start(self) -> None:
        self.launch()
        try:
            wait_for(self.answers, f"{self.name} on port {self.port}")
        except TimeoutError:
            self.stop()
            raise RuntimeError(f"{self.name} did not start:\n{self.output()}") from None

    def answers(self) -> bool:
        if self.ended():
            raise RuntimeError(f"{self.name} ended at its start\n{self.output()}")
        return answers(self.port)

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is None or self.ended():
            return
        self.signal(signal.SIGCONT)  # one that a test has stopped could not obey
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def wait_for(condition: Callable[[], bool], what: str, within_s: float = READY_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s} s")
        time.sleep(0.02)


def redis_server(
    folder: Path, port: int | None = None, *options: str, with_module: bool = True
) -> Service:
    """A server in `folder` that keeps nothing; the module is loaded from MODULE."""
    port = port or free_port()
    wanted = os.environ.get("SERVER", "redis-server")
    server = shutil.which(wanted)
    module = Path(os.environ.get("MODULE", "../../target/release/libtokenbucket.so"))
    if server is None:
        sys.exit(f"no {wanted}: install redis-server, or set SERVER=/path/to/redis-server")
    if not (module := module.absolute()).is_file():
        sys.exit(f"no module at {module}: run `cargo build --release`, or set MODULE=/path/to/it")
    command = [str(Path(server).absolute()), "--bind", "127.0.0.1", "--port", str(port)]
    command += ["--save", "", "--appendonly", "no", *options]
    if with_module:
        command += ["--loadmodule", str(module)]
    return Service("redis", command, port, folder)
