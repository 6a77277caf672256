"""Calls as from a few hundred users, a few of whom want too much: something to see.

    python load.py PORT
"""

from __future__ import annotations

import heapq
import math
import random
import sys
import time

from redis import Redis
from redis.exceptions import RedisError

CALLS_A_SECOND = 120
TICK_S = 0.1
USERS = [f"user:{1000 + number}" for number in range(400)]
# Most of them call rarely, some often.
WEIGHTS = [1 / (number + 6) for number in range(len(USERS))]
# Who calls much more often than they may, for how much of the time.
GREEDY = [
    ("ip:203.0.113.77", 0.9),
    ("tenant:{acme}:requests", 0.6),
    ("ip:2001:db8:41::/64", 0.35),
    ("login:müller", 0.2),
    ("search:café", 0.15),
]
TEAMS = ["blue", "green", "red"]


def wave(period_s: float, at_s: float) -> float:
    """Between 0 and 1, and back, in each period."""
    return (1 - math.cos(2 * math.pi * at_s / period_s)) / 2


def calls(at_s: float) -> list[tuple]:
    """What happens within one tick."""
    busy = 0.45 + 0.4 * wave(2200, at_s) + 0.15 * wave(370, at_s)
    made = []
    for user in random.choices(USERS, WEIGHTS, k=draw(CALLS_A_SECOND * busy * TICK_S)):
        made.append(("TB.TAKE", user, 20, "2/s"))
    for number, (key, share) in enumerate(GREEDY):
        if wave(240 + 170 * number, at_s) > 1 - share:
            made += [("TB.TAKE", key, 10, "1/s")] * draw(14 * TICK_S)
    return made + jobs(at_s, busy)


# When the jobs that are being done end: time, key, id.
ends: list[tuple[float, str, str]] = []


def jobs(at_s: float, busy: float) -> list[tuple]:
    """Some begin, some end, and one in a hundred dies and leaves its hold behind."""
    made = []
    if random.random() < 3 * busy * TICK_S:
        key, job = f"llm:{random.choice(TEAMS)}:inflight", f"job:{random.getrandbits(64):x}"
        made.append(("TB.HOLD", key, 40, 0, 1, 30_000, job))
        if random.random() > 0.01:
            heapq.heappush(ends, (at_s + random.uniform(2, 25), key, job))
    while ends and ends[0][0] <= at_s:
        _, key, job = heapq.heappop(ends)
        made.append(("TB.SETTLE", key, 40, 0, job, 0))
    return made


def draw(mean: float) -> int:
    """A whole number that is `mean` on average."""
    return int(mean * random.uniform(0.6, 1.4) + random.random())


def main(port: int) -> None:
    redis = Redis(port=port)
    while True:
        began_s = time.time()
        pipeline = redis.pipeline(transaction=False)
        for call in calls(began_s):
            pipeline.execute_command(*call)
        try:
            pipeline.execute(raise_on_error=False)
        except (RedisError, OSError):
            time.sleep(1)  # the server is down: it may come back
        time.sleep(max(0, began_s + TICK_S - time.time()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
