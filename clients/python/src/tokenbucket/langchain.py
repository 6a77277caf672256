"""A rate limiter of LangChain: see `TokenBucketRateLimiter`."""

from .adapters.langchain import TokenBucketRateLimiter as TokenBucketRateLimiter
