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

  /** When the last one ends. */
  get endsAt(): bigint {
    return this.#chunks.at(-1)?.holds.at(-1)?.endsAt ?? 0n;
  }

  get(id: string): Held | undefined {
    return this.#byId.get(id);
  }

  set(held: Held): void {
    this.delete(held.id);
    this.#byId.set(held.id, held);
    const at = Math.min(this.#chunkOf(held), Math.max(this.#chunks.length - 1, 0));
    const chunk = (this.#chunks[at] ??= { holds: [], sum: 0n });
    chunk.holds.splice(
      first(chunk.holds, (one) => isAfter(one, held)),
      0,
      held,
    );
    chunk.sum += held.amount;
    if (chunk.holds.length <= 2 * CHUNK) return;
    const holds = chunk.holds.splice(CHUNK);
    const sum = sumOf(holds);
    chunk.sum -= sum;
    this.#chunks.splice(at + 1, 0, { holds, sum });
  }

  delete(id: string): void {
    const held = this.#byId.get(id);
    if (!held) return;
    this.#byId.delete(id);
    const at = this.#chunkOf(held);
    const chunk = this.#chunks[at]!;
    chunk.holds.splice(
      first(chunk.holds, (one) => !isAfter(held, one)),
      1,
    );
    chunk.sum -= held.amount;
    if (chunk.holds.length === 0) this.#chunks.splice(at, 1);
  }

  /** Returns what those hold together that end by then. */
  sumUntil(moment: bigint): bigint {
    return this.first((held) => held.endsAt > moment).before;
  }

  deleteUntil(moment: bigint): void {
    for (;;) {
      const held = this.#chunks[0]?.holds[0];
      if (!held || held.endsAt > moment) return;
      this.delete(held.id);
    }
  }

  /**
   * Returns the first hold that is enough, judged with the sum of the amounts up to it, and the sum of those before it. It
   * is enough for all later ones, too. `without` counts for nothing.
   */
  first(isEnough: (held: Held, sum: bigint) => boolean, without?: Held): { held: Held | undefined; before: bigint } {
    const ofWithout = without ? this.#chunkOf(without) : -1;
    let before = 0n;
    for (const [at, { holds, sum }] of this.#chunks.entries()) {
      const all = before + sum - (at === ofWithout ? without!.amount : 0n);
      if (isEnough(holds.at(-1)!, all)) {
        for (const held of holds) {
          if (held === without) continue;
          if (isEnough(held, before + held.amount)) return { held, before };
          before += held.amount;
        }
      }
      before = all;
    }
    return { held: undefined, before };
  }

  /** Returns the chunk that ends with this hold or a later one. */
  #chunkOf(held: Held): number {
    return first(this.#chunks, ({ holds }) => !isAfter(held, holds.at(-1)!));
  }
}

function isAfter(a: Held, b: Held): boolean {
  return a.endsAt > b.endsAt || (a.endsAt === b.endsAt && a.id > b.id);
}

function sumOf(holds: readonly Held[]): bigint {
  return holds.reduce((sum, { amount }) => sum + amount, 0n);
}

/** Returns the index of the first for which that is true, as for all behind it. */
function first<T>(sorted: readonly T[], isOne: (one: T) => boolean): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isOne(sorted[middle]!)) high = middle;
    else low = middle + 1;
  }
  return low;
}
