"""The `limits` library on token buckets: see `TokenBucketStorage`."""

from .adapters.limits import AsyncTokenBucketStorage as AsyncTokenBucketStorage
from .adapters.limits import TokenBucketStorage as TokenBucketStorage
