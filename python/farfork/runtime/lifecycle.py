"""The lifecycle of a function's process: calls, checkpoints, and becoming a clone.

Invariants:
- Before its first call, a clone has detected that it is one, drawn a fresh identity
  and run the after-restore hooks, once.
- A clone whose after-restore failed answers every call with that error.
"""

import gc
import sys
import time
import traceback
from typing import Any

from farfork import hooks, hot, identity, loader
from farfork.listener import Listener
from farfork.protocol import Message
from farfork.runtime import process


class Lifecycle:
    """The lifecycle of a process that serves one function on one listening socket."""

    def __init__(self, listener: Listener) -> None:
        self.generation = 0
        self.is_prepared = False
        self._listener = listener
        self._broken: str | None = None

    def notice_clone(self) -> None:
        """If the socket was replaced, this is a clone: count, renew, run the hooks."""
        if self._listener.is_other():
            self._listener.remember()
            self.generation += 1
            if not self.is_prepared:  # otherwise prepare() has done it for all clones
                loader.keep_files()
            self.is_prepared = False
            self._attempt("cannot renew a clone", identity.renew, hooks.run_after)

    def call(self, function: loader.Function, args: dict[str, Any], request_id: Any) -> Message:
        """Call `function`; returns its result with measurements, or the error."""
        if self._listener.is_other_inode():
            self.notice_clone()
        if self.is_prepared:
            # The parent goes on after its checkpoint: reopen what the hooks closed.
            self.is_prepared = False
            self._attempt("cannot resume after a checkpoint", hooks.run_after)
        if self._broken:
            return {"ok": False, "error": self._broken}
        start_ns = time.perf_counter_ns()
        try:
            result = function.call(args, request_id)
        except (Exception, SystemExit) as error:
            answer = failure(error)
        else:
            answer = {
                "ok": True,
                "result": result,
                "run_us": (time.perf_counter_ns() - start_ns) / 1000,
                "pid": process.pid(),
                "generation": self.generation,
            }
        process.flush_output()  # the log is complete before the answer is sent
        return answer

    def prepare(self) -> Message:
        """Run the before-checkpoint hooks and get ready; the caller must then close connections."""
        try:
            hooks.run_before()
        except hooks.HookError as error:
            return failure(error)
        identity.get_ready()
        loader.keep_files()
        process.flush_output()  # otherwise each clone would print what is buffered
        self.is_prepared = True
        # Frozen objects are never traversed again, so a clone's collections do not
        # write to shared pages.
        gc.collect()
        gc.freeze()
        return {
            "ok": True,
            "listen_fd": self._listener.fd,
            "generation": self.generation,
            "hot": hot.hot_ranges(),
        }

    def _attempt(self, doing: str, *steps: Any) -> None:
        try:
            for step in steps:
                step()
        except Exception as error:  # poisoned: a half-renewed clone must not serve
            self._broken = f"{doing}: {error}; fix the hook, or discard this process"
            print(self._broken, file=sys.stderr, flush=True)


def failure(error: BaseException) -> Message:
    """Return the answer that reports `error`, with its traceback."""
    trace = "".join(traceback.format_exception(error))
    return {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": trace}
