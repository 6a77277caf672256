"""Servers for the tests, started and ended by them. SERVER and MODULE say which."""

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

PACKAGE = Path(__file__).resolve().parent.parent
REPOSITORY = PACKAGE.parent.parent
READY_WITHIN_S = 30


def free_port() -> int:
    """A port below those that the kernel gives to clients, so that it is free for a restart."""
    for port in random.sample(range(20000, 32000), 100):
        if not answers(port):
            return port
    raise RuntimeError("no free port")


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool], what: str, within_s: float = READY_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s} s")
        time.sleep(0.01)


class Process:
    """A child process that is ready once its port answers; ended by its own pid."""

    def __init__(
        self, name: str, command: list[str], port: int, folder: Path, env: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = command
        self.port = port
        self.folder = folder
        self.env = os.environ | (env or {})
        self.log = folder / f"{name}-{port}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, within_s: float = READY_WITHIN_S) -> None:
        atexit.register(self.stop)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdout=log, stderr=log
            )
        try:
            wait_for(self._answers, f"{self.name} on port {self.port}", within_s)
        except (TimeoutError, RuntimeError) as error:
            self.stop()
            raise RuntimeError(f"{error}\n{self.output()}") from None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.signal(signal.SIGCONT)  # one that a test has stopped could not obey
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended at its start")
        return answers(self.port)


def module() -> Path:
    path = Path(os.environ.get("MODULE", REPOSITORY / "target/release/libtokenbucket.so"))
    if not path.is_file():
        sys.exit(f"no module at {path}: run `cargo build --release`, or set MODULE=/path/to/it")
    return path.absolute()


def redis_server(
    folder: Path, *options: str, with_module: bool = True, env: dict[str, str] | None = None
) -> Process:
    """A server that keeps nothing in files."""
    wanted = os.environ.get("SERVER", str(REPOSITORY / "target/engines/redis-7.0.15/server"))
    server = shutil.which(wanted)
    if server is None:
        sys.exit(f"no server at {wanted}: set SERVER=/path/to/redis-server")
    port = free_port()
    command = [str(Path(server).absolute()), "--bind", "127.0.0.1", "--port", str(port)]
    command += ["--save", "", "--appendonly", "no", *options]
    if with_module:
        command += ["--loadmodule", str(module())]
    elif major_version(server) >= 7:  # before, nobody had to be allowed to
        command += ["--enable-module-command", "yes"]
    return Process("redis", command, port, folder, env)


def major_version(server: str) -> int:
    said = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout
    return int(said.partition("v=")[2].partition(".")[0])
