"""A callback of the LiteLLM proxy: see `TokenBucketCallback`."""

from .adapters.litellm import TokenBucketCallback, callback

__all__ = [
    "TokenBucketCallback",
    "callback",
]
