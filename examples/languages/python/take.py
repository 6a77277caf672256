import os

import redis

r = redis.Redis(host="127.0.0.1", port=int(os.environ.get("REDIS_PORT", 6379)))

allowed, remaining, retry_after_ms, reset_after_ms = r.execute_command("TB.TAKE", "user:42", 5, "5/10s")

print(f"{allowed=} {remaining=} {retry_after_ms=} {reset_after_ms=}")
