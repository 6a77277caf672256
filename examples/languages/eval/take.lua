-- Runs in the server: redis-cli -e -p "$REDIS_PORT" --eval take.lua user:42
local decision = redis.call('TB.TAKE', KEYS[1], 5, '5/10s')

return string.format('allowed=%d remaining=%d retry_after_ms=%d reset_after_ms=%d', unpack(decision))
