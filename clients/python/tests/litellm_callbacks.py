"""Callbacks of the proxy in the tests, extended as a program of somebody else would."""

import gc
from typing import Any

from tokenbucket import Limit
from tokenbucket.litellm import TokenBucketCallback, TokenBucketRouter

# So that a hook ends each call, and not that Python happens to free it.
gc.disable()


class Callback(TokenBucketCallback):
    def limits_of(self, who: Any) -> dict[str, tuple[str, Limit]]:
        one = Limit(1, "1/h")
        return {"key:requests": (who.api_key, one)} if who.user_id == "extended" else {}


class Router(TokenBucketRouter):
    """No tokens flow in while a test runs."""

    def limit_of(self, which: str, number: float) -> Limit:
        return Limit(number, "1/h") if which == "tokens" else super().limit_of(which, number)


callback = Callback()
router = Router()
