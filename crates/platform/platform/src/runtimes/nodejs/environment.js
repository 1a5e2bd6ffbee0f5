"use strict";
// Environment and working directory.

class Environment {
  #environment = { ...process.env };
  #directory = process.cwd();

  // Undoes later changes.
  restore() {
    for (const name of Object.keys(process.env)) {
      if (!(name in this.#environment)) delete process.env[name];
    }
    Object.assign(process.env, this.#environment);
    try {
      process.chdir(this.#directory);
    } catch {
      // It was removed: the current directory stays.
    }
  }
}

// Values as environment variables: texts.
function variables(values = {}) {
  const texts = Object.entries(values).map(([name, value]) => {
    return [name, typeof value === "string" ? value : JSON.stringify(value)];
  });
  return Object.fromEntries(texts);
}

module.exports = { Environment, variables };
