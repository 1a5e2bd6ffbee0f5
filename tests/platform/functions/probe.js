// Reports its identity and random draws, and does what its arguments say.
const crypto = require("crypto");
const fs = require("fs");
const { randomUUID, randomInt } = crypto;
const { random } = Math;
const sleep = (s) => new Promise((done) => setTimeout(done, 1000 * s));
console.log("loaded");
let count = 0;

const does = {
  greet: ({ name = "world" }) => ({ greeting: `Hello, ${name}!` }),
  who: () => ({
    status: fs.readFileSync("/proc/self/status", "utf8"),
    descriptors: fs.readdirSync("/proc/self/fd").flatMap((fd) => {
      try { return [fs.readlinkSync(`/proc/self/fd/${fd}`)]; } catch { return []; }
    }),
    environment: { ...process.env },
    directory: process.cwd(),
    program: process.execPath,
    collector: typeof gc,
  }),
  read: ({ path }) => {
    try { return { text: fs.readFileSync(path, "utf8") }; } catch (error) { return { code: error.code }; }
  },
  change: () => {
    process.env.CHANGED = "x";
    process.env.PATH = "/nowhere";
    process.chdir("/tmp");
  },
  draw: () => ({
    random: random(),
    int: randomInt(2 ** 40),
    uuid: randomUUID(),
    bytes: crypto.randomBytes(16).toString("hex"),
    values: [...crypto.getRandomValues(new Uint8Array(16))].join(),
    web: crypto.webcrypto.randomUUID(),
    key: crypto.generateKeyPairSync("ed25519").privateKey.export({ type: "pkcs8", format: "der" }).toString("hex"),
  }),
  drawLater: async () => {
    const bytes = await new Promise((done) => crypto.randomBytes(16, (_, drawn) => done(drawn)));
    const key = await crypto.subtle.generateKey({ name: "AES-GCM", length: 128 }, true, ["encrypt"]);
    const raw = Buffer.from(await crypto.subtle.exportKey("raw", key));
    return { bytes: bytes.toString("hex"), key: raw.toString("hex") };
  },
  print: ({ lines }) => {
    console.log("out");
    console.error("err");
    process.stdout.write("x".repeat(99) + "\n");
    for (let at = 0; at < lines; at += 1) console.log(`line ${at}`);
  },
  throw: () => { throw new TypeError("no such thing"); },
  reject: () => Promise.reject({ code: 7 }),
  rejectError: async () => { throw new RangeError("too far"); },
  rejectNothing: () => Promise.reject(),
  list: () => [1],
  null: () => null,
  text: () => "text",
  nothing: () => undefined,
  circle: () => { const circle = {}; circle.circle = circle; return circle; },
  exit: () => process.exit(3),
  late: async () => { setTimeout(() => { throw new Error("thrown later"); }, 1); await sleep(5); },
  loop: () => { for (;;); },
  fill: ({ mb }) => { const all = []; while (all.length < mb) all.push(Buffer.alloc(1 << 20, 1)); return {}; },
};

async function main(args) {
  count += 1;
  await sleep(args.sleep ?? 0);
  const done = await does[args.do](args);
  return { ...done, count, activation: process.env.__OW_ACTIVATION_ID };
}

// What it does must not be wrapped.
function plain(args) {
  return does[args.do](args);
}
