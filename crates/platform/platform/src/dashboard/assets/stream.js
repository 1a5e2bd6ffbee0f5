// The event stream, and whether it is alive.

const URL = "/dashboard/events";
/** Events come every second. After this long without one, the connection counts as lost. */
const LATE_MS = 5000;
/** A hidden page disconnects after this long. */
const UNSEEN_MS = 60_000;
const AGAIN_MS = 2000;

/** Follows the event stream. `handlers` has a function for each kind of event, and `state`, which gets the
* state of the connection as a word and as a sentence. */
export function follow(handlers) {
  let source = null;
  let latest = 0;

  function open() {
    latest = Date.now();
    source = new EventSource(URL);
    for (const kind of ["hello", "snapshot", "decisions", "missed"]) {
      source.addEventListener(kind, (event) => {
        latest = Date.now();
        handlers.state("live", "Live");
        handlers[kind](JSON.parse(event.data));
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
    handlers.state("lost", "Connection lost: the platform does not answer. Reconnecting …");
    // Otherwise the browser reconnects by itself.
    if (source.readyState !== EventSource.CLOSED) return;
    close();
    const words = await refusal();
    if (words !== null) handlers.state("refused", words);
    setTimeout(() => source ?? open(), AGAIN_MS);
  }

  setInterval(() => {
    if (source === null || Date.now() - latest < LATE_MS) return;
    handlers.state("lost", "Connection lost: no data from the platform. Reconnecting …");
    close();
    open();
  }, 1000);

  // Seats are few; a hidden page gives its own back.
  let unseen = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = setTimeout(close, UNSEEN_MS);
    else if (source === null) open();
  });
  // Browsers keep pages in a cache after navigation, with their connections.
  addEventListener("pagehide", close);
  addEventListener("pageshow", () => source ?? open());

  open();
}

/** The platform's message why it refuses the stream, or null. */
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
