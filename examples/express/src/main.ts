import { createApp } from "./app.js";
import { connect } from "./redis.js";
import { readSettings } from "./settings.js";

async function main(): Promise<void> {
  const settings = readSettings(process.env);
  const redis = connect(settings.redisUrl);
  // The limiters log outages; without a listener ioredis would print every failed attempt.
  redis.on("error", () => {});
  const app = createApp(redis, settings);

  // When there is no server yet, start all the same: until it comes, each process limits by itself.
  await new Promise<void>((tried) => redis.once("ready", tried).once("close", tried));

  const server = app.listen(settings.port, settings.host, (error) => {
    if (error) fail(error);
    console.log(`listening on http://${settings.host}:${settings.port}`);
  });
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    // Once every request is answered. Not by redis.disconnect(): away from Redis it takes seconds.
    process.once(signal, () => server.close(() => process.exit()));
  }
}

function fail(error: Error): never {
  console.error(error.message);
  process.exit(1);
}

main().catch(fail);
