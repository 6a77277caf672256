"""Starts and stops real servers and the gateway for the tests. Standard library only."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent
SERVER = os.environ.get("SERVER") or "redis-server"
MODULE = pathlib.Path(os.environ.get("MODULE") or EXAMPLE / "../../target/release/libtokenbucket.so").resolve()
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

SECRET = "a secret of the tests, which is 32 bytes or more"
START_DEADLINE_S = 20


def wait_until(condition, what, deadline_s=START_DEADLINE_S):
    """Polls until the condition holds and returns its value."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.01)


def free_port():
    """A port that is free now, as is the one 10000 above it, which a cluster node wants for its bus."""
    while True:
        with socket.socket() as low, socket.socket() as high:
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                high.bind(("127.0.0.1", port + 10000))
                return port


class Process:
    """A child process with its own temporary folder and a log, ended by its pid."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gateway-test-"))
        self.log_path = self.folder / "log"
        self.process = None

    def launch(self, command, environment=None):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def log(self):
        return self.log_path.read_text(errors="replace")

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def close(self):
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisError(Exception):
    pass


class Server(Process):
    """A Redis or Valkey, with the module unless told otherwise. It can be ended and started again on its port."""

    def __init__(self, *options, module=True):
        super().__init__()
        self.port = free_port()
        self.options = [*options, *(("--loadmodule", MODULE) if module else ())]
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        self.launch(
            [SERVER, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder, *self.options]
        )
        wait_until(self.answers, f"{SERVER} answers PING")

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{SERVER} did not start:\n{self.log()}")
        try:
            return self.command("PING") == "PONG"
        except RedisError as error:
            return str(error).startswith("NOAUTH")
        except OSError:
            return False

    def command(self, *arguments):
        parts = [str(argument).encode() for argument in arguments]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as replies:
                return self.read(replies)

    def read(self, replies):
        line = replies.readline().rstrip(b"\r\n").decode()
        kind, rest = line[:1], line[1:]
        if kind == "+":
            return rest
        if kind == ":":
            return int(rest)
        if kind == "$":
            return None if rest == "-1" else replies.read(int(rest) + 2)[:-2].decode()
        if kind == "*":
            return None if rest == "-1" else [self.read(replies) for _ in range(int(rest))]
        raise RedisError(rest or "connection closed")

    def keys(self):
        return sorted(self.command("KEYS", "*"))


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def __getitem__(self, name):
        return self.headers.get(name)

    def whole(self, name):
        return int(self.headers[name])


class Gateway(Process):
    """The example's own nginx.conf and Lua, on a free port, with the given rules."""

    def __init__(self, rules, redis_port, behind_proxy=False, **environment):
        super().__init__()
        self.port = free_port()
        self.environment = {
            "PATH": os.environ["PATH"],
            "JWT_SECRET": SECRET,
            "REDIS_NODES": f"127.0.0.1:{redis_port}",
            # The machine that runs the tests may be busy; what the default does is tested where it matters.
            "REDIS_TIMEOUT_MS": "5000",
            **environment,
        }
        self.environment = {name: value for name, value in self.environment.items() if value is not None}
        (self.folder / "tmp").mkdir()
        (self.folder / "lua").symlink_to(EXAMPLE / "lua")
        self.write_rules(rules)
        conf = (EXAMPLE / "nginx.conf").read_text()
        conf = self.replaced(conf, "listen 127.0.0.1:8080;", f"listen 127.0.0.1:{self.port};")
        # Two workers also where there is one core: a limit must hold across them.
        conf = self.replaced(conf, "worker_processes auto;", "worker_processes 2;")
        if behind_proxy:
            conf = re.sub(r"#((set_real_ip_from|real_ip_header|real_ip_recursive) )", r"\1", conf)
        (self.folder / "nginx.conf").write_text(conf)
        self.launch([NGINX, "-p", f"{self.folder}/", "-c", "nginx.conf", "-g", "daemon off;"], self.environment)

    @staticmethod
    def replaced(text, old, new):
        assert old in text, f"nginx.conf has no {old!r}"
        return text.replace(old, new)

    def write_rules(self, rules):
        text = rules if isinstance(rules, str) else json.dumps({"rules": rules})
        (self.folder / "rules.json").write_text(text)

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"nginx did not start:\n{self.log()}")
            with contextlib.suppress(OSError):
                return self.get("/metrics").status == 200

        wait_until(ready, "the gateway answers")
        return self

    def get(self, path="/", headers=None, source="127.0.0.1", token=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=(source, 0))
        try:
            headers = dict(headers or {})
            if token:
                headers["Authorization"] = f"Bearer {token}"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def count(self, result):
        return int(re.search(rf'result="{result}"}} (\d+)', self.get("/metrics").body)[1])
