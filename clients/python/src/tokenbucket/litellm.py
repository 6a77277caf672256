"""A callback of the LiteLLM proxy: see `TokenBucketCallback`."""

from .adapters.litellm import TokenBucketCallback as TokenBucketCallback
from .adapters.litellm import callback as callback
