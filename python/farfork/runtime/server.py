"""Serves one function on one listening Unix socket, in one thread.

Without a connection the process blocks in accept(), where it is checkpointed.
"""

import select
import socket
from contextlib import suppress

from farfork import loader
from farfork.listener import Listener
from farfork.protocol import LineBuffer, Message, ProtocolError, decode, encode
from farfork.runtime import process
from farfork.runtime.lifecycle import Lifecycle

_READ_BYTES = 1 << 16


class Runtime:
    """A process that serves one function."""

    def __init__(self, function: loader.Function, listener: Listener) -> None:
        self._function = function
        self._listener = listener
        self._lifecycle = Lifecycle(listener)
        self._connections: dict[int, tuple[socket.socket, LineBuffer]] = {}
        # poll() keeps its set in user space, so a checkpoint has no epoll fd to carry.
        self._poll = select.poll()
        self._poll.register(listener.fd, select.POLLIN)
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
        """Return the answer to `message`; errors are in the answer."""
        op = message.get("op")
        handler = self._ops.get(op) if isinstance(op, str) else None
        try:
            if handler is None:
                raise ProtocolError(f"unknown operation {op!r}; use one of {', '.join(self._ops)}")
            answer = handler(message)
        except ProtocolError as error:
            answer = {"ok": False, "error": str(error)}
        answer["id"] = message.get("id")
        return answer

    def _wait(self) -> None:
        if not self._connections:
            self._admit()
            return
        for fd, _ in self._poll.poll():
            if fd == self._listener.fd:
                self._admit()
            elif fd in self._connections:  # unless a prepare has dropped it meanwhile
                self._serve_connection(fd)

    def _admit(self) -> None:
        try:
            connection = self._listener.accept()
        except ConnectionAbortedError:
            return
        self._lifecycle.notice_clone()
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
        if self._lifecycle.is_prepared and message.get("op") == "prepare":
            # The connection of this request is closed last: then none is left.
            self._connections[connection.fileno()] = self._connections.pop(connection.fileno())
            self._drop_all()

    def _run(self, message: Message) -> Message:
        args = message.get("args", {})
        if not isinstance(args, dict):
            raise ProtocolError("args is not a JSON object; send one")
        return self._lifecycle.call(self._function, args, message.get("id"))

    def _prepare(self, _message: Message) -> Message:
        return self._lifecycle.prepare()

    def _status(self, _message: Message) -> Message:
        return {
            "ok": True,
            "function": self._function.name,
            "pid": process.pid(),
            "generation": self._lifecycle.generation,
            "prepared": self._lifecycle.is_prepared,
            "listen_fd": self._listener.fd,
            "identity": self._listener.identity(),
            **process.usage(),
        }

    def _stop(self, _message: Message) -> Message:
        self._running = False
        return {"ok": True}

    def _drop(self, fd: int) -> None:
        connection, _ = self._connections.pop(fd)
        self._poll.unregister(fd)
        connection.close()

    def _drop_all(self) -> None:
        for fd in list(self._connections):
            self._drop(fd)


def _encode_answer(answer: Message) -> bytes:
    try:
        return encode(answer)
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"the result is not JSON: {error}; return dicts, lists, strings and finite numbers"
        return encode({"id": answer["id"], "ok": False, "error": reason})
