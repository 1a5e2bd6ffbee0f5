"use strict";
// What a function keeps from its load that a clone would not have. Each instance has scratch directories of its
// own, which are empty when it starts, and a layer of its own over its working directory, with the files of the
// function's archive. A clone has its parent's memory, but not the files that the parent has written there, and
// not the parent's TCP connections. A function whose load leaves either is not checkpointed.
const fs = require("node:fs");
const path = require("node:path");

const SCRATCH = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock"];
const ESTABLISHED = "01";
const MAPPED = /^0000000000000000FFFF0000/; // before an address of IPv4
const SHOWN = 3;
const TICK_MS = 10; // times of files are those of the kernel's last tick

class Kept {
  begin() {
    this.before = new Set(entries());
    this.layer = new Layer(process.cwd());
  }

  end() {
    this.sinceLoad = [...entries().filter((path) => !this.before.has(path)), ...this.layer.written()];
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

// A working directory that goes on in a layer of the instance's own.
class Layer {
  constructor(directory) {
    this.directory = directory;
    this.begunMs = Date.now() - TICK_MS;
    this.files = filesInLayer(directory);
  }

  // Files that were written since; if there are none, directories that have changed: they are new, or something was
  // removed from them.
  written() {
    const count = filesInLayer(this.directory);
    if (count !== undefined && count === this.files) return [];
    const hasChanged = (file) => attempt(() => fs.lstatSync(file).ctimeMs >= this.begunMs);
    const { files, directories } = below(this.directory);
    const written = files.filter(hasChanged);
    // Without a count, a file that was removed again would be one more change of its directory.
    if (written.length > 0 || count === undefined) return written;
    return [this.directory, ...directories].filter(hasChanged);
  }
}

// Those written, and some more; undefined where this version of Node.js does not know.
function filesInLayer(directory) {
  return attempt(() => {
    const { files, ffree } = fs.statfsSync(directory);
    return files - ffree;
  });
}

function below(directory) {
  const all = { files: [], directories: [] };
  for (const entry of attempt(() => fs.readdirSync(directory, { withFileTypes: true })) ?? []) {
    const found = path.join(directory, entry.name);
    if (!entry.isDirectory()) {
      all.files.push(found);
      continue;
    }
    const { files, directories } = below(found);
    all.files.push(...files);
    all.directories.push(found, ...directories);
  }
  return all;
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
