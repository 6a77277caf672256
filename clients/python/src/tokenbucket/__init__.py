"""Token bucket limits, decided by the tokenbucket module of Redis and Valkey.

    import redis
    import tokenbucket

    limiter = tokenbucket.Limiter(redis.Redis(), tokenbucket.Limit(capacity=10, rate="5/s"))
    if limiter.take("user:42"):
        print("go on")

A bucket holds at most `capacity` tokens and refills at `rate`; a call takes one or more of them. Calls return
a `Decision`, and `hold` a `Hold`. `tokenbucket.asyncio` has the same classes, whose calls are awaited.
The examples below use `tokenbucket.testing`, a server in memory.

The package is called tokenbucket-redis; tokenbucket on PyPI is another project.
"""

from .api.operations import OnDecision, OnError
from .api.threads import Client, Hold, JointLimiter, Limiter, Server
from .values.address import client_address
from .values.decision import Decision, Denied
from .values.errors import BadArgument, CrossSlot, ModuleMissing, ReplyLost, ServerAway, TokenBucketError
from .values.limit import Limit, Number

__version__ = "0.1.0"

__all__ = [
    "BadArgument",
    "Client",
    "CrossSlot",
    "Decision",
    "Denied",
    "Hold",
    "JointLimiter",
    "Limit",
    "Limiter",
    "ModuleMissing",
    "Number",
    "OnDecision",
    "OnError",
    "ReplyLost",
    "Server",
    "ServerAway",
    "TokenBucketError",
    "client_address",
]
