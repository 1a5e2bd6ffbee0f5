// Charts of the time since the page was opened, drawn by uPlot.
/* global uPlot */

import { total } from "/dashboard/figures.js";
import { clock, time } from "/dashboard/words.js";

/** Seconds that are kept, and that are drawn at least. */
const KEPT_S = 300;
const LEAST_S = 60;
const HEIGHT = 190;
const MIB = 1024 * 1024;

/** Distances between lines of a scale. Counts have no halves. */
const STEPS = [1, 2, 5].flatMap((step) => [0, 1, 2, 3, 4, 5, 6].map((power) => step * 10 ** power)).sort((a, b) => a - b);

const rounded = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));

/** Each chart: its element, the format of its figures, and its lines: label, colour, dashes, figure. */
const CHARTS = [
  {
    id: "chart-calls",
    words: rounded,
    lines: [
      ["warm", "--warm", [], (seen, rates) => rates.warm],
      ["clone", "--clone", [], (seen, rates) => rates.clone],
      ["ghost", "--ghost", [2, 3], (seen, rates) => rates.ghost],
      ["cold", "--cold", [6, 3], (seen, rates) => rates.cold],
      ["failed", "--bad", [2, 2], (seen, rates) => rates.failed],
    ],
  },
  {
    id: "chart-latency",
    words: time,
    isLogarithmic: true,
    lines: [
      ["P99", "--bad", [], (seen) => seen.recent.p99_ms],
      ["P50", "--clone", [], (seen) => seen.recent.p50_ms],
    ],
  },
  {
    id: "chart-instances",
    words: (value) => String(Math.round(value)),
    lines: [
      ["busy", "--clone", [], (seen) => total(seen, "busy")],
      ["idle", "--warm", [], (seen) => total(seen, "idle")],
      ["starting", "--cold", [6, 3], (seen) => total(seen, "starting")],
      ["waiting calls", "--bad", [2, 2], (seen) => seen.calls_waiting],
    ],
  },
  {
    id: "chart-memory",
    words: rounded,
    lines: [
      ["own", "--clone", [], (seen) => total(seen, "local_bytes") / MIB],
      ["mapped from the pool", "--warm", [], (seen) => total(seen, "pool_bytes") / MIB],
      ["pool in use", "--ghost", [6, 3], (seen) => seen.pool_used_bytes / MIB],
    ],
  },
];

/** All charts. */
export class Charts {
  #before = null;
  #all = CHARTS.map((chart) => ({ ...chart, data: [[], ...chart.lines.map(() => [])] }));

  constructor() {
    this.#draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Breaks the lines: the next figures do not follow on the last ones. */
  interrupt() {
    if (this.#before !== null) {
      const at = this.#before.at_ms / 1000 + 0.5;
      for (const chart of this.#all) append(chart, at, () => null);
    }
    this.#before = null;
  }

  /** Adds a snapshot and draws it. */
  add(seen) {
    if (this.#before !== null && seen.at_ms <= this.#before.at_ms) return;
    const rates = perSecond(this.#before, seen);
    for (const chart of this.#all) {
      append(chart, seen.at_ms / 1000, ([, , , figure]) => figure(seen, rates));
      chart.plot.setData(chart.data);
      if (chart.plot.cursor.idx == null) chart.plot.setLegend({ idx: chart.data[0].length - 1 });
    }
    this.#before = seen;
  }

  #draw() {
    for (const chart of this.#all) {
      chart.plot?.destroy();
      const place = document.getElementById(chart.id);
      chart.plot = new uPlot(options(chart, place.clientWidth), chart.data, place);
      chart.sizes ??= new ResizeObserver(() => {
        chart.plot.setSize({ width: place.clientWidth, height: HEIGHT });
      });
      chart.sizes.observe(place);
    }
  }
}

/** Calls per second between two snapshots, by start. */
function perSecond(before, seen) {
  const rates = { warm: null, clone: null, ghost: null, cold: null, failed: null };
  if (before === null) return rates;
  const seconds = (seen.at_ms - before.at_ms) / 1000;
  for (const [kind, { calls }] of Object.entries(seen.starts)) {
    rates[kind] = Math.max(0, calls - before.starts[kind].calls) / seconds;
  }
  rates.failed = Math.max(0, seen.calls_failed - before.calls_failed) / seconds;
  return rates;
}

function append(chart, at, figure) {
  chart.data[0].push(at);
  chart.lines.forEach((line, index) => chart.data[index + 1].push(figure(line)));
  while (chart.data[0][0] < at - KEPT_S) chart.data.forEach((values) => values.shift());
}

function options({ words, isLogarithmic, lines }, width) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const shown = (value) => (value == null ? "–" : words(value));
  const upward = (plot, least, most) => [0, Math.max(1, (most ?? 0) * 1.1)];
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "all" }, drag: { x: false, y: false }, points: { size: 7 } },
    scales: {
      x: { range: (plot, from, to) => [Math.min(from ?? 0, (to ?? 0) - LEAST_S), to ?? 0] },
      y: isLogarithmic ? { distr: 3 } : { range: upward },
    },
    axes: [
      { ...axis, size: 28, space: 90, values: (plot, all) => all.map((at) => clock(1000 * at)) },
      { ...axis, size: 64, incrs: isLogarithmic ? undefined : STEPS, values: (plot, all) => all.map((value) => (value == null ? "" : words(value))) },
    ],
    series: [
      { label: "time", value: (plot, at) => (at == null ? "–" : clock(1000 * at)) },
      ...lines.map(([label, name, dash]) => ({
        label,
        dash,
        stroke: colour(name),
        width: 2,
        points: { show: false },
        value: (plot, value) => shown(value),
      })),
    ],
  };
}
