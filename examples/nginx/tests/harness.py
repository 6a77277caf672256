"""Starts and stops real servers and the gateway for the tests. Standard library only."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(EXAMPLE.parents[1] / "testing"))
from launch import ask  # noqa: E402
from services import Service, free_port, redis_server, wait_for  # noqa: E402

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

SECRET = "a secret of the tests, which is 32 bytes or more"
FOLDERS = tempfile.TemporaryDirectory(prefix="gateway-test-", ignore_cleanup_errors=True)


def new_folder():
    return pathlib.Path(tempfile.mkdtemp(dir=FOLDERS.name))


def start_server(*options, module=True):
    server = redis_server(new_folder(), *options, with_module=module)
    server.start()
    return server


def keys(server):
    return sorted(ask(server, "KEYS", "*"))


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def __getitem__(self, name):
        return self.headers.get(name)

    def whole(self, name):
        return int(self.headers[name])


class Gateway(Service):
    """The example's own nginx.conf and Lua, on a free port, with the given rules."""

    def __init__(self, rules, redis_port, behind_proxy=False, **environment):
        environment = {
            "JWT_SECRET": SECRET,
            "REDIS_NODES": f"127.0.0.1:{redis_port}",
            # The machine that runs the tests may be busy; what the default does is tested where it matters.
            "REDIS_TIMEOUT_MS": "5000",
            **environment,
        }
        environment = {name: value for name, value in environment.items() if value is not None}
        folder = new_folder()
        command = [NGINX, "-p", f"{folder}/", "-c", "nginx.conf", "-g", "daemon off;"]
        super().__init__("nginx", command, free_port(), folder, environment)
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
        self.launch()

    @staticmethod
    def replaced(text, old, new):
        assert old in text, f"nginx.conf has no {old!r}"
        return text.replace(old, new)

    def write_rules(self, rules):
        text = rules if isinstance(rules, str) else json.dumps({"rules": rules})
        (self.folder / "rules.json").write_text(text)

    def wait_ready(self):
        def ready():
            if self.ended():
                raise AssertionError(f"nginx did not start:\n{self.output()}")
            with contextlib.suppress(OSError):
                return self.get("/metrics").status == 200
            return False

        wait_for(ready, "the gateway answers")
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
