"""Starts and ends processes for the examples and the tests in Python: servers and others.

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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
READY_WITHIN_S = 30
# Kills a child when its parent was killed. Needs Linux, and util-linux rather than busybox.
SETPRIV = os.path.realpath(shutil.which("setpriv") or "")
ENDS_WITH_PARENT = [SETPRIV, "--pdeathsig", "KILL"] if SETPRIV.endswith("/setpriv") else []
# The node of a cluster talks to the others on a port so far above its own.
CLUSTER_BUS = 10_000


def free_port() -> int:
    """A port below those that the kernel gives to clients, so that it is still free for a restart."""
    for port in random.sample(range(10_000, 32_000 - CLUSTER_BUS), 100):
        if not answers(port) and not answers(port + CLUSTER_BUS):
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
                [*ENDS_WITH_PARENT, *self.command],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def start(self, within_s: float = READY_WITHIN_S) -> None:
        self.launch()
        try:
            wait_for(self.answers, f"{self.name} on port {self.port}", within_s)
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

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

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


def wait_for(condition: Callable[[], T], what: str, within_s: float = READY_WITHIN_S) -> T:
    """The first value of the condition that counts as true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s} s")
        time.sleep(0.02)
    return value


def module() -> Path:
    path = Path(os.environ.get("MODULE", "../../target/release/libtokenbucket.so")).absolute()
    if not path.is_file():
        sys.exit(f"no module at {path}: run 'make build' at the top, or set MODULE")
    return path


def redis_server(
    folder: Path, *options: str, with_module: bool = True, env: dict[str, str] | None = None
) -> Service:
    """A server in `folder` that keeps nothing; without the module it may load it while it runs."""
    wanted = os.environ.get("SERVER", "redis-server")
    server = shutil.which(wanted)
    if server is None:
        sys.exit(f"no {wanted}: install redis-server, or set SERVER=/path/to/redis-server")
    port = free_port()
    command = [str(Path(server).absolute()), "--bind", "127.0.0.1", "--port", str(port)]
    command += ["--save", "", "--appendonly", "no", *options]
    if with_module:
        command += ["--loadmodule", str(module())]
    elif major_version(server) >= 7:  # before, nobody had to be allowed to
        command += ["--enable-module-command", "yes"]
    return Service("redis", command, port, folder, env)


def sentinel_server(folder: Path, master: Service, name: str, *settings: str) -> Service:
    """A Sentinel that watches `master` under this name, with more lines of its configuration."""
    port, config = free_port(), folder / "sentinel.conf"
    watches = f"sentinel monitor {name} 127.0.0.1 {master.port} 1"
    config.write_text("\n".join([f"port {port}", "bind 127.0.0.1", watches, *settings, ""]))
    return Service("sentinel", [master.command[0], str(config), "--sentinel"], port, folder)


def self_signed(folder: Path) -> tuple[str, str]:
    """A certificate for this host, and its key."""
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def tls_options(port: int, certificate: str, key: str) -> list[str]:
    """What makes a server speak TLS on that port too."""
    options = {"port": str(port), "auth-clients": "no", "key-file": key}
    options |= {"cert-file": certificate, "ca-cert-file": certificate}
    return [word for name, value in options.items() for word in (f"--tls-{name}", value)]


def major_version(server: str) -> int:
    said = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout
    return int(said.partition("v=")[2].partition(".")[0])


Keep = Callable[[Service], Service]


@contextmanager
def until_ctrl_c() -> Iterator[tuple[Path, Keep]]:
    """A folder for services, and a function for each that is to end with the block: for `make run`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(tempfile.mkdtemp(prefix="tokenbucket-"))
    with ExitStack() as at_the_end:
        at_the_end.callback(shutil.rmtree, folder, ignore_errors=True)

        def keep(service: Service) -> Service:
            at_the_end.callback(service.stop)
            return service

        try:
            yield folder, keep
        except KeyboardInterrupt:
            pass
        except RuntimeError as error:
            sys.exit(str(error))


def wait_until_over(service: Service) -> None:
    """Ends this program as the service has ended."""
    assert service.process
    sys.exit(service.process.wait())
