"""The `limits` library on token buckets: see `TokenBucketStorage`."""

from .adapters.limits import AsyncTokenBucketRateLimiter as AsyncTokenBucketRateLimiter
from .adapters.limits import AsyncTokenBucketStorage as AsyncTokenBucketStorage
from .adapters.limits import TokenBucketRateLimiter as TokenBucketRateLimiter
from .adapters.limits import TokenBucketStorage as TokenBucketStorage
