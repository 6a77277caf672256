"""The protocol of Redis, version 2: commands become bytes, bytes become replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..values.errors import ReplyError

PING = b"*1\r\n$4\r\nPING\r\n"


def pack(words: Iterable[object]) -> bytes:
    # A name may hold half of a surrogate pair, as JSON can spell it.
    texts = [str(word).encode("utf-8", "surrogatepass") for word in words]
    parts = [b"*%d\r\n" % len(texts)]
    parts += [b"$%d\r\n%b\r\n" % (len(text), text) for text in texts]
    return b"".join(parts)


class _Incomplete(Exception):
    pass


class Replies:
    """Reads replies from the bytes of one connection."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are complete now."""
        if self._rest:
            data = self._rest + data
        replies, at = [], 0
        try:
            while at < len(data):
                reply, at = _read(data, at)
                replies.append(reply)
        except _Incomplete:
            pass
        self._rest = data[at:]
        return replies


def _read(data: bytes, at: int) -> tuple[Any, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _Incomplete
    kind, after = data[at], end + 2
    if kind == 58:  # ":"
        return int(data[at + 1 : end]), after
    if kind == 42:  # "*"
        count = int(data[at + 1 : end])
        if count < 0:
            return None, after
        items = []
        for _ in range(count):
            item, after = _read(data, after)
            items.append(item)
        return items, after
    if kind == 36:  # "$"
        size = int(data[at + 1 : end])
        if size < 0:
            return None, after
        if len(data) < after + size + 2:
            raise _Incomplete
        return data[after : after + size], after + size + 2
    text = data[at + 1 : end].decode("utf-8", "replace")
    if kind == 45:  # "-"
        return ReplyError(text), after
    if kind == 43:  # "+"
        return text, after
    raise ConnectionError(f"not a reply of RESP2: {data[at : at + 32]!r}")
