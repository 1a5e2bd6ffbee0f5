"use strict";
// The output of an activation.
const END = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX";
const streams = [process.stdout, process.stderr];
// A function may close its streams; only its own output is lost.
for (const stream of streams) stream.on("error", () => {});

const [write, writeError] = streams.map((stream) => stream.write.bind(stream));

// Writes END to both streams, after all that the activation has printed.
function end() {
  const ended = (out) => new Promise((done) => out(`${END}\n`, done));
  return Promise.all([ended(write), ended(writeError)]);
}

// Prints an error with its stack.
function show(error) {
  writeError(`${error?.stack ?? error}\n`);
}

module.exports = { end, show };
