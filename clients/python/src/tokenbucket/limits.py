"""The `limits` library on token buckets: see `TokenBucketStorage`."""

from .adapters.limits import (
    AsyncTokenBucketRateLimiter,
    AsyncTokenBucketStorage,
    TokenBucketRateLimiter,
    TokenBucketStorage,
)

__all__ = [
    "AsyncTokenBucketRateLimiter",
    "AsyncTokenBucketStorage",
    "TokenBucketRateLimiter",
    "TokenBucketStorage",
]
