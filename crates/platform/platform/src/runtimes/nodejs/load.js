"use strict";
// Loads an action: a text, or the files of an archive. CommonJS and ES modules are taken.
const fs = require("node:fs");
const { createRequire } = require("node:module");
const os = require("node:os");
const path = require("node:path");
const { pathToFileURL } = require("node:url");
const vm = require("node:vm");

const NAME = /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u;
// What is said of code that is an ES module and is read as if it were none.
const IS_MODULE = /\b(import|export|await)\b/;
const PARAMETERS = ["exports", "require", "module", "__filename", "__dirname"];

// The function that is called.
async function load({ name = "action", main, code }, folder) {
  const called = main || "main";
  const found = folder ? await inFolder(folder, called) : await inText(name, code, called);
  if (typeof found !== "function") {
    throw new Error(`the code has no function ${called}: define or export it, or name another`);
  }
  return found;
}

async function inFolder(folder, main) {
  process.chdir(folder);
  const require = createRequire(path.join(folder, "/"));
  let entry;
  try {
    entry = require.resolve(folder);
  } catch {
    throw new Error("the archive has no index.js at its top, and no package.json that names another file");
  }
  return exported(await import(pathToFileURL(entry)), main);
}

async function inText(name, code, main) {
  if (typeof code !== "string" || code === "") throw new Error("there is no code");
  let run;
  try {
    run = compiled(name, code, main);
  } catch (error) {
    if (!(error instanceof SyntaxError && IS_MODULE.test(error.message))) throw error;
    return exported(await importText(name, code), main);
  }
  const file = path.join(process.cwd(), `${name}.js`);
  const module = { exports: {}, filename: file };
  const require = createRequire(file);
  const found = run.call(module.exports, module.exports, require, module, file, process.cwd());
  return found ?? exported({ default: module.exports }, main);
}

// What is called so at the top of the code need not be exported.
function compiled(name, code, main) {
  const tail = NAME.test(main) ? `return typeof ${main} === "undefined" ? undefined : ${main};` : "";
  return vm.compileFunction(`${code}\n${tail}`, PARAMETERS, {
    filename: `${name}.js`,
    importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
}

// Only files are modules. It is read at once and not needed again.
async function importText(name, code) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "action-"));
  const file = path.join(folder, `${path.basename(name)}.mjs`);
  try {
    fs.writeFileSync(file, code);
    return await import(pathToFileURL(file));
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

// What a module exports by a name, or by names within names. A module that is itself a function is main.
function exported(module, main) {
  const within = (from) => main.split(".").reduce((value, key) => value?.[key], from);
  const whole = main === "main" && typeof module.default === "function" ? module.default : undefined;
  return within(module) ?? within(module.default) ?? whole;
}

module.exports = { load };
