/** A store for express-rate-limit, whose options and headers stay as they are. */

import type { Store } from "express-rate-limit";

import type { Client, Server } from "../transport/server.js";
import { WindowStore, type StoreOptions } from "./window-store.js";

export type { Hits, StoreOptions, WindowOptions } from "./window-store.js";

export class TokenBucketStore extends WindowStore implements Store {
  /** `prefix` is "rl:" by default; each limiter of an app needs its own. */
  constructor(client: Client | Server, { prefix = "rl:", ...options }: StoreOptions = {}) {
    super(client, prefix, options);
  }
}
