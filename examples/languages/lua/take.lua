local redis = require 'redis'

local client = redis.connect('127.0.0.1', tonumber(os.getenv('REDIS_PORT') or 6379))

local decision = redis.command('TB.TAKE')(client, 'user:42', 5, '5/10s')

print(string.format('allowed=%d remaining=%d retry_after_ms=%d reset_after_ms=%d', unpack(decision)))
