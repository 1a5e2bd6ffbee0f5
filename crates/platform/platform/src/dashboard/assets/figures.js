// Single figures, and how memory is shared.

import { bar } from "/dashboard/tables.js";
import { bytes, count, rate, several, time } from "/dashboard/words.js";

const at = (id) => document.getElementById(id);

/** The sum of a field over all nodes. */
export function total(seen, key) {
  return Object.values(seen.nodes).reduce((sum, node) => sum + node[key], 0);
}

/** Fills the figures under "Now". */
export function cards(seen) {
  const { recent } = seen;
  const texts = {
    "rate": rate(recent.per_s),
    "rate-more": recent.failed > 0 ? `${several(recent.failed, "call")} of ${count(recent.calls)} failed` : "in the last 10 seconds",
    "p50": time(recent.p50_ms),
    "p99": time(recent.p99_ms),
    "flight": count(seen.calls_in_flight),
    "flight-more": seen.calls_waiting > 0 ? `${count(seen.calls_waiting)} of them waiting for an instance` : "none of them waiting for an instance",
    "instances": count(total(seen, "busy") + total(seen, "idle")),
    "instances-more": `${count(total(seen, "busy"))} busy, ${count(total(seen, "idle"))} idle`,
    "memory": bytes(total(seen, "local_bytes")),
    "memory-more": `their own; ${bytes(total(seen, "pool_bytes"))} more mapped from the pool`,
  };
  for (const [id, text] of Object.entries(texts)) at(`card-${id}`).textContent = text;
}

/** The memory of instances, beside what they would take if each had its own copy of what it uses. The pool
* counts with all that is in it, used or not. */
export function sharing(seen) {
  const own = total(seen, "local_bytes");
  const mapped = total(seen, "pool_bytes");
  const { pool_used_bytes: stored, pool_size_bytes: size, pool_images: images } = seen;
  const instances = total(seen, "busy") + total(seen, "idle");
  const most = Math.max(own + mapped, own + stored, 1);
  at("sharing").hidden = instances === 0;
  draw("alone", "With copies instead of sharing", own + mapped, most, "would be");
  draw("shared", "With sharing", own + stored, most, "is");
  const pool = `${bytes(stored)} of the pool’s ${bytes(size)} are in use, by ${several(images, "image")}`;
  at("sharing-words").textContent = instances === 0
    ? `No instance is running. ${pool}.`
    : `${bytes(own)} are the instances’ own; ${pool}, of which instances map ${bytes(mapped)} in all.`;
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
