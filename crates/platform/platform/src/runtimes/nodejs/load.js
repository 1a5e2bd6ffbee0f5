"use strict";
// Loads an action: a text, or the files of an archive; CommonJS or an ES module.
const fs = require("node:fs");
const { createRequire } = require("node:module");
const os = require("node:os");
const path = require("node:path");
const { pathToFileURL } = require("node:url");
const vm = require("node:vm");

const NAME = /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u;
// Matches the syntax errors of an ES module that is compiled as CommonJS.
const IS_MODULE = /\b(import|export|await)\b/;
const PARAMETERS = ["exports", "require", "module", "__filename", "__dirname"];

// The function that is called.
async function load({ name = "action", main, code }, folder) {
  const called = main || "main";
  const found = folder ? await inFolder(folder, called) : await inText(name, code, called);
  if (typeof found !== "function") {
    throw new Error(`the code has no function ${called}: define or export it, or name another by main`);
  }
  return found;
}

// Where the server works.
async function inFolder(folder, main) {
  const require = createRequire(path.join(folder, "/"));
  let entry;
  try {
    entry = require.resolve(folder);
  } catch {
    throw new Error("the archive has neither index.js at its top nor a package.json that names another file");
  }
  return exported(await import(pathToFileURL(entry)), main);
}

async function inText(name, code, main) {
  if (typeof code !== "string" || code === "") throw new Error("the code is empty");
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

// A function at the top of the code need not be exported.
function compiled(name, code, main) {
  const tail = NAME.test(main) ? `return typeof ${main} === "undefined" ? undefined : ${main};` : "";
  return vm.compileFunction(`${code}\n${tail}`, PARAMETERS, {
    filename: `${name}.js`,
    importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
}

// Only files can be imported as modules. The file is not needed after that.
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

// A module's export by a name, or by a dotted path. A module that is a function itself is main.
function exported(module, main) {
  const within = (from) => main.split(".").reduce((value, key) => value?.[key], from);
  const whole = main === "main" && typeof module.default === "function" ? module.default : undefined;
  return within(module) ?? within(module.default) ?? whole;
}

module.exports = { load };
