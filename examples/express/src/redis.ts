import { Redis } from "ioredis";

/** A client that suits a limiter: what it cannot send now it does not send later, and it reconnects on its own. */
export function connect(url: string): Redis {
  return new Redis(url, {
    // A take that got no reply may have happened: do not send it again.
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    // For a server that accepts and says nothing: leave it after a second, try again.
    connectTimeout: 1000,
    socketTimeout: 1000,
    // Without end and without growing, to be limiting again within a second of its return.
    retryStrategy: () => 200,
  });
}
