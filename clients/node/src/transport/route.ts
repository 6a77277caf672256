/** Routes to one server, and to the nodes of a cluster: its slot map, over single connections. */

import slotOf from "cluster-key-slot";

import type { Connection, Route } from "./driver.js";

const SLOTS = 16_384;

/** Knows which node has a slot, from redirections and CLUSTER SLOTS, else from the driver. */
export class ClusterRoute implements Route {
  readonly #addresses: (string | undefined)[] = [];

  constructor(
    /** Asks the driver for the address of a slot. */
    readonly addressInDriver: (slot: number) => string | undefined,
    readonly connectionTo: (address: string) => Connection,
    /** Translates a node's address as the cluster knows it (NAT). */
    readonly reachable = (address: string) => address,
    /** Lets the driver find its nodes anew. */
    readonly refresh = () => {},
  ) {}

  addressOf(key: string): string {
    return this.#addressOfSlot(slotOf(key));
  }

  /** Returns all nodes with slots. */
  addresses(): Set<string> {
    const all = new Set<string>();
    for (let slot = 0; slot < SLOTS; slot++) all.add(this.#addressOfSlot(slot));
    return all;
  }

  /** Learns that a slot has moved. */
  learn(slot: number, address: string): void {
    this.#addresses[slot] = this.reachable(address);
  }

  /** Learns the reply to CLUSTER SLOTS of the node at `from`. */
  learnAll(slots: unknown, from: string): void {
    for (const [first, last, [host, port]] of slots as [number, number, [string | null, number]][]) {
      const address = `${host || hostAndPort(from).host}:${port}`;
      for (let slot = Number(first); slot <= Number(last); slot++) this.learn(slot, address);
    }
  }

  /** Forgets what nodes said that are all away: the driver may know others. */
  forget(): void {
    this.#addresses.length = 0;
    this.refresh();
  }

  #addressOfSlot(slot: number): string {
    return this.#addresses[slot] ?? this.addressInDriver(slot) ?? "";
  }
}

/** Returns the route to one server, or to the master that the driver finds. */
export function single(address: string, connectionTo: () => Connection): Route {
  return { addressOf: () => address, connectionTo };
}

/** Returns the address in a client's options, for messages. */
export function addressIn(options: unknown): string {
  const { path, host, port, sentinels, name } = (options ?? {}) as Record<string, unknown>;
  if (Array.isArray(sentinels)) return String(name);
  return path ? String(path) : `${host ?? "localhost"}:${port ?? 6379}`;
}

/** Splits an address at its last colon, which is right for IPv6 too. */
export function hostAndPort(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(":");
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}
