// Connects the event stream with the parts of the page.

import { Charts } from "/dashboard/charts.js";
import { Decisions } from "/dashboard/decisions.js";
import { cards, sharing } from "/dashboard/figures.js";
import { follow } from "/dashboard/stream.js";
import * as tables from "/dashboard/tables.js";
import { clock, time } from "/dashboard/words.js";

const at = (id) => document.getElementById(id);
const charts = new Charts();
const decisions = new Decisions(at("decisions"), at("which"), at("pause"), at("missed"));
/** The last snapshot. */
let latest = null;

/** Shows the state of the connection; only when it changes, as screen readers read it out. */
function state(word, words) {
  const place = at("status");
  if (word !== "live" && latest !== null) words += ` This page shows the state at ${clock(latest.at_ms)}.`;
  if (place.dataset.state === word && place.textContent === words) return;
  if (word !== "live") charts.interrupt();
  place.dataset.state = word;
  place.textContent = words;
  document.body.dataset.state = word;
}

function snapshot(seen) {
  // The page is of another version of farfork.
  if (latest !== null && latest.version !== seen.version) return location.reload();
  // Counters begin anew with the platform.
  if (latest !== null && latest.began_ms !== seen.began_ms) charts.interrupt();
  latest = seen;
  at("about").textContent = `version ${seen.version}, up for ${time(seen.at_ms - seen.began_ms)}`;
  empty(seen);
  cards(seen);
  sharing(seen);
  tables.starts(at("starts"), seen);
  tables.nodes(at("nodes"), seen);
  tables.functions(at("functions"), at("functions-more"), seen);
  charts.add(seen);
}

/** What to do while no function was called. */
function empty(seen) {
  const isEmpty = Object.keys(seen.functions).length === 0;
  at("empty").hidden = !isEmpty;
  if (!isEmpty) return;
  const where = location.host === "127.0.0.1:3233" ? "" : ` --url ${location.origin}`;
  const call = `farfork invoke${where} hello --param name Ada`;
  const title = seen.has_functions ? "No function has been called yet" : "No function is deployed yet";
  const words = seen.has_functions
    ? "Functions are deployed, but none has been called since the platform began. To list and call them:"
    : "To deploy and call one, on the platform’s machine:";
  const commands = seen.has_functions
    ? [`farfork functions${where}`, `farfork invoke${where} NAME`]
    : ["echo 'def main(args): return {\"hello\": args.get(\"name\")}' >hello.py", `farfork deploy${where} hello.py`, call];
  for (const [id, text] of [["title", title], ["words", words], ["commands", commands.join("\n")]]) {
    const place = at(`empty-${id}`);
    if (place.textContent !== text) place.textContent = text;
  }
}

follow({
  state,
  snapshot,
  hello: (past) => decisions.begin(past),
  decisions: (all) => decisions.add(all),
  missed: (more) => decisions.miss(more),
});
