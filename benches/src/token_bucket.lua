-- A token bucket as a script: KEYS[1] the bucket, ARGV[1] capacity, ARGV[2] tokens a second, ARGV[3] cost.
-- Replies allowed, remaining, retry_after_ms, reset_after_ms.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local level = capacity
local stored = redis.call('HMGET', KEYS[1], 'level', 'refilled_at_us')
if stored[1] then
    local elapsed_us = math.max(0, now_us - stored[2])
    level = math.min(capacity, stored[1] + elapsed_us * rate / 1000000)
end

local allowed, retry_after_ms = 0, 0
if level >= cost then
    allowed = 1
    level = level - cost
    redis.call('HSET', KEYS[1], 'level', level, 'refilled_at_us', now_us)
    redis.call('EXPIRE', KEYS[1], math.ceil((capacity - level) / rate))
elseif cost > capacity then
    retry_after_ms = -1
else
    retry_after_ms = math.ceil((cost - level) / rate * 1000)
end
return {allowed, math.floor(level), retry_after_ms, math.ceil((capacity - level) / rate * 1000)}
