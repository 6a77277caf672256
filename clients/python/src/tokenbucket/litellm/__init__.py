"""Callbacks of LiteLLM: limits of a proxy's keys and teams, and of a router's deployments."""

from .deployments import TokenBucketRouter
from .proxy import TokenBucketCallback

__all__ = ["TokenBucketCallback", "TokenBucketRouter", "callback", "router"]

callback = TokenBucketCallback()
router = TokenBucketRouter()
