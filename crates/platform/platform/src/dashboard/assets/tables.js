// Tables, whose rows stay in place from one snapshot to the next.

import { bytes, count, rate, several, time } from "/dashboard/words.js";

const STARTS = [
  ["cold", "A new instance that loads the function’s code, as there is no image yet."],
  ["clone", "A new instance that starts as a clone of the function’s image."],
  ["ghost", "The same in a container with the image attached in advance."],
  ["warm", "An idle instance."],
];
const IMAGES = { none: "none yet", making: "being made", ready: "ready" };

/** Fills a table with rows, each a key and its cells. A cell is a text, or has a `text` and either a `share`
* from 0 to 1 that is drawn as a bar, or a `state` for the style sheet. Texts are never parsed as HTML. */
export function fill(table, rows) {
  const body = table.tBodies[0];
  const heads = table.tHead.rows[0].cells;
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  let place = body.firstElementChild;
  for (const [key, cells] of rows) {
    const row = old.get(key) ?? fresh(key, heads);
    old.delete(key);
    cells.forEach((cell, index) => put(row.cells[index], cell));
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
  }
  for (const row of old.values()) row.remove();
}

function fresh(key, heads) {
  const row = document.createElement("tr");
  row.dataset.key = key;
  [...heads].forEach((head, index) => {
    const cell = document.createElement(index === 0 ? "th" : "td");
    if (index === 0) cell.scope = "row";
    cell.className = head.className;
    row.append(cell);
  });
  return row;
}

function put(place, cell) {
  const { text, share, state } = typeof cell === "object" ? cell : { text: cell };
  if (state !== undefined) place.dataset.state = state;
  if (share === undefined) {
    if (place.textContent !== text) place.textContent = text;
    return;
  }
  if (place.firstElementChild === null) place.append(bar(), document.createElement("span"));
  place.firstElementChild.firstElementChild.style.width = `${100 * Math.min(1, share)}%`;
  place.lastElementChild.textContent = text;
}

/** A bar; its inner part shows the share. */
export function bar() {
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.append(document.createElement("div"));
  return bar;
}

/** Starts by kind. */
export function starts(table, seen) {
  const row = ([kind, words]) => {
    const { calls, wait_ms, whole_ms } = seen.starts[kind];
    return [kind, [{ text: kind, state: kind }, words, count(calls), time(wait_ms), time(whole_ms)]];
  };
  fill(table, STARTS.map(row));
}

/** Nodes by name. */
export function nodes(table, seen) {
  const row = ([name, node]) => {
    const { memory_bytes: promised, budget_bytes: budget } = node;
    const memory = { text: `${bytes(promised)} of ${bytes(budget)}`, share: promised / (budget || 1) };
    const state = node.is_up ? { text: "up", state: "up" } : { text: "does not answer", state: "down" };
    const counts = [node.busy, node.idle, node.starting, node.ghosts, node.attached_ghosts].map(count);
    return [name, [name, state, ...counts, memory, bytes(node.local_bytes), bytes(node.pool_bytes)]];
  };
  fill(table, Object.entries(seen.nodes).map(row));
}

/** Functions, the most called first, and how many are not shown. */
export function functions(table, more, seen) {
  const all = Object.entries(seen.functions);
  all.sort(([a, one], [b, other]) => other.calls - one.calls || (a < b ? -1 : 1));
  const row = ([name, one]) => {
    const { per_s, p50_ms, p99_ms } = one.recent;
    const failed = { text: count(one.failed), state: one.failed > 0 ? "bad" : "" };
    const starts = [one.starts.cold, one.starts.clone + one.starts.ghost, one.starts.warm].map(count);
    const now = [one.waiting, one.busy, one.idle].map(count);
    const image = { text: IMAGES[one.image], state: one.image };
    const times = [rate(per_s), time(p50_ms), time(p99_ms)];
    const memory = [bytes(one.local_bytes), bytes(one.pool_bytes)];
    return [name, [name, image, count(one.calls), failed, ...times, ...starts, ...now, ...memory]];
  };
  fill(table, all.map(row));
  const omitted = seen.functions_omitted;
  more.textContent = omitted > 0 ? `${several(omitted, "function")} more, less busy ones, are not shown here.` : "";
}
