"""Serves one function on one listening socket, in one thread.

Invariants:
- Without a connection the process sits in accept(): there it is checkpointed.
- Before a request is handled, a clone has noticed that it is one, has drawn a
  fresh identity and has run the after-restore hooks, once.
- A clone whose after-restore failed answers every run with that error.
"""

import gc
import select
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from farfork import hooks, hot, identity, loader
from farfork.listener import Listener
from farfork.protocol import LineBuffer, Message, ProtocolError, decode, encode
from farfork.runtime import process

_READ_BYTES = 1 << 16


class Runtime:
    """One process serving one function."""

    def __init__(self, function: loader.Function, listener: Listener) -> None:
        self.generation = 0
        self._function = function
        self._listener = listener
        self._connections: dict[int, tuple[socket.socket, LineBuffer]] = {}
        # poll() keeps its set in user space: no epoll fd that a checkpoint must carry.
        self._poll = select.poll()
        self._poll.register(listener.fd, select.POLLIN)
        self._prepared = False
        self._broken: str | None = None
        self._running = True
        self._ops = {
            "run": self._run,
            "prepare": self._prepare,
            "status": self._status,
            "stop": self._stop,
        }

    def serve(self) -> None:
        """Answer requests until a stop request; closes the listener."""
        self._listener.start()
        try:
            while self._running:
                self._wait()
        finally:
            self._drop_all()
            self._listener.close()

    def handle(self, message: Message) -> Message:
        """Return the answer to `message`; what goes wrong is in the answer."""
        op = message.get("op")
        handler = self._ops.get(op) if isinstance(op, str) else None
        try:
            if handler is None:
                raise ProtocolError(f"no operation {op!r}; use one of {', '.join(self._ops)}")
            answer = handler(message)
        except ProtocolError as error:
            answer = {"ok": False, "error": str(error)}
        answer["id"] = message.get("id")
        return answer

    def notice_clone(self) -> None:
        """If the listener was exchanged, become a clone: count, renew, run the hooks."""
        if self._listener.is_other():
            self._listener.remember()
            self.generation += 1
            loader.keep_files()
            self._prepared = False
            self._attempt("becoming a clone", identity.renew, hooks.run_after)

    def _wait(self) -> None:
        if not self._connections:
            self._admit()
            return
        for fd, _ in self._poll.poll():
            if fd == self._listener.fd:
                self._admit()
            elif fd in self._connections:  # a prepare may have dropped it meanwhile
                self._serve_connection(fd)

    def _admit(self) -> None:
        try:
            connection = self._listener.accept()
        except ConnectionAbortedError:
            return
        self.notice_clone()
        self._connections[connection.fileno()] = connection, LineBuffer()
        self._poll.register(connection.fileno(), select.POLLIN)

    def _serve_connection(self, fd: int) -> None:
        connection, buffer = self._connections[fd]
        try:
            data = connection.recv(_READ_BYTES)
            if not data:
                self._drop(fd)
                return
            for line in buffer.feed(data):
                self._exchange(connection, line)
                if fd not in self._connections:
                    return
        except ProtocolError as error:  # the stream has lost its line ends
            with suppress(OSError):
                connection.sendall(encode({"id": None, "ok": False, "error": str(error)}))
            self._drop(fd)
        except OSError:  # the client has gone, or reads nothing
            self._drop(fd)

    def _exchange(self, connection: socket.socket, line: bytes) -> None:
        try:
            message = decode(line)
        except ProtocolError as error:
            connection.sendall(encode({"id": None, "ok": False, "error": str(error)}))
            return
        connection.sendall(_encode_answer(self.handle(message)))
        if self._prepared and message.get("op") == "prepare":
            # Who asked sees its end last: then no connection is left.
            self._connections[connection.fileno()] = self._connections.pop(connection.fileno())
            self._drop_all()

    def _run(self, message: Message) -> Message:
        if self._listener.is_other_inode():
            self.notice_clone()
        if self._prepared:
            # The parent lives on after its checkpoint: reopen what the hooks closed.
            self._prepared = False
            self._attempt("resuming after a checkpoint", hooks.run_after)
        if self._broken:
            return {"ok": False, "error": self._broken}
        args = message.get("args", {})
        if not isinstance(args, dict):
            raise ProtocolError("args is no JSON object; send one")
        return self._call(args, message.get("id"))

    def _call(self, args: dict[str, Any], request_id: Any) -> Message:
        start_ns = time.perf_counter_ns()
        try:
            result = self._function.call(args, request_id)
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

    def _prepare(self, _message: Message) -> Message:
        try:
            hooks.run_before()
        except hooks.HookError as error:
            return failure(error)
        identity.get_ready()
        loader.keep_files()
        process.flush_output()  # each clone would print what is still buffered
        self._prepared = True
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

    def _status(self, _message: Message) -> Message:
        return {
            "ok": True,
            "function": self._function.name,
            "pid": process.pid(),
            "generation": self.generation,
            "prepared": self._prepared,
            "listen_fd": self._listener.fd,
            "identity": self._listener.identity(),
            **process.usage(),
        }

    def _stop(self, _message: Message) -> Message:
        self._running = False
        return {"ok": True}

    def _attempt(self, doing: str, *steps: Any) -> None:
        try:
            for step in steps:
                step()
        except Exception as error:  # poisoned: half an identity is worse than none
            self._broken = f"{doing}: {error}; fix the hook, or discard this process"
            print(self._broken, file=sys.stderr, flush=True)

    def _drop(self, fd: int) -> None:
        connection, _ = self._connections.pop(fd)
        self._poll.unregister(fd)
        connection.close()

    def _drop_all(self) -> None:
        for fd in list(self._connections):
            self._drop(fd)


def failure(error: BaseException) -> Message:
    """Return the answer that reports `error`, with its traceback."""
    trace = "".join(traceback.format_exception(error))
    return {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": trace}


def _encode_answer(answer: Message) -> bytes:
    try:
        return encode(answer)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"the result is no JSON: {error}; return dicts, lists, strings and finite numbers"
        return encode({"id": answer["id"], "ok": False, "error": reason})
