"""Token bucket limits that are decided by the tokenbucket module of Redis and Valkey.

    limiter = tokenbucket.Limiter(redis.Redis(), tokenbucket.Limit(10, "5/s"))
    if limiter.take("user:42").allowed: ...

The same for asyncio is in `tokenbucket.asyncio`. The package that has this import is
tokenbucket-redis; tokenbucket on PyPI is another project's.
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
