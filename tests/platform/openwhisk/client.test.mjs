// What OpenWhisk's own JavaScript client asks of a platform, and what it makes of the answers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { afterEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

const openwhisk = createRequire(process.env.CLIENT_MODULES)("openwhisk");
const options = { api: process.env.PLATFORM, api_key: process.env.PLATFORM_KEY };
const client = openwhisk(options);
const kind = "python:default";

const GREET = `
def main(args):
    print("greeting", args.get("name"))
    if args.get("fail"):
        return {"error": "asked to fail"}
    return {"greeting": f"Hello, {args.get('name', 'world')}!", "args": args}
`;

// What the platform refuses, by its status.
const refused = (statusCode) => (error) => {
  assert.equal(error.statusCode, statusCode, error.message);
  assert.equal(typeof error.error.error, "string", "it is said in words");
  assert.ok("code" in error.error, "and has a code");
  return true;
};

// Activations are listed when they have ended.
async function eventually(look) {
  for (let left = 200; ; left -= 1) {
    try {
      return await look();
    } catch (error) {
      if (left === 0) throw error;
      await sleep(50);
    }
  }
}

afterEach(async () => {
  for (const { name } of await client.actions.list({ limit: 200 })) await client.actions.delete(name);
});

test("an action is made, read, listed, changed and taken away", async () => {
  const made = await client.actions.create({ name: "greet", action: GREET, kind });
  assert.deepEqual([made.namespace, made.name, made.version], ["guest", "greet", "0.0.1"]);
  const read = await client.actions.get("greet");
  assert.equal(read.exec.code, GREET);
  assert.equal((await client.actions.get({ name: "greet", code: false })).exec.code, undefined);
  const params = { name: "Ada" };
  await client.actions.update({ name: "greet", params, annotations: { about: "manners" } });
  const changed = await client.actions.get("greet");
  assert.deepEqual([changed.version, changed.exec.code], ["0.0.2", GREET]);
  assert.deepEqual(changed.parameters, [{ key: "name", value: "Ada" }]);
  assert.ok(changed.annotations.some(({ key, value }) => key === "about" && value === "manners"));
  const listed = await client.actions.list();
  assert.deepEqual(listed.map(({ name }) => name), ["greet"]);
  await client.actions.delete("greet");
  await assert.rejects(client.actions.get("greet"), refused(404));
  await assert.rejects(client.actions.delete("greet"), refused(404));
});

test("a name is taken until it may be overwritten", async () => {
  await client.actions.create({ name: "twice", action: GREET, kind });
  await assert.rejects(client.actions.create({ name: "twice", action: GREET, kind }), refused(409));
  const again = await client.actions.create({ name: "twice", action: GREET, kind, overwrite: true });
  assert.equal(again.version, "0.0.2");
});

test("lists have a beginning and an end", async () => {
  for (const name of ["a", "b", "c"]) await client.actions.create({ name, action: GREET, kind });
  const names = async (window) => (await client.actions.list(window)).map(({ name }) => name).sort();
  assert.equal((await names({ limit: 2 })).length, 2);
  assert.equal((await names({ skip: 2 })).length, 1);
  assert.deepEqual(await names({}), ["a", "b", "c"]);
});

test("a call answers with a result, an activation, or its id", async () => {
  await client.actions.create({ name: "greet", action: GREET, kind, params: { name: "bound" } });
  const call = { name: "greet", params: { name: "Ada", n: 1.5 } };
  const result = await client.actions.invoke({ ...call, blocking: true, result: true });
  assert.deepEqual(result, { greeting: "Hello, Ada!", args: { name: "Ada", n: 1.5 } });
  const activation = await client.actions.invoke({ name: "greet", blocking: true });
  assert.equal(activation.response.result.greeting, "Hello, bound!");
  assert.deepEqual([activation.response.success, activation.response.status], [true, "success"]);
  const { activationId } = await client.actions.invoke({ name: "greet" });
  const later = await eventually(() => client.activations.get(activationId));
  assert.equal(later.response.result.greeting, "Hello, bound!");
});

test("failures name their activation", async () => {
  await client.actions.create({ name: "fails", action: GREET, kind });
  const call = { name: "fails", params: { fail: true }, blocking: true, result: true };
  await assert.rejects(client.actions.invoke(call), (error) => {
    assert.equal(error.statusCode, 502, error.message);
    assert.match(error.message, /asked to fail/);
    assert.equal(error.error.response.status, "application error");
    return true;
  });
  await assert.rejects(client.actions.invoke({ name: "nobody" }), refused(404));
});

test("activations have logs and results, and are found by name and time", async () => {
  await client.actions.create({ name: "logged", action: GREET, kind });
  await client.actions.create({ name: "other", action: GREET, kind });
  const since = Date.now();
  const call = { params: { name: "Eve" }, blocking: true };
  const { activationId } = await client.actions.invoke({ ...call, name: "logged" });
  await client.actions.invoke({ ...call, name: "other" });
  const { logs } = await client.activations.logs(activationId);
  assert.match(logs.join("\n"), /stdout: greeting Eve$/);
  const { result, success } = await client.activations.result(activationId);
  assert.deepEqual([result.greeting, success], ["Hello, Eve!", true]);
  const ids = async (query) => (await client.activations.list(query)).map((one) => one.activationId);
  assert.deepEqual(await ids({ name: "logged", since }), [activationId]);
  assert.equal((await ids({ since, limit: 1 })).length, 1);
  assert.deepEqual(await ids({ name: "logged", upto: since - 60_000 }), []);
  const [whole] = await client.activations.list({ name: "logged", since, docs: true });
  assert.equal(whole.response.result.greeting, "Hello, Eve!");
  await assert.rejects(client.activations.get("0123456789abcdef0123456789abcdef"), refused(404));
});

test("names may have blanks and signs, and begin with their namespace", async () => {
  for (const name of ["sp ace@x.y", "/guest/whole", "/_/short"]) {
    await client.actions.create({ name, action: GREET, kind });
    const said = await client.actions.invoke({ name, blocking: true, result: true });
    assert.equal(said.greeting, "Hello, world!", name);
  }
  const names = (await client.actions.list()).map(({ name }) => name).sort();
  assert.deepEqual(names, ["short", "sp ace@x.y", "whole"]);
  await assert.rejects(client.actions.get("/others/whole"), refused(403));
});

test("an archive is an action", async () => {
  const action = readFileSync(process.env.ARCHIVE);
  await client.actions.create({ name: "packed", action, kind });
  const said = await client.actions.invoke({ name: "packed", blocking: true, result: true });
  assert.deepEqual(said, { from: "an archive" });
});

test("an action that is not said to be anything is in JavaScript", async () => {
  const action = "async function main({ name }) { console.log('greeting', name); return { hello: name }; }";
  const { exec } = await client.actions.create({ name: "script", action });
  assert.match(exec.kind, /^nodejs:\d+$/);
  const call = { name: "script", params: { name: "Ada" }, blocking: true };
  const { response, logs } = await client.actions.invoke(call);
  assert.deepEqual(response.result, { hello: "Ada" });
  assert.match(logs.join("\n"), /stdout: greeting Ada$/);
});

test("limits and annotations are kept, and limits have bounds", async () => {
  const limits = { timeout: 5000, memory: 128, logs: 1 };
  await client.actions.create({ name: "limited", action: GREET, kind, limits });
  const read = await client.actions.get("limited");
  assert.deepEqual({ ...limits, ...read.limits }, read.limits);
  assert.equal(read.limits.memory, 128);
  const tooMuch = { name: "much", action: GREET, kind, limits: { memory: 1 << 20 } };
  await assert.rejects(client.actions.create(tooMuch), refused(400));
});

test("the rest of the interface is empty", async () => {
  assert.deepEqual(await client.namespaces.list(), ["guest"]);
  for (const kind of ["packages", "triggers", "rules"]) {
    assert.deepEqual(await client[kind].list(), [], kind);
  }
});

test("missing features are refused with a message", async () => {
  const sequence = ["/guest/a"];
  await assert.rejects(client.actions.create({ name: "chain", sequence }), refused(400));
  const cobol = { name: "old", action: "x", kind: "cobol:85" };
  await assert.rejects(client.actions.create(cobol), refused(400));
  const stranger = openwhisk({ ...options, api_key: "some:body" });
  await assert.rejects(stranger.actions.list(), refused(401));
});
