"use strict";
// Random numbers that differ between clones, which begin with the same memory.
//
// OpenSSL's generator (for node:crypto, Web Crypto, keys, TLS) has a state in memory that
// JavaScript cannot
// renew. So OpenSSL draws from the processor instead, which has no state that clones could share.
// This is
// set in openssl.cnf, as it must be set when Node.js starts. Two caches in Node.js are refilled by
// emptying
// them. V8's `Math.random` has a state, too, and is replaced by numbers from the same source.
//
// Not covered: `Math.random` of worker threads and other contexts (node:vm), generators in native
// modules and
// WebAssembly, and V8's hash seed.
const { randomFillSync, randomInt, randomUUID } = require("node:crypto");

const CACHED_INTEGERS = 1024;
const CACHED_UUIDS = 128;
const isFromProcessor = process.execArgv.some((option) => option.startsWith("--openssl-config="));

// Two words for each number.
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

// Throws where clones would draw the same numbers.
function prepare() {
  if (!isFromProcessor) throw new Error("OpenSSL has no engine rdrand here");
}

// Discards what the clone has inherited.
function renew() {
  next = words.length;
  for (let left = CACHED_UUIDS; left > 0; left -= 1) randomUUID();
  for (let left = CACHED_INTEGERS; left > 0; left -= 1) randomInt(2);
}

module.exports = { prepare, renew };
