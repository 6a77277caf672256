"""Asks every node, again and again, what it says of its token buckets."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

log = logging.getLogger("exporter")

MINUTE_S = 60
# As many as the module counts unless it is told otherwise (tokenbucket.top-keys).
TOP_ROWS = 128
SECTIONS = ("tokenbucket", "commandstats", "errorstats", "memory", "replication", "server")


def printable(text: bytes | str) -> str:
    r"""The text in printable characters: what is no UTF-8, and what nobody sees (control
    characters, marks that turn the direction of writing), as \xNN for each byte, and a backslash
    as two. No two texts become the same."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")

    def shown(character: str) -> str:
        if character == "\\":
            return "\\\\"
        if character.isprintable():
            return character
        return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))

    return "".join(map(shown, text))


@dataclass(frozen=True)
class Denied:
    """A key of TB.TOP."""

    key: str
    denied: int
    last_minute: int
    """How often it was denied within the last minute."""


@dataclass(frozen=True)
class Answer:
    """What a node said at one moment."""

    role: str
    version: str
    replication_id: str
    """That of a master and of all its replicas."""
    buckets: dict[str, int]
    """The fields of INFO tokenbucket; empty without the module."""
    commands: dict[str, dict[str, float]]
    """INFO commandstats of the module's commands."""
    oom_errors: int | None
    """Replies that began with -OOM, the server's own included; None before Redis 6.2."""
    used_memory_bytes: int
    """Of the whole server. The module knows no more than what its values take."""
    maxmemory_bytes: int
    """0: no limit."""
    top: list[Denied]
    took_s: float


class Node:
    """One server. `watch` runs in a thread of its own, so that no node waits for another one."""

    def __init__(
        self, url: str, username: str | None, password: str | None, every_s: float, timeout_s: float
    ) -> None:
        # RESP2 and no name of the library: the greeting then consists of AUTH alone, so that
        # +info +tb.top suffice and the server's ACL LOG stays empty.
        self.client = Redis.from_url(
            url,
            username=username,
            password=password,
            protocol=2,
            driver_info=None,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self.name = name_of(self.client.connection_pool.connection_kwargs)
        self.every_s = every_s
        # Connecting, AUTH, INFO and TB.TOP each have their timeout.
        self.patience_s = every_s + 4 * timeout_s
        self.lock = threading.Lock()
        self.current: Answer | None = None
        self.is_known = False  # Whether it answered, or failed to.
        self.answered_at_s = -math.inf  # monotonic
        self.minute = LastMinute(every_s)
        self.top_refused_because = ""

    def watch(self) -> None:
        while True:
            self.ask()
            time.sleep(self.every_s)

    def ask(self) -> None:
        try:
            answer = self.answer()
        except Exception as error:  # whatever a server replies, it is asked again the next time
            self.report(None, printable(str(error) or type(error).__name__)[:200])
        else:
            self.report(answer)

    def answer(self) -> Answer:
        began = time.monotonic()
        pipeline = self.client.pipeline(transaction=False)
        for section in SECTIONS:
            pipeline.info(section)
        buckets, commands, errors, memory, replication, server = pipeline.execute()
        version = str(server["redis_version"])
        buckets = {
            name.removeprefix("tokenbucket_"): value
            for name, value in buckets.items()
            if name.startswith("tokenbucket_") and isinstance(value, int)
        }
        top = self.top() if buckets else []
        knows_errors = tuple(map(int, version.split(".")[:2])) >= (6, 2)
        return Answer(
            role="replica" if replication["role"] == "slave" else replication["role"],
            version=str(server.get("valkey_version", version)),
            replication_id=replication["master_replid"],
            buckets=buckets,
            commands=of_the_module(commands),
            oom_errors=errors.get("errorstat_OOM", {"count": 0})["count"] if knows_errors else None,
            used_memory_bytes=memory["used_memory"],
            maxmemory_bytes=memory["maxmemory"],
            top=self.minute.top(server["run_id"], top),
            took_s=time.monotonic() - began,
        )

    def top(self) -> list[tuple[bytes, int, int]]:
        try:
            rows = self.client.execute_command("TB.TOP", "COUNT", TOP_ROWS)
        except ResponseError as error:  # the counters are worth having without it
            because = printable(str(error))
            if because != self.top_refused_because:
                log.warning("%s: TB.TOP is refused: %s", self.name, because)
            self.top_refused_because = because
            return []
        self.top_refused_because = ""
        return [(key, denied, last_denied_ms) for key, denied, last_denied_ms in rows]

    def report(self, answer: Answer | None, down_because: str = "") -> None:
        with self.lock:
            changed = not self.is_known or (self.current is None) != (answer is None)
            self.current, self.is_known = answer, True
            if answer:
                self.answered_at_s = time.monotonic()
        if changed and answer:
            log.info("%s: up", self.name)
        elif changed:
            log.warning("%s: down: %s", self.name, down_because)

    def answer_now(self) -> Answer | None:
        """The last answer, unless the node is down. One that neither answers nor fails is, too."""
        with self.lock:
            is_silent = time.monotonic() - self.answered_at_s > self.patience_s
            return None if is_silent else self.current


class LastMinute:
    """How often keys were denied within the last minute, of what TB.TOP counts since the start."""

    def __init__(self, every_s: float) -> None:
        self.lists: deque[dict[bytes, int]] = deque(maxlen=math.ceil(MINUTE_S / every_s))
        self.run_id = ""

    def top(self, run_id: str, rows: list[tuple[bytes, int, int]]) -> list[Denied]:
        counts = {key: denied for key, denied, _ in rows}
        if run_id != self.run_id:
            self.run_id = run_id
            self.lists.clear()
        before = self.lists[0] if self.lists else counts
        self.lists.append(counts)
        # A key that is new in a full list took over the counter of the one denied least often.
        taken_over = min(before.values(), default=0) if len(before) == len(counts) else 0

        def last_minute(key: bytes, denied: int) -> int:
            earlier = before.get(key, taken_over)
            return denied - earlier if denied >= earlier else denied  # less: after a RESET

        return [Denied(printable(key), denied, last_minute(key, denied)) for key, denied, _ in rows]


def of_the_module(commandstats: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    commands = ((name.removeprefix("cmdstat_").upper(), of) for name, of in commandstats.items())
    return {name: of for name, of in commands if name.startswith("TB.") or name == "CL.THROTTLE"}


def name_of(connection: dict) -> str:
    """host:port, without the credentials that an address may have."""
    if "path" in connection:
        return connection["path"]
    host = connection.get("host", "localhost")
    return f"{f'[{host}]' if ':' in host else host}:{connection.get('port', 6379)}"
