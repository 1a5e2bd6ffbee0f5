"use strict";
// Serves one OpenWhisk action over HTTP: node [--expose-gc] action.js [PORT]
//
//     POST /init     {"value": {"name", "main", "code", "env"}, "folder"}   once, first
//     POST /run      {"value": {...}, "activation_id", "deadline", ...}     a result, or {"error"}
//     POST /prepare                                                         farfork's own: see below
//
// Invariants:
// - Environment and working directory are the same at the beginning of every activation.
// - The process is checkpointed while it has no connection and waits for one. `/prepare` gets it
// ready
//   and closes its connection last of all.
// - A clone draws other random numbers than its siblings before it answers its first call
// (random.js).
// - Status 200 means that the function has answered; 502 that its code failed, which its owner has
// to
//   mend; 400, 403, 404 and 413 that the request was wrong.
// - Both streams have all that an activation printed, and END, before its response is sent.
const http = require("node:http");
const { text } = require("node:stream/consumers");

const random = require("./random.js");
const { Kept } = require("./kept.js");
const { Listening } = require("./listening.js");
const { load } = require("./load.js");
const { end, show } = require("./output.js");
const { Environment, variables } = require("./environment.js");

const MAX_BODY_BYTES = 64 << 20;
const collect = globalThis.gc;
globalThis.gc = undefined; // not for functions; the property cannot be deleted

const calls = new Map(Object.entries({ "/init": init, "/run": run, "/prepare": prepare }));
let action;
let environment;
const kept = new Kept();
let isBroken;

async function init({ value, folder }) {
  if (action) return [403, "Cannot initialize the action more than once."];
  try {
    Object.assign(process.env, variables(value?.env));
    kept.begin();
    action = await load(value ?? {}, folder);
    kept.end();
  } catch (error) {
    show(error);
    await end();
    return [502, `The action failed to initialize: ${error}`];
  }
  environment = new Environment();
  return [200, { ok: true }];
}

async function run(body) {
  if (!action) return [403, "The action is not initialized: /init comes first."];
  if (isBroken) return [502, isBroken];
  environment.restore();
  Object.assign(process.env, contextOf(body));
  const answer = await made(body.value ?? {});
  await end();
  return answer;
}

// The activation's context by OpenWhisk's names. OpenTelemetry finds the call's span by two of
// them.
function contextOf({ value, ...context }) {
  const own = Object.entries(context).map(([name, value]) => [`__OW_${name.toUpperCase()}`, value]);
  const trace = ["traceparent", "tracestate"].filter((name) => context[name]);
  return variables(Object.fromEntries([...own, ...trace.map((name) => [name.toUpperCase(), context[name]])]));
}

async function made(args) {
  let promised;
  try {
    promised = action(args);
  } catch (error) {
    show(error);
    return [502, `An error has occurred: ${error}`];
  }
  try {
    return result(await promised);
  } catch (error) {
    // A rejection with another value is the function's own error result.
    if (error instanceof Error) show(error);
    return result({ error: error instanceof Error ? described(error) : error || {} });
  }
}

// Without the stack, which is in the log: results may be public.
function described({ name, message, ...more }) {
  return { name, message, ...more };
}

function result(value = {}) {
  if (value === null || typeof value !== "object") {
    const what = value === null ? "null" : `a ${typeof value}`;
    return [502, `The action did not return a dictionary or array, but ${what}.`];
  }
  try {
    return [200, JSON.stringify(value)];
  } catch (error) {
    return [502, `The action's result is not JSON: ${error.message}`];
  }
}

// Gets ready for a checkpoint.
function prepare() {
  const reason = kept.reason();
  if (reason) return [502, reason];
  try {
    random.prepare();
  } catch (error) {
    return [502, `Clones of this process would draw the same random numbers: ${error.message}`];
  }
  server.closeIdleConnections();
  collect?.();
  return [200, { ok: true, hot: [] }];
}

async function answer(request) {
  const call = request.method === "POST" && calls.get(request.url);
  if (!call) return [404, `Unknown request; use POST and one of ${[...calls.keys()].join(", ")}.`];
  if (Number(request.headers["content-length"]) > MAX_BODY_BYTES) {
    return [413, `The body is longer than ${MAX_BODY_BYTES} bytes.`];
  }
  let body;
  try {
    body = JSON.parse((await text(request)) || "{}");
  } catch (error) {
    return [400, `The body is not JSON: ${error.message}`];
  }
  if (body === null || typeof body !== "object") return [400, "The body is not a JSON object."];
  return call(body);
}

async function serve(request, response) {
  const [status, result] = await answer(request);
  const body = typeof result === "string" && status === 200 ? result : JSON.stringify(status === 200 ? result : { error: result });
  const isLast = request.url === "/prepare" || status === 413;
  const headers = { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) };
  response.writeHead(status, isLast ? { ...headers, Connection: "close" } : headers);
  // Closed from this side as soon as the response is out.
  response.end(body, () => isLast && request.socket.destroy());
}

// Calls may come at any time, on connections of any age.
const forever = { keepAliveTimeout: 0, requestTimeout: 0, headersTimeout: 0, connectionsCheckingInterval: 2 ** 31 - 1 };
const server = http.createServer(forever, serve);
const listening = new Listening(server);
server.on("connection", () => {
  if (!listening.isOther()) return;
  listening.remember();
  try {
    random.renew();
  } catch (error) {
    isBroken = `This clone cannot draw random numbers of its own: ${error}`;
  }
});
server.listen(Number(process.argv[2] ?? 8080), "127.0.0.1", () => listening.remember());
