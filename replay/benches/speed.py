#!/usr/bin/env python3
"""speed.py PROGRAM [LINES]   Shows the speed and memory of tokenbucket-replay beside awk, which counts the same log.

Seconds are those of the processor, so that a busy machine changes little. It fails beyond 24 bytes a request and 100 a key.
"""

from __future__ import annotations

import datetime
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

AGENT = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36"
COUNT = 'BEGIN { FS = " " } { count[$1]++ } END { for (key in count) keys++; print NR, keys }'
# More lines than this come through a pipe, and not from a file.
MOST_IN_A_FILE = 10_000_000


def lines(count: int, key: Callable[[random.Random], int]) -> Iterator[str]:
    rng = random.Random(1)
    for place in range(count):
        if place % 8 == 0:
            moment = datetime.datetime.fromtimestamp(1_772_409_600 + place // 8, datetime.timezone.utc)
            time = moment.strftime("%d/%b/%Y:%H:%M:%S +0000")
        number = key(rng) if count != place else 0
        yield (
            f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255} - - [{time}] "
            f'"GET /api/v1/items/{place % 9999} HTTP/1.1" 200 {place % 7000} "https://example.com/page" "{AGENT}"\n'
        )


def measure(command: list[str], log: str, source: Iterator[str] | None) -> tuple[float, int]:
    """Seconds of the processor, and the most memory in bytes."""
    given = subprocess.PIPE if source else open(log, "rb")
    process = subprocess.Popen(command, stdin=given, stdout=subprocess.DEVNULL, text=bool(source))
    if source:
        process.stdin.writelines(source)
        process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000
    few = lambda rng: int(rng.paretovariate(0.6)) % 150_000
    print("| | lines | seconds | lines a second | MB |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "access.log")
        in_file = count <= MOST_IN_A_FILE
        if in_file:
            with open(log, "w") as file:
                file.writelines(lines(count, few))

        def row(name: str, command: list[str], lines_of: int, path: str, source: Iterator[str] | None) -> int:
            seconds, memory = measure(command, path, source)
            print(f"| {name} | {lines_of:,} | {seconds:.2f} | {lines_of / seconds:,.0f} | {memory / 1e6:.0f} |", flush=True)
            return memory

        def source() -> Iterator[str] | None:
            return None if in_file else lines(count, few)

        memory = row("tokenbucket-replay", [program], count, log, source())
        row("awk '{ count[$1]++ }'", ["awk", COUNT], count, log, source())
        keys = min(count, 1_000_000)
        many = os.path.join(folder, "many.log")
        with open(many, "w") as file:
            file.writelines(lines(keys, lambda rng, next=iter(range(keys)): next.__next__()))
        memory_of_keys = row("a key in each line", [program], keys, many, None)
    # The program itself, and the keys of the first log, which are at most 150,000.
    itself = 8_000_000
    assert memory <= 24 * count + 100 * min(count, 150_000) + itself, "more than 24 bytes a request"
    assert memory_of_keys <= (24 + 100) * keys + itself, "more than 100 bytes a key"


if __name__ == "__main__":
    main()
