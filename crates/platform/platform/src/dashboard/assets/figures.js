// Single figures, and how memory is shared.

import { bar } from "/dashboard/tables.js";
import { bytes, count, rate, several, time } from "/dashboard/words.js";

const at = (id) => document.getElementById(id);

/** Adds up what all nodes have of something. */
export function total(seen, key) {
  return Object.values(seen.nodes).reduce((sum, node) => sum + node[key], 0);
}

/** What there is now, in figures. */
export function cards(seen) {
  const { recent } = seen;
  const told = {
    "rate": rate(recent.per_s),
    "rate-more": recent.failed > 0 ? `${several(recent.failed, "call")} of ${count(recent.calls)} failed` : "in the last 10 seconds",
    "p50": time(recent.p50_ms),
    "p99": time(recent.p99_ms),
    "flight": count(seen.calls_in_flight),
    "flight-more": seen.calls_waiting > 0 ? `${count(seen.calls_waiting)} of them wait for an instance` : "none of them waits for an instance",
    "instances": count(total(seen, "busy") + total(seen, "idle")),
    "instances-more": `${count(total(seen, "busy"))} at work, ${count(total(seen, "idle"))} idle`,
    "memory": bytes(total(seen, "local_bytes")),
    "memory-more": `of their own; ${bytes(total(seen, "pool_bytes"))} more is mapped of the pool`,
  };
  for (const [id, text] of Object.entries(told)) at(`card-${id}`).textContent = text;
}

/** What instances take, beside what they would if each had all that it uses to itself. The pool counts with
 * all that lies in it, used or not. */
export function sharing(seen) {
  const own = total(seen, "local_bytes");
  const mapped = total(seen, "pool_bytes");
  const { pool_used_bytes: stored, pool_size_bytes: size, pool_images: images } = seen;
  const instances = total(seen, "busy") + total(seen, "idle");
  const most = Math.max(own + mapped, own + stored, 1);
  at("sharing").hidden = instances === 0;
  draw("alone", "Own copies of what is used", own + mapped, most, "would be");
  draw("shared", "Shared, as it is", own + stored, most, "is");
  const pool = `${bytes(stored)} of the pool’s ${bytes(size)} are in use, by ${several(images, "image")}`;
  at("sharing-words").textContent = instances === 0
    ? `No instance runs now. ${pool}.`
    : `${bytes(own)} are instances’ own; ${pool}, of which instances map ${bytes(mapped)} in all.`;
}

function draw(id, label, value, most, is) {
  const place = at("sharing");
  let row = place.querySelector(`[data-key="${id}"]`);
  if (row === null) {
    row = document.createElement("div");
    row.dataset.key = id;
    row.append(document.createElement("span"), bar(), document.createElement("span"));
    place.append(row);
  }
  const [name, drawn, figure] = row.children;
  name.textContent = label;
  drawn.firstElementChild.style.width = `${(100 * value) / most}%`;
  figure.textContent = `${is} ${bytes(value)}`;
}
