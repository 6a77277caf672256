// Asks the exporter every few seconds and shows what it says. Whatever a key or an error contains, it
// gets onto the page as text (textContent), never as HTML.

import { columns, fullest, newest, remember, thinned } from "./history.js";

const LEAST_SHOWN_S = 300;
const NEARLY_FULL = 0.9; // of maxmemory
// Between times on an axis. uPlot's own steps lack 2 and 20 minutes, so that a narrow chart would show a single time.
const STEPS_S = [15, 30, 60, 120, 300, 600, 1200, 1800, 3600];
const FIELDS = {
  decisions_allowed: "allowed",
  decisions_denied: "denied",
  errors: "errors",
  tokens_granted: "tokens granted",
  buckets: "buckets",
  bucket_bytes: "bytes of bucket values",
  holds: "holds",
  holds_expired: "holds expired",
  settled_late: "settled late",
  waiting: "waiting",
  served_after_waiting: "served after waiting",
  gave_up_waiting: "gave up waiting",
  waits_refused: "found the queue full",
};

const byId = (id) => document.getElementById(id);

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// Only where something changed, so that a selection stays and nothing is read out twice.
function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Numbers and times.

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const clockToTheMinute = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const timeOf = (seconds, format = clock) => format.format(seconds * 1000);

const exact = (digits) => whole.format(BigInt(digits));
const orDash = (format) => (value) => (value == null ? "–" : format(value));
const count = orDash((value) => (value < 10_000 ? whole.format(Math.round(value)) : compact.format(value)));
const rate = orDash((value) => (value < 10 ? String(+value.toFixed(1)) : count(Math.round(value))));
const bytes = orDash((value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  return `${+(value / 1000 ** power).toPrecision(3)} ${units[power]}`;
});
const share = orDash((value) => `${+(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`);

function duration(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129_600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}

// The charts.

const colour = (name, alpha = "") => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() + alpha;

class Chart {
  // `lines`: a name, which is also the colour's, and its column. `steps`: between values on the axis, if not uPlot's own.
  constructor(title, height, format, lines, steps) {
    this.title = title;
    this.height = height;
    this.format = format;
    this.lines = lines;
    this.steps = steps;
    this.at = null; // which point is looked at; null: the newest
    this.figure = element("figure");
    const caption = element("figcaption");
    this.reading = element("span", "reading"); // no live region, which would be read out all the time
    caption.append(element("strong", "", title), this.reading);
    this.box = element("div", "chart");
    this.box.tabIndex = 0;
    this.box.role = "slider"; // what a screen reader reads out while the arrow keys move it
    this.box.ariaLabel = `${title} over the last hour`;
    this.figure.append(caption, this.box);
    byId("charts").append(this.figure);
    this.plot = new uPlot(this.options(), [[], ...lines.map(() => [])], this.box);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("blur", () => look(null));
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(this.box);
  }

  size() {
    return { width: Math.max(this.box.clientWidth, 100), height: this.height };
  }

  options() {
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { font, stroke: () => colour("quiet"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false } };
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: {
        x: { range: (_, least, most) => [Math.min(least, most - LEAST_SHOWN_S), most] },
        y: { range: (_, least, most) => [0, Math.max(most * 1.1, 1)] },
      },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 30, incrs: STEPS_S, values: (_, times) => times.map((time) => timeOf(time, time % 60 ? clock : clockToTheMinute)) },
        { ...axis, size: 58, space: 36, ...(this.steps && { incrs: this.steps }), values: (_, values) => values.map((value) => this.format(value)) },
      ],
      series: [
        {},
        ...this.lines.map(({ name }) => ({
          stroke: () => colour(name),
          fill: () => colour(name, "22"),
          width: 1.75,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [(plot) => plot.cursor.event && look(plot.cursor.idx)] },
    };
  }

  show(all) {
    this.plot.setData([all[0], ...this.lines.map(({ column }) => all[column])]);
    this.say();
  }

  key(event) {
    const last = this.plot.data[0].length - 1;
    const from = this.at ?? last;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 12, PageDown: from + 12, Home: 0, End: last, Escape: null }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    look(to === null ? null : Math.max(0, Math.min(to, last)));
  }

  look(index) {
    this.at = index;
    const left = index === null ? -10 : this.plot.valToPos(this.plot.data[0][index], "x");
    this.plot.setCursor({ left, top: index === null ? -10 : 10 }, false);
    this.say();
  }

  // What the chart shows at the point that is looked at.
  say() {
    const times = this.plot.data[0];
    const index = this.at ?? times.length - 1;
    if (index < 0) return;
    const values = this.lines.map(({ name }, line) => [name, this.format(this.plot.data[line + 1][index])]);
    const time = this.at === null ? "now" : timeOf(times[index]);
    this.reading.replaceChildren(time, ...values.flatMap(([name, value]) => [element("i", name), `${name} `, element("b", "", value)]));
    this.box.ariaValueMin = times[0];
    this.box.ariaValueMax = times.at(-1);
    this.box.ariaValueNow = times[index];
    this.box.ariaValueText = `${time}: ${values.map((pair) => pair.join(" ")).join(", ")}`;
  }
}

// There is no half bucket.
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

const charts = [
  new Chart("Calls a second", 210, rate, [{ name: "allowed", column: 1 }, { name: "denied", column: 2 }, { name: "errors", column: 7 }]),
  new Chart("Buckets", 150, count, [{ name: "buckets", column: 3 }], WHOLE_STEPS),
  new Chart("Memory", 150, bytes, [{ name: "server", column: 6 }, { name: "values", column: 4 }]),
  new Chart("Holds outstanding", 150, count, [{ name: "holds", column: 5 }], WHOLE_STEPS),
];

// All charts look at the same moment.
let looking = false;
function look(index) {
  if (looking) return;
  looking = true;
  for (const chart of charts) chart.look(index);
  looking = false;
}

// Everything else.

function showNumbers(all, chosen) {
  const [, allowed, denied, buckets, , holds, server, errors] = all.map((column) => column.at(-1));
  const full = fullest(said.nodes, chosen);
  const shown = said.nodes.filter((node) => node.answers && (!chosen || node.name === chosen));
  write(byId("allowed-now"), rate(allowed));
  write(byId("denied-now"), rate(denied));
  write(byId("denied-share"), share(allowed + denied > 0 ? denied / (allowed + denied) : null));
  write(byId("buckets-now"), count(buckets));
  write(byId("server-now"), bytes(server));
  write(byId("holds-now"), count(holds));
  write(byId("errors-now"), rate(errors));
  warn("errors-now", errors > 0);
  write(byId("server-label"), full == null ? "memory" : `memory, ${share(full)} of the limit`);
  warn("server-now", full >= NEARLY_FULL);
  write(byId("waiting-now"), shown.length ? count(shown.reduce((sum, node) => sum + Number(node.buckets.waiting ?? 0), 0)) : "–");
}

function warn(id, isBad) {
  byId(id).parentElement.classList.toggle("bad", isBad);
}

function showTop(said, chosen) {
  const rows = said.top.filter((row) => !chosen || row.node === chosen);
  const most = Math.max(1, ...rows.map((row) => row.last_minute));
  const body = byId("top");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  while (body.rows.length < rows.length) body.append(topRow());
  rows.forEach((row, index) => {
    const [key, node, minute, all, last] = body.rows[index].cells;
    writeKey(key, row.key);
    write(node, row.node);
    minute.firstChild.max = most;
    minute.firstChild.value = row.stale_s == null ? row.last_minute : 0;
    write(minute.lastChild, row.stale_s == null ? whole.format(row.last_minute) : "–");
    body.rows[index].classList.toggle("stale", row.stale_s != null);
    write(all, whole.format(row.denied));
    write(last, `${duration(said.now_s - row.last_denied_ms / 1000)} ago`);
  });
  const refused = said.nodes
    .filter((node) => node.top_refused_because)
    .map((node) => `TB.TOP is refused by ${node.name}: ${node.top_refused_because}`);
  const ages = new Map(rows.filter((row) => row.stale_s != null).map((row) => [row.node, row.stale_s]));
  const stale = [...ages].map(([node, age]) => `${node} is down: its keys are as of ${duration(age)} ago.`);
  const silent = said.nodes.some((node) => !node.answers && (!chosen || node.name === chosen));
  const nothing = silent ? "Unknown while nodes are down." : "Nobody has been denied.";
  write(byId("top-note"), [...stale, ...refused].join("\n") || (rows.length ? "" : nothing));
}

// Keys are words between colons and the like: a long one breaks there, not within a word.
function writeKey(cell, key) {
  if (cell.textContent === key) return;
  const words = key.split(/(?<=[:/|.,;@#?&=+_\s-])/);
  cell.replaceChildren(...words.flatMap((word, index) => (index ? [element("wbr"), word] : [word])));
}

function topRow() {
  const row = element("tr");
  const minute = element("td", "number");
  const bar = element("progress", "share");
  bar.ariaHidden = "true"; // the number stands beside it
  minute.append(bar, element("span"));
  row.append(element("td", "key"), element("td", "wide"), minute, element("td", "number"), element("td", "number"));
  return row;
}

const cards = new Map();

function showNode(node) {
  if (!cards.has(node.name)) {
    const card = element("article");
    card.append(element("h3", "", node.name), element("p", "state"), element("dl"));
    byId("nodes").append(card);
    byId("node").append(new Option(node.name, node.name));
    cards.set(node.name, card);
  }
  const card = cards.get(node.name);
  const [, state, list] = card.children;
  const since = duration(said.now_s - node.since_s);
  const hasModule = Object.keys(node.buckets).length > 0;
  card.classList.toggle("down", !node.answers || !hasModule);
  if (!node.answers) write(state, `down for ${since}: ${node.down_because}`);
  else if (!hasModule) write(state, `${node.role}, version ${node.version}, without the module`);
  else write(state, `${node.role}, version ${node.version}, up ${since}`);
  const fields = Object.entries(node.buckets);
  if (list.children.length !== 2 * fields.length) {
    list.replaceChildren(...fields.flatMap(([name]) => [element("dt", "", FIELDS[name] ?? name), element("dd")]));
  }
  fields.forEach(([name, digits], index) => {
    const value = list.children[2 * index + 1];
    value.dataset.field = name;
    write(value, exact(digits));
  });
}

function showStatus(nodes) {
  const down = nodes.filter((node) => !node.answers).map((node) => node.name);
  const bare = nodes.filter((node) => node.answers && !Object.keys(node.buckets).length).map((node) => node.name);
  const trouble = [
    down.length && `${down.join(", ")} down`,
    bare.length && `${bare.join(", ")} without the module`,
  ].filter(Boolean);
  const up = `${nodes.length - down.length} of ${nodes.length} up`;
  say(!trouble.length, [up, ...trouble].join("; "));
}

function say(isGood, text) {
  byId("status").className = isGood ? "good" : "bad";
  write(byId("status"), text);
  document.title = isGood ? "Token buckets" : "⚠ Token buckets";
}

let said = null;

function show() {
  const chosen = byId("node").value;
  const all = columns(chosen);
  const drawn = thinned(all, said.every_s);
  for (const chart of charts) chart.show(drawn);
  showNumbers(all, chosen);
  showTop(said, chosen);
}

async function refresh() {
  try {
    const reply = await fetch(`data?after=${newest}`, { signal: AbortSignal.timeout(10_000) });
    if (!reply.ok) throw new Error(reply.statusText);
    said = await reply.json();
    remember(said.nodes, said.now_s);
    said.nodes.forEach(showNode);
    showStatus(said.nodes);
    show();
  } catch (error) {
    console.error(error);
    say(false, said ? `exporter down; numbers of ${timeOf(said.now_s)}` : "exporter down");
  }
  setTimeout(refresh, 1000 * Math.min(said?.every_s ?? 2, 10));
}

byId("node").addEventListener("change", () => said && show());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.plot.redraw()));
refresh();
