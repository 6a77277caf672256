// The last hour, as the exporter said it.

const HISTORY_S = 3600;
const MOST_DRAWN = 240; // more points than that are noise in a small chart
// Of a point: time, allowed and denied a second, buckets, bytes of their values, holds, bytes of the server, whether the node is a master,
// errors a second.
const [ALLOWED, DENIED, BUCKETS, VALUES, HOLDS, SERVER, IS_MASTER, ERRORS] = [1, 2, 3, 4, 5, 6, 7, 8];
const OF_MASTERS = [BUCKETS, VALUES, HOLDS, SERVER];

// For each node its points by their time. All nodes have points at the same times.
const history = new Map();
export let newest = 0;

// The used share of the memory limit of each master that has one, the largest.
export function fullest(nodes, chosen) {
  const shares = nodes.flatMap(({ name, maxmemory }) => {
    const point = [...(history.get(name)?.values() ?? [])].at(-1);
    const counts = maxmemory > 0 && (chosen ? name === chosen : point?.[IS_MASTER]);
    return counts && point?.[SERVER] != null ? [point[SERVER] / maxmemory] : [];
  });
  return shares.length ? Math.max(...shares) : null;
}

export function remember(nodes, now) {
  for (const { name, history: points } of nodes) {
    if (!history.has(name)) history.set(name, new Map());
    const known = history.get(name);
    for (const point of points) {
      known.set(point[0], point);
      newest = Math.max(newest, point[0]);
    }
    for (const time of known.keys()) if (time < now - HISTORY_S) known.delete(time);
  }
}

// [times, allowed, denied, buckets, values, holds, server, errors] of one node, or summed up over those that were there.
export function columns(chosen) {
  const shown = [...history].filter(([name]) => !chosen || name === chosen).map(([, points]) => points);
  const times = [...new Set(shown.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b);
  const sum = (time, index) => {
    const values = shown
      .map((points) => points.get(time))
      .filter((point) => point && (chosen || point[IS_MASTER] || !OF_MASTERS.includes(index)))
      .map((point) => point[index])
      .filter((value) => value != null);
    return values.length ? values.reduce((a, b) => a + b) : null;
  };
  return [times, ...[ALLOWED, DENIED, BUCKETS, VALUES, HOLDS, SERVER, ERRORS].map((index) => times.map((time) => sum(time, index)))];
}

// For the charts: means of so many points that MOST_DRAWN remain, and the newest as it is. A mean of points of which one
// is missing is missing, so that a short absence is seen.
export function thinned([times, ...values], everyS) {
  const newest = times.length - 1;
  const blockS = everyS * Math.ceil(newest / MOST_DRAWN);
  const blocks = new Map();
  times.slice(0, newest).forEach((time, index) => {
    const block = Math.floor(time / blockS);
    blocks.set(block, [...(blocks.get(block) ?? []), index]);
  });
  const drawn = [...blocks.values()];
  const mean = (of) => (of.includes(null) ? null : of.reduce((a, b) => a + b) / of.length);
  return [
    [...drawn.map((block) => times[block.at(-1)]), ...times.slice(newest)],
    ...values.map((column) => [...drawn.map((block) => mean(block.map((index) => column[index]))), ...column.slice(newest)]),
  ];
}
