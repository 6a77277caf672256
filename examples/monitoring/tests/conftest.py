from __future__ import annotations

import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from run import exporter, start_node
from services import Service, wait_for

# As Ctrl-C does, so that what the tests have started is still ended.
signal.signal(signal.SIGTERM, signal.default_int_handler)

PATIENCE_S = 60  # of a test with a machine that has other things to do


class Exporter:
    """A running exporter, and what it says."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = f"http://127.0.0.1:{service.port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as reply:
            return reply.read().decode()

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        families = text_string_to_metric_families(self.get("/metrics"))
        return [(s.name, s.labels, s.value) for family in families for s in family.samples]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of the series of this name that have these labels."""
        return [
            value
            for metric, has, value in self.metrics()
            if metric == f"tokenbucket_{name}" and labels.items() <= has.items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        values = self.values(name, **labels)
        assert len(values) <= 1, f"several series {name} {labels}"
        return values[0] if values else None

    def wait_for(self, name: str, wanted: float | None, **labels: str) -> None:
        what = f"{name} {labels} is {wanted}"
        wait_for(lambda: self.value(name, **labels) == wanted, what, PATIENCE_S)


@pytest.fixture
def processes() -> Iterator[list[Service]]:
    """What a test has started."""
    started: list[Service] = []
    yield started
    for service in reversed(started):
        service.stop()


@pytest.fixture
def start(tmp_path: Path, processes: list[Service]) -> Callable[..., Service]:
    """Starts a server that knows the exporter's user."""

    def start(*options: str, with_module: bool = True) -> Service:
        folder = tmp_path / str(len(processes))
        folder.mkdir()
        service = start_node(folder, *options, with_module=with_module)
        processes.append(service)
        return service

    return start


@pytest.fixture
def watch(tmp_path: Path, processes: list[Service]) -> Callable[..., Exporter]:
    """Starts an exporter that asks these servers several times a second."""

    def watch(*nodes: Service, **settings: str) -> Exporter:
        settings = {"every_s": "0.25", "timeout_s": "0.5"} | settings
        service = exporter(tmp_path, list(nodes), **settings)
        processes.append(service)
        service.start()
        return Exporter(service)

    return watch


def name(node: Service) -> str:
    return f"127.0.0.1:{node.port}"


def numbers_of_info(redis) -> dict[str, int]:
    """Returns the module's fields of INFO that are numbers. Who waits is text, and becomes no series."""
    fields = {field.removeprefix("tokenbucket_"): value for field, value in redis.info("tokenbucket").items()}
    assert fields.pop("waiting_tenants") == ""
    return fields
