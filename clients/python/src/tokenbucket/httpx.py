"""Transports of httpx that wait for a token before they send: see `RateLimitTransport`."""

from .adapters.httpx import AsyncRateLimitTransport, RateLimitTimeout, RateLimitTransport, host_of

__all__ = [
    "AsyncRateLimitTransport",
    "RateLimitTimeout",
    "RateLimitTransport",
    "host_of",
]
