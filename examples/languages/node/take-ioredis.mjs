import { Redis } from 'ioredis'

const redis = new Redis({
  host: '127.0.0.1', port: Number(process.env.REDIS_PORT ?? 6379), retryStrategy: () => null, lazyConnect: true,
})
await redis.connect()

const decision = await redis.call('TB.TAKE', 'user:42', 5, '5/10s')

const [allowed, remaining, retryAfterMs, resetAfterMs] = decision
console.log(`allowed=${allowed} remaining=${remaining} retry_after_ms=${retryAfterMs} reset_after_ms=${resetAfterMs}`)
redis.disconnect()
