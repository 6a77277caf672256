"""Transports of httpx that wait for a token before they send: see `RateLimitTransport`."""

from .adapters.httpx import AsyncRateLimitTransport as AsyncRateLimitTransport
from .adapters.httpx import RateLimitTimeout as RateLimitTimeout
from .adapters.httpx import RateLimitTransport as RateLimitTransport
