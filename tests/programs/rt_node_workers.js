// Node.js worker threads: isolates of their own with timers, messages, transferred and shared
// memory, and one that waits in Atomics.wait. Run with UV_USE_IO_URING=0: rings are refused.
'use strict';
const fs = require('fs');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

const WORKERS = 3;
const ROUNDS = 200000;

function mix(rounds, seed) {
  let sum = seed;
  for (let i = 0; i < rounds; i++) sum = (Math.imul(sum, 31) + i) | 0;
  return sum;
}

// Cells of the shared memory: what the waiter waits for, its answer, then ticks of each worker.
const WAKE = 0;
const WOKEN = 1;
const TICKS = 2;

function work() {
  const cells = new Int32Array(workerData.cells);
  let handled = 0;
  setInterval(() => Atomics.add(cells, TICKS + workerData.index, 1), 5);
  parentPort.on('message', ({ id, seed, bytes }) => {
    handled++;
    bytes.fill(seed);
    parentPort.postMessage({ id, handled, result: mix(ROUNDS, seed), bytes }, [bytes.buffer]);
  });
}

function wait() {
  const cells = new Int32Array(workerData.cells);
  parentPort.postMessage('waiting');
  const how = Atomics.wait(cells, WAKE, 0, 60000);
  Atomics.store(cells, WOKEN, how === 'timed-out' ? -1 : 1);
  Atomics.notify(cells, WOKEN);
}

function fail(what, expected, seen) {
  fs.writeSync(1, `FAIL: ${what}: expected ${expected}, saw ${seen}\n`);
  process.exit(1);
}

function check(what, expected, seen) {
  if (expected !== seen) fail(what, expected, seen);
}

const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function start(kind, index, cells) {
  const worker = new Worker(__filename, { workerData: { kind, index, cells } });
  worker.on('error', (error) => fail(`worker ${index}`, 'no exception', error.stack));
  return worker;
}

let asked = 0;
function ask(worker, seed) {
  const id = ++asked;
  const bytes = new Uint8Array(1 << 20);
  const answer = new Promise((resolve) => {
    const take = (message) => {
      if (message.id !== id) return;
      worker.off('message', take);
      check('result of a worker', mix(ROUNDS, seed), message.result);
      check('transferred bytes', -1, message.bytes.findIndex((byte) => byte !== seed));
      resolve(message.handled);
    };
    worker.on('message', take);
  });
  worker.postMessage({ id, seed, bytes }, [bytes.buffer]);
  return answer;
}

async function main() {
  const shared = new SharedArrayBuffer(4096);
  const cells = new Int32Array(shared);
  const workers = Array.from({ length: WORKERS }, (_, index) => start('work', index, shared));
  for (let round = 1; round <= 3; round++) {
    const counts = await Promise.all(workers.map((worker, index) => ask(worker, index + round)));
    for (const count of counts) check('messages handled', round, count);
  }
  const waiter = start('wait', WORKERS, shared);
  await new Promise((resolve) => waiter.once('message', resolve));
  await later(50);
  const ended = new Promise((resolve) => waiter.once('exit', resolve));

  fs.writeSync(1, 'READY\n');
  fs.readSync(0, Buffer.alloc(1), 0, 1);

  const counts = await Promise.all(workers.map((worker, index) => ask(worker, index + 9)));
  for (const count of counts) check('messages handled', 4, count);
  const before = workers.map((_, index) => Atomics.load(cells, TICKS + index));
  await later(150);
  before.forEach((was, index) => {
    const now = Atomics.load(cells, TICKS + index);
    if (now <= was) fail(`timer of worker ${index}`, `more than ${was} ticks`, now);
  });
  check('the waiter waits', 0, Atomics.load(cells, WOKEN));
  Atomics.store(cells, WAKE, 1);
  Atomics.notify(cells, WAKE);
  check('exit code of the waiter', 0, await ended);
  check('the waiter woke', 1, Atomics.load(cells, WOKEN));
  check('a new worker', 1, await ask(start('work', WORKERS, shared), 5));
  for (const worker of workers) await worker.terminate();
  fs.writeSync(1, 'PASS\n');
  process.exit(0);
}

if (isMainThread) main().catch((error) => fail('no exception', 'none', error.stack));
else if (workerData.kind === 'work') work();
else wait();
