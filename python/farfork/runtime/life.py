"""A function's process: its calls, its checkpoints, and how a clone becomes itself.

Invariants:
- Before a call is made, a clone has noticed that it is one, has drawn a fresh
  identity and has run the after-restore hooks, once.
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


class Life:
    """The life of a process that serves one function on one listening socket."""

    def __init__(self, listener: Listener) -> None:
        self.generation = 0
        self.is_prepared = False
        self._listener = listener
        self._broken: str | None = None

    def notice_clone(self) -> None:
        """If the listener was exchanged, become a clone: count, renew, run the hooks."""
        if self._listener.is_other():
            self._listener.remember()
            self.generation += 1
            if not self.is_prepared:  # else it was done for all clones at once
                loader.keep_files()
            self.is_prepared = False
            self._attempt("becoming a clone", identity.renew, hooks.run_after)

    def call(self, function: loader.Function, args: dict[str, Any], request_id: Any) -> Message:
        """Call `function`; returns its result with measurements, or what went wrong."""
        if self._listener.is_other_inode():
            self.notice_clone()
        if self.is_prepared:
            # The parent lives on after its checkpoint: reopen what the hooks closed.
            self.is_prepared = False
            self._attempt("resuming after a checkpoint", hooks.run_after)
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
        process.flush_output()  # its log is complete before its answer is out
        return answer

    def prepare(self) -> Message:
        """Run the before-checkpoint hooks and get ready; the caller drops every connection then."""
        try:
            hooks.run_before()
        except hooks.HookError as error:
            return failure(error)
        identity.get_ready()
        loader.keep_files()
        process.flush_output()  # each clone would print what is still buffered
        self.is_prepared = True
        # Frozen objects are never traversed again: a clone's collections write
        # to no page that it shares with its siblings.
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
        except Exception as error:  # poisoned: half an identity is worse than none
            self._broken = f"{doing}: {error}; fix the hook, or discard this process"
            print(self._broken, file=sys.stderr, flush=True)


def failure(error: BaseException) -> Message:
    """Return the answer that reports `error`, with its traceback."""
    trace = "".join(traceback.format_exception(error))
    return {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": trace}
