"""The rules, by promtool; and a real Prometheus that scrapes the exporter and answers rules and dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable

import pytest
from conftest import PATIENCE_S, Exporter, name
from test_exporter import HOSTILE_KEY, HOSTILE_KEY_SHOWN, some_calls

from run import HERE, client
from services import Service, free_port, wait_for


def promtool(*arguments: str, said: str = "") -> str:
    command = ["promtool", *arguments]
    ended = subprocess.run(
        command, cwd=HERE, input=said, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_each_alert_fires_when_it_has_to_and_only_then():
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml")


def test_each_alert_names_its_section_of_the_runbook():
    alerts = [line.split()[-1] for line in lines("alerts.yml") if "- alert:" in line]
    runbooks = [line.split('"')[1] for line in lines("alerts.yml") if "runbook: " in line]
    page = "docs/operate/troubleshooting.md"
    # The address of the repository comes before it once there is one.
    runbooks = [runbook.rpartition("/blob/main/")[2] for runbook in runbooks]
    assert runbooks == [f"{page}#{alert.lower()}" for alert in alerts]
    headings = (HERE.parents[1] / page).read_text().splitlines()
    assert [alert for alert in alerts if f"### {alert}" not in headings] == []


def test_no_alert_is_without_a_test():
    alerts = {line.split()[-1] for line in lines("alerts.yml") if "- alert:" in line}
    tests = (HERE / "alerts.test.yml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', tests)) == alerts


def test_summaries_name_only_labels_that_the_alerts_keep():
    used = set(re.findall(r"\$labels\.(\w+)", (HERE / "alerts.yml").read_text()))
    assert used == {"instance", "node", "key"}


DASHBOARD = json.loads((HERE / "dashboard.json").read_text())


def dashboards_queries() -> list[str]:
    """The queries, as Grafana sends them for all nodes."""
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [one.replace("$node", ".*").replace("$__rate_interval", "1m") for one in queries]


def test_the_dashboard_has_the_structure_that_grafana_imports():
    panels = DASHBOARD["panels"]
    assert {"title", "uid", "schemaVersion", "templating", "time", "panels"} <= DASHBOARD.keys()
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    cells = []
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries", "table") and panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns = range(place["x"], place["x"] + place["w"])
        cells += [(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])]
        references = [target["refId"] for target in panel["targets"]]
        assert references == list("ABC"[: len(references)])
    assert len(cells) == len(set(cells)), "panels overlap"
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD["panels"])))
    assert used == variables == {"datasource", "node"}


def lines(file: str) -> list[str]:
    return (HERE / file).read_text().splitlines()


@pytest.fixture
def prometheus(tmp_path, processes: list[Service]) -> Callable[[Exporter], Callable[[str], list]]:
    """Starts a Prometheus with prometheus.yml; answers a function that asks its API."""

    def start(exporter: Exporter) -> Callable[[str], list]:
        settings = (HERE / "prometheus.yml").read_text()
        target = f"127.0.0.1:{exporter.service.port}"
        # Of the settings only the port of this exporter, the path and the pace are the test's.
        for old, new in (
            ("127.0.0.1:9720", target),
            ("alerts.yml", str(HERE / "alerts.yml")),
            ("interval: 15s", "interval: 1s"),
        ):
            assert old in settings
            settings = settings.replace(old, new)
        (tmp_path / "prometheus.yml").write_text(settings)
        port = free_port()
        command = [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        service = Service("prometheus", command, port, tmp_path)
        processes.append(service)
        service.start()

        def ask(path: str, **parameters: str) -> dict:
            url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
                return json.load(reply)["data"]

        wait_for(lambda: ready(port), "Prometheus", PATIENCE_S)
        return ask

    return start


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S):
            return True
    except OSError:
        return False


def test_a_prometheus_has_the_numbers_that_info_has(start, watch, prometheus):
    node, bare = start(), start(with_module=False)
    redis = client(node)
    some_calls(redis)
    for _ in range(7):
        redis.execute_command("TB.TAKE", HOSTILE_KEY, 0, 1)
    exporter = watch(node, bare)
    for one in (node, bare):
        exporter.wait_for("up", 1, node=name(one))
    exporter.wait_for("key_denied_total", 7, key=HOSTILE_KEY_SHOWN)
    ask = prometheus(exporter)

    def value(series: str, **labels: str) -> float | None:
        found = ask("query", query=f"tokenbucket_{series}")["result"]
        found = [one for one in found if labels.items() <= one["metric"].items()]
        return float(found[0]["value"][1]) if found else None

    wait_for(lambda: value("up", node=name(node)) == 1, "a scrape", PATIENCE_S)
    info = redis.info("tokenbucket")
    for series in ("decisions_allowed_total", "decisions_denied_total", "errors_total", "buckets"):
        field = f"tokenbucket_{series.removesuffix('_total')}"
        assert value(series, node=name(node)) == info[field], series
    assert value("key_denied_total", key=HOSTILE_KEY_SHOWN) == 7
    assert value("module_loaded", node=name(bare)) == 0

    # The dashboard names no metric that is not exported, and Prometheus knows each query.
    exported = {metric for metric, _, _ in exporter.metrics()}
    for query in dashboards_queries():
        assert set(re.findall(r"tokenbucket_\w+", query)) <= exported, query
        ask("query", query=query)
    assert ask("query", query=dashboards_queries()[0])["result"]

    # It goes on, and a node that is down is known to be.
    redis.execute_command("TB.TAKE", "greedy", 2, "1/h")
    more = info["tokenbucket_decisions_denied"] + 1
    wait_for(lambda: value("decisions_denied_total") == more, "a later scrape", PATIENCE_S)
    node.stop()
    wait_for(lambda: value("up", node=name(node)) == 0, "the node to be down", PATIENCE_S)
    assert value("decisions_denied_total") is None, "nothing old is served as new"

    # Each rule was evaluated without an error, and an alert whose time has not come is pending.
    def rules() -> list[dict]:
        return [rule for group in ask("rules")["groups"] for rule in group["rules"]]

    wait_for(lambda: all(rule["health"] == "ok" for rule in rules()), "the rules", PATIENCE_S)

    def alarmed() -> set[str]:
        return {alert["labels"]["alertname"] for alert in ask("alerts")["alerts"]}

    expected = {"TokenbucketNodeDown", "TokenbucketModuleMissing"}
    wait_for(lambda: expected <= alarmed(), "the alerts", PATIENCE_S)


def test_the_metrics_are_written_as_they_should_be(start, watch):
    node = start()
    some_calls(client(node))
    exporter = watch(node)
    exporter.wait_for("key_denied_total", 3, key="greedy")
    # It says nothing where there is nothing to say.
    assert promtool("check", "metrics", said=exporter.get("/metrics")) == ""
