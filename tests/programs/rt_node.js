// V8 and libuv: a hot function, garbage collection, buffers, timers and the thread pool.
// Run with UV_USE_IO_URING=0: rings are refused.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const zlib = require('zlib');

function fail(what, expected, seen) {
  fs.writeSync(1, `FAIL: ${what}: expected ${expected}, saw ${seen}\n`);
  process.exit(1);
}

function check(what, expected, seen) {
  if (expected !== seen) fail(what, expected, seen);
}

function hot(rounds) {
  let sum = 0;
  for (let i = 0; i < rounds; i++) sum = (Math.imul(sum, 31) + i) | 0;
  return sum;
}

const hash = (data) => crypto.createHash('sha256').update(data).digest('hex');

function pressure() {
  let kept = [];
  for (let i = 0; i < 100000; i++) {
    kept.push({ index: i, text: `item ${i}` });
    if (kept.length > 50000) kept = kept.slice(25000);
  }
  return kept[kept.length - 1].index;
}

// Buffers that are promised to be zero.
function freshBuffers() {
  for (const bytes of [100, 10000, 1 << 20, 1 << 22]) {
    check(`Buffer.alloc(${bytes})`, -1, Buffer.alloc(bytes).findIndex((byte) => byte !== 0));
    check(`Uint8Array(${bytes})`, -1, new Uint8Array(bytes).findIndex((byte) => byte !== 0));
  }
}

const expected = hot(1000000);
for (let i = 0; i < 20; i++) hot(100000);
const map = new Map();
for (let i = 0; i < 100000; i++) map.set(`key ${i}`, i);
const buffer = Buffer.alloc(8 << 20, 'pattern ');
const before = hash(buffer);
pressure();
let ticks = 0;
const interval = setInterval(() => { ticks++; }, 5);

function inThePool() {
  return new Promise((resolve, reject) => {
    zlib.gzip(buffer, (error, packed) => (error ? reject(error) : resolve(packed)));
  }).then((packed) => check('gunzip', before, hash(zlib.gunzipSync(packed))));
}

const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function afterwards() {
  check('hot function', expected, hot(1000000));
  for (let i = 0; i < 100000; i += 7) check('map', i, map.get(`key ${i}`));
  check('buffer', before, hash(buffer));
  freshBuffers();
  check('garbage collection', 99999, pressure());
  if (global.gc) global.gc();
  freshBuffers();
  await Promise.all([inThePool(), inThePool(), inThePool()]);
  const was = ticks;
  await later(100);
  if (ticks <= was) fail('interval', `more than ${was} ticks`, ticks);
  clearInterval(interval);
  check('new function', 42, new Function('return 6 * 7')());
  fs.writeSync(1, 'PASS\n');
  process.exit(0);
}

// The pool's threads exist and wait before READY.
inThePool().then(() => {
  fs.writeSync(1, 'READY\n');
  const byte = Buffer.alloc(1);
  fs.readSync(0, byte, 0, 1);
  afterwards().catch((error) => fail('no exception', 'none', error.stack));
});
