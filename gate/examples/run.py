#!/usr/bin/env python3
"""Starts Redis with the module, tokenbucket-gate, a backend, and Envoy and Caddy before it, until Ctrl-C.

ENVOY, CADDY, GATE, SERVER and MODULE name the programs; PORT is the first of the ports.
"""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "testing"))

from services import Service, free_port, redis_server, until_ctrl_c, wait_until_over, wanted_port  # noqa: E402


class Hello(BaseHTTPRequestHandler):
    """The backend."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"hello from behind the gate\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def configured(name: str, replaced: dict[str, object]) -> str:
    """An example with other ports than its own."""
    text = (HERE / name).read_text()
    for old, new in replaced.items():
        assert old in text, f"{name} has no {old}"
        text = text.replace(old, str(new))
    return text


def main() -> None:
    envoy_port = wanted_port("8000")
    caddy_port, http_port, grpc_port, debug_port = (free_port() for _ in range(4))
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    backend_port = backend.server_address[1]
    with until_ctrl_c() as (folder, keep):
        redis = keep(redis_server(folder))
        redis.start()
        # A copy, to try what a changed file does.
        config = folder / "limits/config"
        config.mkdir(parents=True)
        for name, to in ("limits/edge.yaml", config / "edge.yaml"), ("check.yaml", folder / "check.yaml"):
            to.write_text((HERE / name).read_text())
        settings = {
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": f"127.0.0.1:{redis.port}",
            "RUNTIME_ROOT": str(folder / "limits"),
            "CHECK_FILE": str(folder / "check.yaml"),
            "LIMIT_RESPONSE_HEADERS_ENABLED": "true",
            "HOST": "127.0.0.1",
            "GRPC_HOST": "127.0.0.1",
            "PORT": str(http_port),
            "GRPC_PORT": str(grpc_port),
            "DEBUG_PORT": str(debug_port),
        }
        gate = keep(Service("gate", [os.environ["GATE"]], grpc_port, folder, settings))
        gate.show = True
        gate.start()

        ports = {
            "port_value: 8000": f"port_value: {envoy_port}",
            "port_value: 8081": f"port_value: {grpc_port}",
            "port_value: 3000": f"port_value: {backend_port}",
        }
        (folder / "envoy.yaml").write_text(configured("envoy/envoy.yaml", ports))
        options = ["-c", "envoy.yaml", "--disable-hot-restart", "--log-level", "warning"]
        envoy = keep(Service("envoy", [os.environ["ENVOY"], *options], envoy_port, folder))
        envoy.start()

        ports = {":8000": f":{caddy_port}", ":8080": f":{http_port}", ":3000": f":{backend_port}"}
        (folder / "Caddyfile").write_text(configured("caddy/Caddyfile", ports))
        caddy = keep(Service("caddy", [os.environ["CADDY"], "run"], caddy_port, folder, {"HOME": str(folder)}))
        caddy.start()

        print(f"""
Envoy on http://127.0.0.1:{envoy_port}, Caddy on http://127.0.0.1:{caddy_port}; both ask the gate. Ctrl-C ends all. Try:

  # 5 attempts to log in, then one every 12 seconds; the answer says when.
  for i in 1 2 3 4 5 6; do curl -si -X POST http://127.0.0.1:{envoy_port}/login | grep -iE '^(HTTP|x-ratelimit|retry-after)'; done
  # Caddy shares these limits: they are in Redis.
  curl -si -X POST http://127.0.0.1:{caddy_port}/login | grep -iE '^(HTTP|ratelimit|retry-after)'
  # Without a proxy: the same question in JSON.
  curl -s http://127.0.0.1:{http_port}/json -d '{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "user", "value": "ann"}}]}}]}}'
  # What is loaded, and the metrics.
  curl -s http://127.0.0.1:{debug_port}/rlconfig
  curl -s http://127.0.0.1:{http_port}/metrics
  # Another limit, in use from the next request on.
  sed -i 's/requests_per_unit: 5/requests_per_unit: 20/' {config}/edge.yaml
""")
        wait_until_over(gate)


if __name__ == "__main__":
    main()
