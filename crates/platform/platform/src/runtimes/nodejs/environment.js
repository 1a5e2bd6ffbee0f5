"use strict";
// Environment and working directory.

class Environment {
  #environment = { ...process.env };
  #directory = process.cwd();

  // Undoes what was changed since.
  restore() {
    for (const name of Object.keys(process.env)) {
      if (!(name in this.#environment)) delete process.env[name];
    }
    Object.assign(process.env, this.#environment);
    try {
      process.chdir(this.#directory);
    } catch {
      // Nothing better is at hand where it has been removed.
    }
  }
}

// As variables of an environment are: texts.
function variables(values = {}) {
  const texts = Object.entries(values).map(([name, value]) => {
    return [name, typeof value === "string" ? value : JSON.stringify(value)];
  });
  return Object.fromEntries(texts);
}

module.exports = { Environment, variables };
