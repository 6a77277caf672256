"""Calls as from a few hundred users, a few of whom want too much: something to see.

    python load.py PORT
"""

from __future__ import annotations

import random
import sys
import time

from redis import Redis
from redis.exceptions import RedisError

TICK_S = 0.1
CALLS = 6  # a tick
USERS = [f"user:{1000 + number}" for number in range(400)]
# Most of them call rarely, some often.
WEIGHTS = [1 / (number + 6) for number in range(len(USERS))]
# Who calls much more often than they may, and in how much of each five minutes.
GREEDY = {
    "ip:203.0.113.77": 0.9,
    "tenant:{acme}:requests": 0.6,
    "ip:2001:db8:41::/64": 0.35,
    "login:müller": 0.2,
    "search:café": 0.15,
}
TEAMS = ["blue", "green", "red"]


def calls(tick: int) -> list[tuple]:
    """What happens within one tick."""
    made = [("TB.TAKE", user, 20, "2/s") for user in random.choices(USERS, WEIGHTS, k=CALLS)]
    for key, share in GREEDY.items():
        if tick * TICK_S / 300 % 1 < share:
            made.append(("TB.TAKE", key, 10, "1/s"))
    return made


def jobs(tick: int, running: list[tuple[str, str]]) -> list[tuple]:
    """One begins in some ticks, one ends, and one in a hundred dies and leaves its hold behind."""
    made = []
    if tick % 4 == 0:
        key, job = f"llm:{random.choice(TEAMS)}:inflight", f"job:{random.getrandbits(64):x}"
        made.append(("TB.HOLD", key, 40, 0, 1, 30_000, job))
        if random.random() > 0.01:
            running.append((key, job))
    if len(running) > 30:
        key, job = running.pop(0)
        made.append(("TB.SETTLE", key, 40, 0, job, 0))
    return made


def main(port: int) -> None:
    redis = Redis(port=port)
    tick, running = 0, []
    while True:
        pipeline = redis.pipeline(transaction=False)
        for call in calls(tick) + jobs(tick, running):
            pipeline.execute_command(*call)
        try:
            pipeline.execute(raise_on_error=False)
        except (RedisError, OSError):
            time.sleep(1)  # the server is down: it may come back
        tick += 1
        time.sleep(TICK_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
