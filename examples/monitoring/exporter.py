"""Token buckets for Prometheus: /metrics has what every node says of its buckets.

Settings are environment variables:

NODES            redis://127.0.0.1:6379   every node, separated by spaces; rediss:// and unix:// too
REDIS_USERNAME, REDIS_PASSWORD            for addresses without credentials
HOST, PORT       127.0.0.1, 9720          where it listens
EVERY_S          5                        interval between polls of a node
TIMEOUT_S        1                        timeout for connecting and for each reply
TOP, TOP_EVERY_S 10, 300                  keys per node with a series, and how often others may replace them

No request waits for a node: each is polled in the background, and its last answer is served.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodes import Answer, Denied, Node, printable

log = logging.getLogger("exporter")

LONGEST_LABEL = 200


# Metrics.

# The fields of INFO tokenbucket. One that a newer module may have is exported as a gauge.
FIELDS: dict[str, tuple[type[Metric], str]] = {
    "decisions_allowed": (CounterMetricFamily, "Calls that were granted"),
    "decisions_denied": (CounterMetricFamily, "Calls that were not granted"),
    "errors": (CounterMetricFamily, "Calls that the module refused with an error"),
    "tokens_granted": (CounterMetricFamily, "Whole tokens that left buckets"),
    "buckets": (GaugeMetricFamily, "Buckets in memory"),
    "bucket_bytes": (
        GaugeMetricFamily,
        "Bytes of bucket values and holds, without keys and the server's own structures",
    ),
    "holds": (GaugeMetricFamily, "Holds in memory"),
    "holds_expired": (CounterMetricFamily, "Holds that nobody settled in time"),
    "settled_late": (CounterMetricFamily, "Holds that were to be settled and were not there"),
    "renewed_late": (CounterMetricFamily, "Holds that were to be renewed and were not there"),
    "overrides": (GaugeMetricFamily, "Buckets whose limit an operator has overridden"),
    "waiting": (GaugeMetricFamily, "Calls that wait their turn in the server"),
    "served_after_waiting": (CounterMetricFamily, "Calls that waited and were granted"),
    "gave_up_waiting": (CounterMetricFamily, "Calls that waited and were not granted"),
    "waits_refused": (CounterMetricFamily, "Calls that found the queue full and were denied at once"),
}
OTHER_FIELD = (GaugeMetricFamily, "As INFO tokenbucket says")

COMMAND_STATISTICS = {
    "calls": ("command_calls", "Calls of a command", 1),
    "usec": ("command_seconds", "Seconds that a command took", 1e-6),
    "failed_calls": ("command_failed", "Calls that ended in an error", 1),
    "rejected_calls": ("command_rejected", "Calls the server did not let pass", 1),
}


class TopSeries:
    """Which keys get a series of their own: at most `size` new ones in every period.

    Prometheus keeps a series for each key it ever saw. If any key could come and go with each
    scrape, then whoever invents keys would fill its memory.
    """

    def __init__(self, size: int, period_s: float) -> None:
        self.size = size
        self.period_s = period_s
        self.keys: set[str] = set()
        self.chosen_at_s = -float("inf")

    def of(self, top: list[Denied], now_s: float) -> list[Denied]:
        """The rows that have a series. A key that is limited now comes before an old one that was
        limited more often."""
        if now_s - self.chosen_at_s >= self.period_s:
            self.keys = set()
            self.chosen_at_s = now_s
        for row in sorted(top, key=busiest_first):
            if len(self.keys) < self.size:
                self.keys.add(row.key)
        return [row for row in top if row.key in self.keys]


def busiest_first(row: Denied) -> tuple[int, int]:
    return -row.last_minute, -row.denied


class Buckets(Collector):
    """What the nodes said last, as metrics."""

    def __init__(self, nodes: list[Node], top: int, top_period_s: float) -> None:
        self.nodes = nodes
        self.series = {node.name: TopSeries(top, top_period_s) for node in nodes}
        self.lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}

        def add(kind: type[Metric], name: str, text: str, value: float, **labels: str) -> None:
            if name not in families:
                families[name] = kind(f"tokenbucket_{name}", text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)

        for node in self.nodes:
            answer = node.answer_now()
            up = answer is not None
            add(GaugeMetricFamily, "up", "Whether the node answers", up, node=node.name)
            if answer:
                self.add_answer(add, node.name, answer)
        yield from families.values()

    def add_answer(self, add: Callable, node: str, answer: Answer) -> None:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        add(gauge, "node_info", "Always 1", 1, node=node, role=answer.role, version=answer.version)
        replication_id = answer.replication_id
        add(gauge, "replication_info", "Always 1", 1, node=node, replication_id=replication_id)
        has_module = bool(answer.buckets)
        add(gauge, "module_loaded", "Whether the node has the module", has_module, node=node)
        add(gauge, "answer_seconds", "Response time of the node", answer.took_s, node=node)
        for field, value in answer.buckets.items():
            if re.fullmatch("[a-z0-9_]+", field):
                kind, text = FIELDS.get(field, OTHER_FIELD)
                add(kind, field, text, value, node=node)
        for command, statistics in answer.commands.items():
            for statistic, (name, text, unit) in COMMAND_STATISTICS.items():
                if statistic in statistics:
                    value = statistics[statistic] * unit
                    add(counter, name, text, value, node=node, command=command)
        if answer.oom_errors is not None:
            text = "Replies of the server that began with -OOM"
            add(counter, "oom_errors", text, answer.oom_errors, node=node)
        text = "Bytes that the whole server allocated (used_memory)"
        add(gauge, "server_memory_bytes", text, answer.used_memory_bytes, node=node)
        text = "The server's maxmemory, 0 without a limit"
        add(gauge, "server_maxmemory_bytes", text, answer.maxmemory_bytes, node=node)
        with self.lock:
            rows = self.series[node].of(answer.top, time.monotonic())
        for row in rows:
            text, key = "How often a key was denied, as TB.TOP counts", as_label(row.key)
            add(counter, "key_denied", text, row.denied, node=node, key=key)


def as_label(key: str) -> str:
    """A key of up to 1 kB as a label of bearable length, still different from every other."""
    if len(key) <= LONGEST_LABEL:
        return key
    return f"{key[:LONGEST_LABEL]}… {hashlib.sha256(key.encode()).hexdigest()[:16]}"


# The server.


def application(nodes: list[Node], settings: Settings) -> Callable:
    registry = CollectorRegistry()
    registry.register(Buckets(nodes, settings.top, settings.top_every_s))
    ProcessCollector(registry=registry)
    metrics = make_wsgi_app(registry)

    def answer(environ: dict, start_response: Callable) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"there is GET /metrics\n"]

    return answer


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Handler(WSGIRequestHandler):
    timeout = 10  # seconds for a client that says nothing, or reads nothing

    def log_message(self, *_: object) -> None:
        """Prometheus asks several times a minute: nothing worth a line."""


# Settings.


class Settings:
    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self.nodes = self.text("NODES", "redis://127.0.0.1:6379").split()
        self.username = self.text("REDIS_USERNAME", "") or None
        self.password = self.text("REDIS_PASSWORD", "") or None
        self.host = self.text("HOST", "127.0.0.1")
        self.port = int(self.number("PORT", "9720", 1, 65535))
        self.every_s = self.number("EVERY_S", "5", 0.1, 60)
        self.timeout_s = self.number("TIMEOUT_S", "1", 0.01, 60)
        self.top = int(self.number("TOP", "10", 0, 100))
        self.top_every_s = self.number("TOP_EVERY_S", "300", 1, 86400)

    def text(self, name: str, default: str) -> str:
        return self.environ.get(name, default)

    def number(self, name: str, default: str, least: float, most: float) -> float:
        text = self.text(name, default)
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            sys.exit(f"{name} must be a number from {least} to {most}, not {printable(text)!r}")
        return number

    def watched(self) -> list[Node]:
        nodes = []
        for url in self.nodes:
            try:
                node = Node(url, self.username, self.password, self.every_s, self.timeout_s)
            except ValueError as error:  # without the address, which may have a password in it
                sys.exit(f"NODES: address {len(nodes) + 1} is none: {error}")
            if node.name in (other.name for other in nodes):
                sys.exit(f"NODES: {node.name} is there twice")
            nodes.append(node)
        if not nodes:
            sys.exit("NODES: no address")
        return nodes


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    settings = Settings(dict(os.environ))
    nodes = settings.watched()
    Server.address_family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        server = Server((settings.host, settings.port), Handler)
    except OSError as error:
        sys.exit(f"HOST, PORT: cannot listen on {settings.host}:{settings.port}: {error}")
    server.set_app(application(nodes, settings))
    for node in nodes:
        threading.Thread(target=node.watch, name=node.name, daemon=True).start()
    log.info("on http://%s:%d/metrics", settings.host, settings.port)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
