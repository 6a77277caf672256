"""The exporter, as its own process, watches real servers as the user that docs/operate/monitoring.md documents."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import PATIENCE_S, name, numbers_of_info
from redis import ResponseError

from exporter import TopSeries, as_label
from nodes import Denied, LastMinute, Node, printable
from run import HERE, MONITORING_USER, add_user, client, replica_of
from services import free_port, wait_for

HOSTILE_KEY = b"<img src=x onerror=alert(1)>\x00\x1b[31m\n\xff\xc3\xbc\\"
HOSTILE_KEY_SHOWN = r"<img src=x onerror=alert(1)>\x00\x1b[31m\x0a\xff" + "ü" + r"\\"

WRONG_PASSWORD = "invalid username-password pair"

COUNTERS = {
    "decisions_allowed",
    "decisions_denied",
    "errors",
    "tokens_granted",
    "holds_expired",
    "settled_late",
    "renewed_late",
    "served_after_waiting",
    "gave_up_waiting",
    "waits_refused",
}


def some_calls(redis) -> None:
    """Of everything that is counted, some."""
    for _ in range(5):
        redis.execute_command("TB.TAKE", "greedy", 2, "1/h")
    redis.execute_command("TB.TAKE", "modest", 10, "1/h", 3)
    redis.execute_command("TB.HOLD", "jobs", 10, 0, 1, 60_000, "held")
    redis.execute_command("TB.HOLD", "jobs", 10, 0, 1, 1, "expires")
    redis.execute_command("TB.SETTLE", "jobs", 10, 0, "unknown", 0)
    with pytest.raises(ResponseError):
        redis.execute_command("TB.TAKE", "greedy", "many", "1/h")


def test_every_field_of_info_and_every_command_is_exported(start, watch):
    node = start()
    redis = client(node)
    some_calls(redis)
    wait_for(lambda: len(redis.execute_command("TB.HOLDS", "jobs")) == 1, "an expiry")
    # A hold that ended is counted with the next write.
    redis.execute_command("TB.HOLD", "jobs", 10, 0, 2, 60_000, "held")
    exporter = watch(node)
    exporter.wait_for("holds_expired_total", 1)

    for field, value in numbers_of_info(redis).items():
        metric = f"{field}_total" if field in COUNTERS else field
        assert exporter.value(metric, node=name(node)) == value, field

    used = exporter.value("server_memory_bytes", node=name(node))
    assert used == pytest.approx(redis.info("memory")["used_memory"], rel=0.5)
    redis.config_set("maxmemory", 1 << 30)
    exporter.wait_for("server_maxmemory_bytes", 1 << 30)

    counted = {key.upper(): of for key, of in redis.info("commandstats").items()}
    for command in ("TB.TAKE", "TB.HOLD", "TB.SETTLE"):
        of, labels = counted[f"CMDSTAT_{command}"], {"node": name(node), "command": command}
        assert exporter.value("command_calls_total", **labels) == of["calls"]
        seconds = exporter.value("command_seconds_total", **labels)
        assert seconds == pytest.approx(of["usec"] / 1e6)
        for statistic in ("failed", "rejected"):  # from Redis 6.2 on
            expected = of.get(f"{statistic}_calls")
            assert exporter.value(f"command_{statistic}_total", **labels) == expected
    assert exporter.values("command_calls_total", command="INFO") == [], "not the module's"

    (labels,) = (has for metric, has, _ in exporter.metrics() if metric == "tokenbucket_node_info")
    server = redis.info("server")
    version = server.get("valkey_version", server["redis_version"])
    assert labels == {"node": name(node), "role": "master", "version": version}


def test_the_documented_user_may_do_all_that_the_exporter_does_and_nothing_else(start, watch):
    access = (HERE.parents[1] / "docs/reference/access.md").read_text()
    assert " ".join(MONITORING_USER) in access.splitlines()
    node = start()
    some_calls(client(node))
    exporter = watch(node)
    exporter.wait_for("up", 1)
    exporter.wait_for("key_denied_total", 3, key="greedy")
    assert client(node).execute_command("ACL", "LOG") == []
    assert "monitoring" in [connected["user"] for connected in client(node).client_list()]
    for refused in (["GET", "greedy"], ["TB.PEEK", "greedy", 2, 1], ["CONFIG", "GET", "*"]):
        with pytest.raises(ResponseError, match=r"(?i)permissions"):
            monitoring = client(node)
            monitoring.execute_command("AUTH", "monitoring", "password")
            monitoring.execute_command(*refused)
            monitoring.close()


def test_tb_top_may_be_refused(start, watch):
    node = start()
    some_calls(client(node))
    client(node).execute_command("ACL", "SETUSER", "monitoring", "-tb.top")
    exporter = watch(node)
    exporter.wait_for("decisions_denied_total", 3)
    assert exporter.value("key_denied_total") is None
    assert exporter.service.output().count("TB.TOP is refused") == 1
    client(node).execute_command("ACL", "SETUSER", "monitoring", "+tb.top")
    exporter.wait_for("key_denied_total", 3, key="greedy")


def test_oom_errors_are_counted_from_zero_on(start, watch):
    node = start()
    exporter = watch(node)
    exporter.wait_for("up", 1)
    redis = client(node)
    knows_errors = tuple(map(int, redis.info("server")["redis_version"].split(".")[:2])) >= (6, 2)
    assert exporter.value("oom_errors_total") == (0 if knows_errors else None)

    redis.config_set("maxmemory", 1)
    for _ in range(3):
        with pytest.raises(ResponseError, match="not created"):
            redis.execute_command("TB.TAKE", "new", 1, 1)
    redis.config_set("maxmemory", 0)
    exporter.wait_for("errors_total", 3)
    assert exporter.value("oom_errors_total") == (3 if knows_errors else None)


def test_a_node_that_dies_hangs_or_comes_back_changes_nothing_for_the_others(start, watch):
    dies, hangs, stays = start(), start(), start()
    for node in (dies, hangs, stays):
        some_calls(client(node))
    exporter = watch(dies, hangs, stays)
    for node in (dies, hangs, stays):
        exporter.wait_for("up", 1, node=name(node))

    dies.stop()
    hangs.signal(signal.SIGSTOP)
    exporter.wait_for("up", 0, node=name(dies))
    exporter.wait_for("up", 0, node=name(hangs))
    client(stays).execute_command("TB.TAKE", "greedy", 2, "1/h")
    exporter.wait_for("decisions_denied_total", 4, node=name(stays))
    # Of a node that is down nothing is said but that.
    for node in (dies, hangs):
        said = [metric for metric, has, _ in exporter.metrics() if has.get("node") == name(node)]
        assert said == ["tokenbucket_up"]

    hangs.signal(signal.SIGCONT)
    exporter.wait_for("up", 1, node=name(hangs))
    dies.start()
    add_user(dies)
    exporter.wait_for("up", 1, node=name(dies))
    exporter.wait_for("decisions_denied_total", 0, node=name(dies))


def test_a_scrape_does_not_wait_for_a_node_that_says_nothing(start, watch):
    node = start()
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        other = type("Silent", (), {"port": silent.getsockname()[1]})
        # Longer than a test may take.
        exporter = watch(node, other, timeout_s="60")
        exporter.wait_for("up", 1, node=name(node))
        began = time.monotonic()
        assert exporter.value("up", node=name(other)) == 0
        assert time.monotonic() - began < 60


def test_a_node_that_refuses_the_password_is_down_and_the_reason_is_said(start, watch):
    node, other = start(), start()
    client(other).execute_command("ACL", "SETUSER", "monitoring", "resetpass", ">changed")
    exporter = watch(node, other)
    exporter.wait_for("up", 1, node=name(node))
    exporter.wait_for("up", 0, node=name(other))
    wait_for(lambda: WRONG_PASSWORD in exporter.service.output(), "the reason", PATIENCE_S)


def test_a_replica_without_the_module_is_seen(start, watch):
    master = start()
    replica = start(*replica_of(master))
    bare = start(*replica_of(master), with_module=False)
    exporter = watch(master, replica, bare)
    for node, role, loaded in (
        (master, "master", 1),
        (replica, "replica", 1),
        (bare, "replica", 0),
    ):
        exporter.wait_for("up", 1, node=name(node))
        assert exporter.value("module_loaded", node=name(node)) == loaded
        assert exporter.value("node_info", node=name(node), role=role) == 1
    assert exporter.value("buckets", node=name(bare)) is None


def test_the_buckets_of_a_replica_are_compared_with_those_of_its_master(start, watch):
    master, other = start(), start()
    replica = start(*replica_of(master))
    client(master).execute_command("TB.TAKE", "k", 5, "1/d")
    exporter = watch(master, replica, other)
    exporter.wait_for("buckets", 1, node=name(master))
    exporter.wait_for("buckets", 1, node=name(replica))

    def ids() -> list[str]:
        has = {
            labels["node"]: labels["replication_id"]
            for metric, labels, _ in exporter.metrics()
            if metric == "tokenbucket_replication_info"
        }
        return [has.get(name(node), name(node)) for node in (master, replica, other)]

    wait_for(lambda: len(set(ids()[:2])) == 1, "one id of the master and its replica", PATIENCE_S)
    assert len(set(ids())) == 2


def test_keys_of_any_bytes_and_never_more_than_so_many_of_them(start, watch):
    node = start()
    redis = client(node)
    long_keys = [b"x" * 1000 + ending for ending in (b"1", b"2")]
    for denials, key in enumerate([HOSTILE_KEY, *long_keys, b"more", b"still more"]):
        for _ in range(10 - denials):
            redis.execute_command("TB.TAKE", key, 0, "1/h")
    exporter = watch(node, top="3")
    exporter.wait_for("key_denied_total", 10, key=HOSTILE_KEY_SHOWN)
    assert sorted(exporter.values("key_denied_total")) == [8, 9, 10]
    # Within the period no other key takes a place, and counts go on.
    for _ in range(20):
        redis.execute_command("TB.TAKE", "more", 0, "1/h")
    redis.execute_command("TB.TAKE", HOSTILE_KEY, 0, "1/h")
    exporter.wait_for("key_denied_total", 11, key=HOSTILE_KEY_SHOWN)
    assert exporter.value("key_denied_total", key="more") is None


def denied(*keys: str) -> list[Denied]:
    return [Denied(key, 1, 0) for key in keys]


def test_only_so_many_keys_get_a_series_within_a_period():
    series = TopSeries(2, period_s=300)
    assert [row.key for row in series.of(denied("a"), 0)] == ["a"]
    assert [row.key for row in series.of(denied("b", "a", "c"), 1)] == ["b", "a"]
    # A key that left makes no room for another one before the period is over.
    assert [row.key for row in series.of(denied("c", "a"), 299)] == ["a"]
    assert [row.key for row in series.of(denied("c", "d", "a"), 300)] == ["c", "d"]
    assert TopSeries(0, 300).of(denied("a"), 0) == []


def test_a_key_that_is_limited_now_gets_a_series_before_old_ones_with_larger_counts():
    old = [Denied(f"old:{number}", 1_000_000, 0) for number in range(10)]
    now = Denied("now", 120, 120)
    assert now in TopSeries(10, period_s=300).of([*old, now], 0)


def test_no_two_keys_become_the_same_label():
    keys = [bytes([a, b]) for a in range(256) for b in range(256)] + [rb"\x00", rb"\\x00", b"\\"]
    shown = [printable(key) for key in keys]
    assert len(set(shown)) == len(keys)
    assert all(text.isprintable() for text in shown)
    assert printable("user:müller 東京") == "user:müller 東京"
    assert printable("a\u202eb") == r"a\xe2\x80\xaeb", "nobody turns the direction of writing"
    long = [as_label("x" * 300 + end) for end in "12"]
    assert long[0] != long[1] and max(map(len, long)) < 250


def test_what_was_denied_within_the_last_minute():
    def counted(minute: LastMinute, run_id: str = "1", **rows: int) -> dict[str, int]:
        top = minute.top(run_id, [(key.encode(), denied, 0) for key, denied in rows.items()])
        return {row.key: row.last_minute for row in top}

    minute = LastMinute(every_s=20)
    assert counted(minute, a=100, b=50) == {"a": 0, "b": 0}, "nobody knows since when"
    assert counted(minute, a=101, b=50, c=7) == {"a": 1, "b": 0, "c": 7}
    assert counted(minute, a=110, b=50, c=8) == {"a": 10, "b": 0, "c": 8}
    # A minute after the first.
    assert counted(minute, a=110, b=51, c=8) == {"a": 10, "b": 1, "c": 8}
    assert counted(minute, a=110, b=51, c=8) == {"a": 9, "b": 1, "c": 1}
    # The list is full: d took over c's counter.
    assert counted(minute, a=110, b=51, d=9) == {"a": 0, "b": 1, "d": 1}
    assert counted(minute, d=2)["d"] == 2, "after a RESET"
    assert counted(minute, "2", a=500) == {"a": 0}, "after a restart"


def test_it_listens_on_this_host_alone_unless_it_is_told(start, watch):
    node = start()
    # Of this host, too, but not 127.0.0.1.
    assert not accepts("127.0.0.2", watch(node).service.port)
    assert accepts("127.0.0.2", watch(node, host="0.0.0.0").service.port)


def accepts(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_only_metrics_are_served(start, watch):
    exporter = watch(start())
    for path, body in (("/", None), ("/nothing", None), ("/../exporter.py", None), ("/metrics", b"")):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(exporter.url + path, body, timeout=PATIENCE_S)
        assert error.value.code == 404
        error.value.close()


def ran(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "exporter.py"), *arguments]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=PATIENCE_S)


def test_help_names_the_settings_and_an_unknown_argument_is_an_error():
    helped = ran("--help")
    used = set(re.findall(r'self\.(?:text|number)\("(\w+)"', (HERE / "exporter.py").read_text()))
    assert helped.returncode == 0 and len(used) == 9
    assert [name for name in used if name not in helped.stdout] == []
    wrong = ran("--port=9000")
    assert wrong.returncode == 2 and "unrecognized arguments: --port=9000" in wrong.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"NODES": ""}, "NODES: no address"),
        ({"NODES": "http://127.0.0.1"}, "NODES: address 1 is none"),
        ({"NODES": "redis://u:secret@h:1 redis://h:1"}, "NODES: h:1 is there twice"),
        ({"EVERY_S": "0"}, "EVERY_S must be a number from 0.1 to 60, not '0'"),
        ({"TOP": "many"}, "TOP must be a number from 0 to 100, not 'many'"),
        ({"PORT": "nan"}, "PORT must be a number from 1 to 65535, not 'nan'"),
    ],
)
def test_a_wrong_setting_is_named(settings, words):
    ended = ran(**settings)
    assert ended.returncode == 1
    assert words in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert "secret" not in ended.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://somebody:secret@10.0.0.1:7000/2", "10.0.0.1:7000"),
        ("rediss://example.com", "example.com:6379"),
        ("redis://[2001:db8::1]:7000", "[2001:db8::1]:7000"),
        ("unix://somebody:secret@/run/redis.sock", "/run/redis.sock"),
    ],
)
def test_a_node_is_called_by_its_address_without_credentials(url, shown):
    assert Node(url, None, None, every_s=5, timeout_s=1).name == shown


def test_a_node_is_reached_by_its_socket(start, watch, tmp_path):
    path = str(tmp_path / "socket")
    node = start("--unixsocket", path)
    some_calls(client(node))
    exporter = watch(nodes=f"unix://{path}")
    exporter.wait_for("decisions_denied_total", 3, node=path)
