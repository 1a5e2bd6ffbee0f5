// What the platform tells, and whether it does.

const URL = "/dashboard/events";
/** Without news for so long, something is wrong; there is some every second. */
const LATE_MS = 5000;
/** So long a page that nobody sees goes on. */
const UNSEEN_MS = 60_000;
const AGAIN_MS = 2000;

/** Hears what the platform tells from now on. `hear` has a function for each kind of event, and `state`, which
 * is told how the connection stands, in a word and in words. */
export function follow(hear) {
  let source = null;
  let latest = 0;

  function open() {
    latest = Date.now();
    source = new EventSource(URL);
    for (const kind of ["hello", "snapshot", "decisions", "missed"]) {
      source.addEventListener(kind, (event) => {
        latest = Date.now();
        hear.state("live", "Live: what the platform does now");
        hear[kind](JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => lost());
  }

  function close() {
    source?.close();
    source = null;
  }

  async function lost() {
    if (source === null) return;
    hear.state("lost", "Connection lost: the platform does not answer. Trying again …");
    // Otherwise the browser tries again itself.
    if (source.readyState !== EventSource.CLOSED) return;
    close();
    const words = await refusal();
    if (words !== null) hear.state("refused", words);
    setTimeout(() => source ?? open(), AGAIN_MS);
  }

  setInterval(() => {
    if (source === null || Date.now() - latest < LATE_MS) return;
    hear.state("lost", "Connection lost: nothing is heard of the platform. Trying again …");
    close();
    open();
  }, 1000);

  // Seats are few, and are for those who look.
  let unseen = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = setTimeout(close, UNSEEN_MS);
    else if (source === null) open();
  });
  // Browsers keep pages that were left for a while, and their connections with them.
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => source ?? open());

  open();
}

/** Why the platform tells nothing, in its own words; null if it does not say. */
async function refusal() {
  const stop = new AbortController();
  try {
    const answer = await fetch(URL, { signal: stop.signal });
    if (answer.ok) return null;
    return (await answer.json()).error;
  } catch {
    return null;
  } finally {
    stop.abort();
  }
}
