"""Throttles of Django REST framework: see `TokenBucketThrottle`."""

from .adapters.rest_framework import (
    AnonRateThrottle,
    ScopedRateThrottle,
    TokenBucketThrottle,
    UserRateThrottle,
    limiter,
)

__all__ = [
    "AnonRateThrottle",
    "ScopedRateThrottle",
    "TokenBucketThrottle",
    "UserRateThrottle",
    "limiter",
]
