// Figures in readable form.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A whole number, in groups of three digits. */
export function count(number) {
  return number.toLocaleString("en");
}

/** "1 call", "2 calls". */
export function several(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

/** Three significant digits, without trailing zeros. */
function short(number) {
  const digits = number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return String(Number(number.toFixed(digits)));
}

/** Bytes in the largest unit that gives at least 1. */
export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit + 1 < UNITS.length) {
    number /= 1024;
    unit += 1;
  }
  return `${short(number)} ${UNITS[unit]}`;
}

/** Milliseconds, shown in ms, s, min or h; a dash for null. */
export function time(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${short(ms)} ms`;
  if (ms < 120_000) return `${short(ms / 1000)} s`;
  return ms < 7_200_000 ? `${short(ms / 60_000)} min` : `${short(ms / 3_600_000)} h`;
}

/** Calls per second. */
export function rate(perSecond) {
  return perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));
}

/** The time of day of milliseconds since 1970. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}
