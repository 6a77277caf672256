-- A place among so many: the members of a sorted set are those who hold one, by the time at which they came.
-- KEYS[1]: the set. ARGV: now and the time a place may be held, both in milliseconds; places; who wants one.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] - ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
    return 0
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
