use v5.36;
use Redis;

my $redis = Redis->new(server => '127.0.0.1:' . ($ENV{REDIS_PORT} // 6379));

my ($allowed, $remaining, $retry_after_ms, $reset_after_ms) = $redis->${\'TB.TAKE'}('user:42', 5, '5/10s');

say "allowed=$allowed remaining=$remaining retry_after_ms=$retry_after_ms reset_after_ms=$reset_after_ms";
