"use strict";
// Random numbers that a clone does not share with its siblings, which begin with the same memory.
//
// What OpenSSL draws from (for node:crypto, Web Crypto, keys, TLS) has a state in memory, which nothing in
// JavaScript can renew. So it draws from the processor instead, which has no state that a clone could share:
// openssl.cnf says so, and has to when Node.js starts. Two caches in Node.js are filled anew by emptying them.
// `Math.random` of V8 has a state, too, and is replaced by numbers from the same source.
//
// Out of reach: `Math.random` of worker threads and other contexts (node:vm), generators in native modules and
// WebAssembly, and V8's seed of hashes.
const { randomFillSync, randomInt, randomUUID } = require("node:crypto");

const CACHED_INTEGERS = 1024;
const CACHED_UUIDS = 128;
const isFromProcessor = process.execArgv.some((option) => option.startsWith("--openssl-config="));

// Two for each number.
const words = new Uint32Array(512);
let next = words.length;

function random() {
  if (next === words.length) {
    randomFillSync(words);
    next = 0;
  }
  const [high, low] = [words[next] >>> 5, words[next + 1] >>> 6];
  next += 2;
  return (high * 2 ** 26 + low) / 2 ** 53;
}
Math.random = random;

// Throws where clones would draw the same.
function prepare() {
  if (!isFromProcessor) throw new Error("OpenSSL has no engine rdrand here");
}

// Makes a clone draw for itself.
function renew() {
  next = words.length;
  for (let left = CACHED_UUIDS; left > 0; left -= 1) randomUUID();
  for (let left = CACHED_INTEGERS; left > 0; left -= 1) randomInt(2);
}

module.exports = { prepare, renew };
