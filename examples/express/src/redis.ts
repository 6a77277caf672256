import { Redis } from "ioredis";

/** The app's client. Limiters make a connection of their own with its options, so these are the app's own choice. */
export function connect(url: string): Redis {
  return new Redis(url, { maxRetriesPerRequest: 0, retryStrategy: () => 200 });
}
