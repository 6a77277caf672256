/** Runs the whole example: a Redis with the module, and the app. */

import { appService, redisService } from "./services.js";

async function main(): Promise<void> {
  const redis = await (await redisService()).start();
  const env = { REDIS_URL: `redis://127.0.0.1:${redis.port}`, PORT: process.env.PORT || "3000" };
  const app = await (await appService(env, { show: true })).start();

  const url = `http://127.0.0.1:${app.port}`;
  console.log(`Redis with the module on port ${redis.port}. To try the app (and Ctrl-C to end it):

curl -i ${url}/
curl -i '${url}/search?q=hi'           # 6 times, quickly
curl -i '${url}/export?rows=6000'      # twice, quickly
curl -i '${url}/export?rows=20000'     # more than its limit ever holds
`);
  process.exit(await app.whenEnded());
}

main().catch((error: Error) => {
  console.error(error.message);
  process.exit(1);
});
