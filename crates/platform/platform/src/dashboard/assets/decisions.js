// The policies' decisions.

import { fill } from "/dashboard/tables.js";
import { bytes, clock, count, several, time } from "/dashboard/words.js";

/** Most lines. */
const MOST = 200;

/** For each question: its text, and the meaning of its choice. */
const QUESTIONS = {
  "checkpoint": ["Checkpoint it now?", (when) => TIMINGS[when] ?? when],
  "keep-alive": ["How long may an idle instance stay?", (ms) => time(ms)],
  "empty-ghosts": ["How many empty ghosts wait?", (number) => count(number)],
  "attached-ghosts": ["How many ghosts with an image wait?", (number) => count(number)],
  "placement": ["Where does an instance start?", (node) => node ?? "nowhere yet"],
  "admission": ["No room: how to proceed?", admitted],
  "relief": ["Which end, as memory runs out?", (ids) => several(ids.length, "idle instance")],
  "reclaim": ["Which images are removed?", (names) => (names.length > 0 ? names.join(", ") : "none")],
  "tiering": ["When do pages become local?", (name) => TIERINGS[name] ?? name],
};
const TIMINGS = { "now": "yes", "not-yet": "not yet", "no-room": "the pool has no room" };
const TIERINGS = {
  mow: "when they are written",
  moa: "when they are touched",
  hybrid: "hot ones when they are touched",
  copy: "before it runs",
};

function admitted(choice) {
  if (choice.evict !== undefined) return `end ${several(choice.evict.length, "idle instance")}`;
  return { start: "start it", wait: "wait", refuse: "refuse the call" }[choice] ?? String(choice);
}

/** The choice in words; unknown choices as JSON. */
function decided({ question, choice }) {
  try {
    return QUESTIONS[question][1](choice);
  } catch {
    return JSON.stringify(choice);
  }
}

/** Empty ghosts belong to a node and a memory limit in megabytes. */
function about({ question, about }) {
  return question === "empty-ghosts" ? about.replace(/\/(\d+)$/, ", of $1 MB") : about;
}

/** A reason with bytes in larger units. */
function reason(why) {
  return why.replace(/\b(\d{5,}) bytes\b/g, (_, number) => bytes(Number(number)));
}

/** The table of decisions. */
export class Decisions {
  #table;
  #missedPlace;
  #which;
  /** Keyed by question, subject and choice; the latest is last. */
  #lines = new Map();
  #missed = 0;
  #isPaused = false;
  #isDue = false;

  constructor(table, which, pause, missed) {
    [this.#table, this.#which, this.#missedPlace] = [table, which, missed];
    for (const [question, [words]] of Object.entries(QUESTIONS)) {
      const option = new Option(words, question);
      which.add(option);
    }
    which.addEventListener("change", () => this.#draw());
    pause.addEventListener("click", () => {
      this.#isPaused = !this.#isPaused;
      pause.setAttribute("aria-pressed", String(this.#isPaused));
      pause.textContent = this.#isPaused ? "Resume" : "Pause";
      this.#later();
    });
  }

  /** Replaces all decisions. */
  begin(all) {
    this.#lines.clear();
    this.#missed = 0;
    this.add(all);
  }

  /** Adds new decisions. */
  add(all) {
    for (const one of all) {
      const key = JSON.stringify([one.question, one.about, one.choice]);
      const times = (this.#lines.get(key)?.times ?? 0) + 1;
      this.#lines.delete(key);
      this.#lines.set(key, { ...one, times });
    }
    const surplus = this.#lines.size - MOST;
    for (const key of [...this.#lines.keys()].slice(0, Math.max(0, surplus))) this.#lines.delete(key);
    this.#later();
  }

  /** Counts decisions that were made but not received. */
  miss(more) {
    this.#missed += more;
    this.#later();
  }

  /** Draws once per frame, however many decisions arrive. */
  #later() {
    if (this.#isDue || this.#isPaused) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.#draw();
    });
  }

  #draw() {
    const wanted = this.#which.value;
    const lines = [...this.#lines.entries()].reverse().filter(([, one]) => wanted === "" || one.question === wanted);
    const row = ([key, one]) => {
      const question = QUESTIONS[one.question]?.[0] ?? one.question;
      const times = one.times > 1 ? count(one.times) : "";
      return [key, [clock(one.at_ms), question, about(one), decided(one), times, reason(one.why)]];
    };
    fill(this.#table, lines.map(row));
    this.#missedPlace.textContent =
      this.#missed > 0 ? `${several(this.#missed, "decision")} were made too fast to be shown here.` : "";
  }
}
