require 'redis'

redis = Redis.new(port: ENV.fetch('REDIS_PORT', 6379))

allowed, remaining, retry_after_ms, reset_after_ms = redis.call('TB.TAKE', 'user:42', 5, '5/10s')

puts "allowed=#{allowed} remaining=#{remaining} retry_after_ms=#{retry_after_ms} reset_after_ms=#{reset_after_ms}"
