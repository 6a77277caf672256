"""Token bucket limits, decided by the tokenbucket module of Redis and Valkey.

    limiter = tokenbucket.Limiter(redis.Redis(), tokenbucket.Limit(10, "5/s"))
    if limiter.take("user:42"):
        ...

`tokenbucket.asyncio` has the same classes for asyncio, and `tokenbucket.testing` a server in memory. The
package is called tokenbucket-redis; tokenbucket on PyPI is another project.
"""

from .api.operations import OnDecision, OnError
from .api.threads import Client, Hold, JointLimiter, Limiter, Server
from .values.decision import Decision, Denied, JointDecision
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
    "JointDecision",
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
]
