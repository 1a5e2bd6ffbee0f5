"use strict";
// What an activation prints.
const END = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX";
const streams = [process.stdout, process.stderr];
// A function that closes them harms itself alone.
for (const stream of streams) stream.on("error", () => {});

const [write, writeError] = streams.map((stream) => stream.write.bind(stream));

// Ends an activation's lines on both streams, when they are out.
function end() {
  const ended = (out) => new Promise((done) => out(`${END}\n`, done));
  return Promise.all([ended(write), ended(writeError)]);
}

// Tells an error, with where it came from.
function show(error) {
  writeError(`${error?.stack ?? error}\n`);
}

module.exports = { end, show };
