"use strict";
// What a function keeps from its load that a clone would not have. Each instance has scratch directories of its
// own, which are empty when it starts. A clone has its parent's memory, but not the files there, and not the
// parent's TCP connections. A function whose load leaves either is not checkpointed.
const fs = require("node:fs");

const SCRATCH = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"];
const ESTABLISHED = "01";
const MAPPED = /^0000000000000000FFFF0000/; // before an address of IPv4
const SHOWN = 3;

class Kept {
  begin() {
    this.before = new Set(entries());
  }

  end() {
    this.sinceLoad = entries().filter((path) => !this.before.has(path));
  }

  // Why a clone would lack something, or undefined.
  reason() {
    const left = (this.sinceLoad ?? []).filter((path) => fs.lstatSync(path, { throwIfNoEntry: false }));
    if (left.length > 0) {
      const shown = left.slice(0, SHOWN).join(", ") + (left.length > SHOWN ? ", …" : "");
      return (
        `the function keeps files from its load that clones would not have (${shown}): ` +
        "keep their content in memory, or make them in each call that misses them"
      );
    }
    if (isConnectedToItself()) {
      return (
        "the function keeps a TCP connection to itself, which clones would not have: " +
        "connect in each call"
      );
    }
  }
}

function entries() {
  return SCRATCH.flatMap((directory) => attempt(() => fs.readdirSync(directory).map((name) => `${directory}/${name}`)) ?? []);
}

function isConnectedToItself() {
  const own = new Set(fs.readdirSync("/proc/self/fd").map((fd) => attempt(() => fs.readlinkSync(`/proc/self/fd/${fd}`))));
  const tables = ["tcp", "tcp6"].map((name) => attempt(() => fs.readFileSync(`/proc/self/net/${name}`, "utf8")) ?? "");
  const sockets = tables.flatMap((table) => table.split("\n").slice(1).map((line) => line.trim().split(/\s+/)));
  const ends = sockets
    .filter((words) => words[3] === ESTABLISHED && own.has(`socket:[${words[9]}]`))
    .map((words) => words.slice(1, 3).map((end) => end.replace(MAPPED, "")));
  const known = new Set(ends.map(([local, remote]) => `${local} ${remote}`));
  return ends.some(([local, remote]) => known.has(`${remote} ${local}`));
}

function attempt(make) {
  try {
    return make();
  } catch {
    return undefined;
  }
}

module.exports = { Kept };
