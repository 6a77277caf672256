"""Drives the apps of express, python and rust over HTTP, each as its own process, against a real server.

`make test` there calls it with the name of the folder.
"""

from __future__ import annotations

import http.client
import json
import math
import shutil
import signal
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testing"))
from launch import Servers  # noqa: E402
from services import Service, free_port, redis_server, wait_for  # noqa: E402

EXPRESS, PYTHON, RUST = "express", "python", "rust"
NAME = sys.argv[1] if __name__ == "__main__" else EXPRESS

COMMANDS = {
    EXPRESS: ["node", "dist/src/main.js"],
    PYTHON: [".venv/bin/python", "app.py"],
    RUST: ["target/debug/tokenbucket-axum"],
}
# What limits each address, in the headers.
POLICY = '"ip"' if NAME == RUST else '"default"'
PREFIX = "RATE_LIMIT_" if NAME == PYTHON else ""
ON_ERROR, TIMEOUT_MS = f"{PREFIX}ON_ERROR", "RATE_LIMIT_TIMEOUT_MS" if NAME == PYTHON else "REDIS_TIMEOUT_MS"

# One token in six minutes: nothing flows in while a test runs.
STILL = "10/h"
KEY = {"Authorization": "Bearer demo-key"}

# Settings that end the app at its start, whichever it is, and those of one.
WRONG = [
    ("IP_LIMIT", "20"),
    ("IP_LIMIT", "20 10/fortnight"),
    ("SEARCH_LIMIT", "many 1/s"),
    (ON_ERROR, "maybe"),
    (TIMEOUT_MS, "0"),
    ("PORT", "http"),
]
WRONG_OF_ONE = {
    EXPRESS: [
        ("REDIS_URL", "localhost"),
        ("TRUSTED_PROXIES", "true"),
        ("TRUSTED_PROXIES", "1"),
        ("TRUSTED_PROXIES", "10.0.0.0/99"),
    ],
    PYTHON: [
        ("IP_LIMIT", "20 0"),
        ("LLM_INFLIGHT_LIMIT", "0"),
        ("LLM_HOLD_TTL_MS", "999"),
        ("API_KEYS", "demo-key"),
    ],
    RUST: [
        ("REDIS_URL", "localhost"),
        ("REDIS_CLUSTER_URLS", "redis://127.0.0.1:7000,localhost"),
        ("HOST", "nowhere"),
    ],
}


def only(*names: str) -> Callable:
    return unittest.skipUnless(NAME in names, f"of {', '.join(names)}")


def url(server: Service) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.body = response.read().decode()

    def __getitem__(self, name: str) -> str:
        return self.headers.get(name, "")


class App(Service):
    """Five seconds are plenty for a loaded machine to ask Redis, so that no test passes or fails by
    the policy for errors unless it is about that."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        program, *arguments = COMMANDS[NAME]
        own = HERE / NAME
        command = [shutil.which(own / program) or program, *(str(own / word) for word in arguments)]
        port = free_port()
        super().__init__("app", command, port, folder, {"PORT": str(port), TIMEOUT_MS: "5000", **settings})

    def get(self, path: str = "/", headers: dict[str, str] = KEY, source: str = "127.0.0.1") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=(source, 0))
        try:
            connection.request("GET", path, headers=headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def statuses(self, times: int, path: str = "/", **request: object) -> list[int]:
        return [self.get(path, **request).status for _ in range(times)]

    def wait_until_limited(self) -> Answer:
        """Returns the first answer that the server has decided on."""
        answers = (self.get() for _ in iter(int, 1))
        return wait_for(lambda: (answer := next(answers))["RateLimit"] and answer, "limiting", 5)


class AppTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tokenbucket-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.redis = self.server()

    def server(self, **options: bool) -> Service:
        server = redis_server(self.folder, **options)
        server.start()
        self.addCleanup(server.stop)
        return server

    def app(self, **settings: str) -> App:
        app = App(self.folder, {"REDIS_URL": url(self.redis), **settings})
        self.addCleanup(app.stop)
        app.start()
        return app

    def assert_refuses_to_start(self, says: str, **settings: str) -> None:
        with self.subTest(settings):
            with self.assertRaisesRegex(RuntimeError, "ended at its start") as raised:
                self.app(**settings)
            _, said = str(raised.exception).split("\n", 1)
            self.assertIn(says, said)
            self.assertEqual(1, len(said.strip().splitlines()), said)

    def test_a_burst_passes_then_429_then_after_retry_after_it_passes(self) -> None:
        app = self.app(IP_LIMIT="3 1/2s")
        began, answers = time.monotonic(), [app.get()]
        while answers[-1].status == 200:
            answers.append(app.get())
        # Exactly the burst, and what flowed in meanwhile on a machine that is slow.
        self.assertTrue(3 <= len(answers) - 1 <= 3 + (time.monotonic() - began) / 2)
        first, denied = answers[0], answers[-1]
        self.assertEqual(f"{POLICY};q=3;w=6", first["RateLimit-Policy"])
        self.assertEqual((f"{POLICY};r=2;t=2", ""), (first["RateLimit"], first["Retry-After"]))
        self.assertEqual(429, denied.status)
        self.assertTrue(denied["RateLimit"].startswith(f"{POLICY};r=0;"))
        self.assertIn(denied["Retry-After"], "12")
        if NAME != RUST:
            body = json.loads(denied.body)
            [wait_ms] = [body[name] for name in ("retryAfterMs", "retry_after_ms") if name in body]
            self.assertEqual(denied["Retry-After"], str(math.ceil(wait_ms / 1000)))
        time.sleep(int(denied["Retry-After"]))
        self.assertEqual(200, app.get().status)

    def test_a_route_has_a_limit_of_its_own_and_so_has_each_caller(self) -> None:
        app = self.app(SEARCH_LIMIT=f"2 {STILL}", API_KEYS='{"demo-key": "demo", "other-key": "other"}')
        first = app.get("/search?q=hi")
        self.assertRegex(first["RateLimit-Policy"], ";q=2;")
        self.assertEqual([200, 429], app.statuses(2, "/search"))
        self.assertEqual([200, 200], [app.get("/").status, app.get("/healthz").status])
        other = {"source": "127.0.0.2"}
        if NAME == PYTHON:
            other = {"headers": {"Authorization": "Bearer other-key"}}
            for headers in ({}, {"Authorization": "Bearer nobody's"}):
                self.assertEqual(401, app.get("/search", headers).status)
        self.assertEqual(200, app.get("/search", **other).status)
        told = {PYTHON: '{"q":"hi"}', EXPRESS: '{"q":"hi"}', RUST: "found; 1 more searches\n"}
        self.assertEqual(told[NAME], first.body)

    @only(EXPRESS, RUST)
    def test_a_request_costs_what_its_cost_function_says(self) -> None:
        app = self.app(EXPORT_LIMIT=f"1000 {STILL}")
        first, denied = app.get("/export?rows=600"), app.get("/export?rows=500")
        self.assertRegex(first["RateLimit"], ";r=400;")
        self.assertTrue(99 * 360 < int(denied["Retry-After"]) <= 100 * 360, "less what flowed in since")
        rest, never = app.get("/export?rows=400"), app.get("/export?rows=1001")
        self.assertEqual([200, 429, 200, 429], [answer.status for answer in (first, denied, rest, never)])
        self.assertEqual("", never["Retry-After"], "waiting does not help")
        for rows in ("", "0", "-1", "1e3", "many"):
            self.assertEqual(400, app.get(f"/export?rows={rows}").status)

    def test_a_forged_forwarded_for_is_no_new_bucket(self) -> None:
        app = self.app(IP_LIMIT=f"2 {STILL}")
        forged = [app.get(headers={"X-Forwarded-For": f"203.0.113.{last}"}).status for last in range(4)]
        self.assertEqual([200, 200, 429, 429], forged)

    @only(EXPRESS, PYTHON)
    def test_behind_a_trusted_proxy_the_address_is_the_one_that_the_proxy_saw(self) -> None:
        app = self.app(IP_LIMIT=f"2 {STILL}", TRUSTED_PROXIES="127.0.0.1")

        def asked(seen: str, source: str = "127.0.0.1") -> list[int]:
            forwarded = [{"X-Forwarded-For": f"198.51.100.{forged}, {seen}"} for forged in range(3)]
            return [app.get(headers=headers, source=source).status for headers in forwarded]

        self.assertEqual([200, 200, 429], asked("203.0.113.7"))
        self.assertEqual([200, 200, 429], asked("203.0.113.8"))
        # Past the proxy the header is nothing but text.
        self.assertEqual([[200, 200, 429], [429] * 3], [asked(f"203.0.113.{n}", "127.0.0.4") for n in (9, 10)])

    def test_failing_closed_refuses_requests_until_redis_is_back(self) -> None:
        app = self.app(**{"IP_LIMIT": f"3 {STILL}", ON_ERROR: "closed"})
        self.assertEqual([200, 200, 200, 429], app.statuses(4))
        self.redis.kill()
        for _ in range(5):
            answer = app.get()
            self.assertEqual((503, "", "1"), (answer.status, answer["RateLimit"], answer["Retry-After"]))
        self.redis.start()
        # The new server holds full buckets, and the first that it decided on took a token.
        self.assertEqual(200, app.wait_until_limited().status)
        self.assertEqual([200, 200, 429], app.statuses(3))

    def test_the_app_starts_and_limits_while_redis_is_away(self) -> None:
        self.redis.stop()
        app = self.app(IP_LIMIT=f"1 {STILL}")
        self.assertEqual([200, 429], app.statuses(2))
        self.redis.start()
        self.assertEqual([200, 429], [app.wait_until_limited().status, app.get().status])

    def test_a_wrong_setting_ends_the_app_with_an_error_that_names_it(self) -> None:
        for name, value in WRONG + WRONG_OF_ONE[NAME]:
            self.assert_refuses_to_start(f"{name}: ", **{name: value})

    @only(RUST)
    def test_what_the_server_refuses_ends_the_app_too(self) -> None:
        self.assert_refuses_to_start("SEARCH_LIMIT: ", SEARCH_LIMIT="2000000000000 1000/s")
        self.assert_refuses_to_start("set one of them", REDIS_CLUSTER_URLS=url(self.redis))
        without_module = self.server(with_module=False)
        self.assert_refuses_to_start(f"127.0.0.1:{without_module.port}", REDIS_URL=url(without_module))

    @only(RUST)
    def test_one_node_of_a_cluster_is_enough_to_limit_on_all(self) -> None:
        with Servers(self.folder, cluster=True) as cluster:
            app = self.app(REDIS_URL="", REDIS_CLUSTER_URLS=url(cluster.nodes[2]), IP_LIMIT=f"1 {STILL}")
            addresses = [f"127.0.0.{last}" for last in range(1, 255)]
            for node in cluster.nodes:
                source = next(one for one in addresses if cluster.node_of(f"tb:ip:{one}") is node)
                self.assertEqual([200, 429], app.statuses(2, source=source))
            self.assertNotIn("WARN", app.output())


if __name__ == "__main__":
    # As Ctrl-C does, so that what the tests have started is still ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unittest.main(argv=[sys.argv[0], "--verbose", *sys.argv[2:]])
