/** The holds of one bucket, by when they end. */

export interface Held {
  readonly id: string;
  readonly amount: bigint;
  readonly endsAt: bigint;
}

/** Holds that follow each other, and what they hold together. */
interface Chunk {
  holds: Held[];
  sum: bigint;
}

const CHUNK = 64;

/** Sorted in chunks with their sums: a bucket may have tens of thousands, and no decision walks through all of them. */
export class Holds {
  readonly #byId = new Map<string, Held>();
  readonly #chunks: Chunk[] = [];

  get endsAt(): bigint {
    return this.#chunks.at(-1)?.holds.at(-1)?.endsAt ?? 0n;
  }

  get total(): bigint {
    return this.#chunks.reduce((sum, chunk) => sum + chunk.sum, 0n);
  }

  get(id: string): Held | undefined {
    return this.#byId.get(id);
  }

  set(held: Held): void {
    this.delete(held.id);
    this.#byId.set(held.id, held);
    const { at, index } = this.#placeOf(held);
    const chunk = (this.#chunks[at] ??= { holds: [], sum: 0n });
    chunk.holds.splice(index, 0, held);
    chunk.sum += held.amount;
    if (chunk.holds.length <= 2 * CHUNK) return;
    const holds = chunk.holds.splice(CHUNK);
    const sum = holds.reduce((all, { amount }) => all + amount, 0n);
    chunk.sum -= sum;
    this.#chunks.splice(at + 1, 0, { holds, sum });
  }

  delete(id: string): void {
    const held = this.#byId.get(id);
    if (!held) return;
    this.#byId.delete(id);
    const { at, index } = this.#placeOf(held);
    const chunk = this.#chunks[at]!;
    chunk.holds.splice(index, 1);
    chunk.sum -= held.amount;
    if (chunk.holds.length === 0) this.#chunks.splice(at, 1);
  }

  /** Removes those that end by then, and returns what they held together. */
  endUntil(moment: bigint): bigint {
    for (let sum = 0n; ; ) {
      const held = this.#chunks[0]?.holds[0];
      if (!held || held.endsAt > moment) return sum;
      sum += held.amount;
      this.delete(held.id);
    }
  }

  /**
   * Returns the first hold that is enough, judged with the sum of the amounts up to it, and the sum of those before it. It
   * is enough for all later ones, too.
   */
  first(isEnough: (held: Held, sum: bigint) => boolean): { held: Held | undefined; before: bigint } {
    let before = 0n;
    for (const { holds, sum } of this.#chunks) {
      if (isEnough(holds.at(-1)!, before + sum)) {
        for (const held of holds) {
          if (isEnough(held, before + held.amount)) return { held, before };
          before += held.amount;
        }
      }
      before += sum;
    }
    return { held: undefined, before };
  }

  /** Returns where it is, or is to be put: in the chunk that ends with it or a later one, else in the last one. */
  #placeOf(held: Held): { at: number; index: number } {
    const found = this.#chunks.findIndex(({ holds }) => !isAfter(held, holds.at(-1)!));
    const at = found < 0 ? Math.max(this.#chunks.length - 1, 0) : found;
    const holds = this.#chunks[at]?.holds ?? [];
    const index = holds.findIndex((one) => !isAfter(held, one));
    return { at, index: index < 0 ? holds.length : index };
  }
}

function isAfter(a: Held, b: Held): boolean {
  return a.endsAt > b.endsAt || (a.endsAt === b.endsAt && a.id > b.id);
}
