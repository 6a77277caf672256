<?php
$redis = new Redis();
$redis->connect('127.0.0.1', (int) (getenv('REDIS_PORT') ?: 6379));

$decision = $redis->rawCommand('TB.TAKE', 'user:42', 5, '5/10s');

if ($decision === false) { // phpredis does not throw for an error reply
    throw new RedisException($redis->getLastError());
}
[$allowed, $remaining, $retry_after_ms, $reset_after_ms] = $decision;
echo "allowed=$allowed remaining=$remaining retry_after_ms=$retry_after_ms reset_after_ms=$reset_after_ms\n";
