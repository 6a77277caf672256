"""Limiters for asyncio: those of `tokenbucket`, to be awaited."""

from .api.asyncio import Client as Client
from .api.asyncio import Hold as Hold
from .api.asyncio import JointLimiter as JointLimiter
from .api.asyncio import Limiter as Limiter
from .api.asyncio import Server as Server
