import { createClient } from 'redis'

const client = await createClient({
  socket: { host: '127.0.0.1', port: Number(process.env.REDIS_PORT ?? 6379), reconnectStrategy: false },
}).connect()

const decision = await client.sendCommand(['TB.TAKE', 'user:42', '5', '5/10s'])

const [allowed, remaining, retryAfterMs, resetAfterMs] = decision
console.log(`allowed=${allowed} remaining=${remaining} retry_after_ms=${retryAfterMs} reset_after_ms=${resetAfterMs}`)
client.destroy()
