"""The proxy's custom authentication in the tests: whatever a test says in KEYS."""

import json
import os
from typing import Any

from litellm.proxy._types import UserAPIKeyAuth

KEYS: dict[str, Any] = json.loads(os.environ["KEYS"])


async def user_api_key_auth(request: Any, api_key: str) -> Any:
    return UserAPIKeyAuth(api_key=api_key, **KEYS[api_key])
