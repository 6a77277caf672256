"""Limiters for asyncio: those of `tokenbucket`, to be awaited."""

from .api.asyncio import Client, Hold, JointLimiter, Limiter, Server

__all__ = [
    "Client",
    "Hold",
    "JointLimiter",
    "Limiter",
    "Server",
]
