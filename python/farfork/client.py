"""Calls a function's runtime over its Unix socket.

with Client("/run/embed.sock") as client:
    client.run({"texts": ["hello"]})["embeddings"]

In a shell: `python -m farfork.client /run/embed.sock run '{"texts": ["hello"]}'`.
"""

import argparse
import json
import math
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from farfork.protocol import LineBuffer, Message, ProtocolError, decode, encode

_RETRY_S = 0.001
_READ_BYTES = 1 << 16


class NoAnswerError(ConnectionError):
    """The runtime could not be reached, timed out, or closed the connection."""


class CallError(RuntimeError):
    """The call failed; `trace` is the function's traceback."""

    def __init__(self, answer: Message) -> None:
        super().__init__(answer.get("error", "failed without a reason"))
        self.trace: str | None = answer.get("trace")


class Client:
    """A connection to one runtime; opens at the first call and again after `prepare`."""

    def __init__(self, path: str, timeout_s: float = 30.0, connect_timeout_s: float = 2.0) -> None:
        """Talk to `path`; a call may take `timeout_s`, the runtime may start that much later."""
        self._path = path
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._socket: socket.socket | None = None
        self._lines = LineBuffer()
        self._next_id = 0

    def run(self, args: dict[str, Any] | None = None) -> Any:
        """Return the function's result; raises CallError or NoAnswerError."""
        return self.call("run", args=args or {})["result"]

    def prepare(self) -> Message:
        """Prepare the process for a checkpoint; closes all its connections."""
        return self._last_call("prepare")

    def status(self) -> Message:
        """Return pid, generation, threads, rss_bytes and the listener's identity."""
        return self.call("status")

    def stop(self) -> None:
        """End the process."""
        self._last_call("stop")

    def call(self, op: str, **fields: Any) -> Message:
        """Return the whole answer to operation `op`; raises CallError or NoAnswerError."""
        answer = self._exchange({"id": self._next_id, "op": op, **fields})
        if not answer.get("ok"):
            raise CallError(answer)
        return answer

    def connect(self) -> None:
        """Connect now; waits up to `connect_timeout_s` for the runtime to listen."""
        deadline = time.monotonic() + self._connect_timeout_s
        while self._socket is None:
            try:
                self._socket = self._connect_once(deadline)
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                if time.monotonic() >= deadline:
                    reason = f"cannot connect to {self._path}: {error.strerror}; start its runtime"
                    raise NoAnswerError(reason) from error
                time.sleep(_RETRY_S)

    def close(self) -> None:
        """Close the connection; a later call connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._lines = LineBuffer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _connect_once(self, deadline: float) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(deadline - time.monotonic(), _RETRY_S))
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        return sock

    def _last_call(self, op: str) -> Message:
        answer = self.call(op)
        # The runtime closes the connection when it is done, after its answer.
        with suppress(OSError):
            while self._socket is not None and self._socket.recv(_READ_BYTES):
                pass
        self.close()
        return answer

    def _exchange(self, message: Message) -> Message:
        self._next_id += 1
        self.connect()
        try:
            return self._send_and_receive(message)
        except (OSError, ProtocolError) as error:
            self.close()  # a late answer must not be taken for the next one
            if isinstance(error, NoAnswerError):
                raise
            reason = (
                f"cannot call {self._path} ({message['op']}): {error}; see the runtime's stderr"
            )
            raise NoAnswerError(reason) from error

    def _send_and_receive(self, message: Message) -> Message:
        assert self._socket is not None
        deadline = time.monotonic() + self._timeout_s
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(encode(message))
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise NoAnswerError(
                    f"cannot call {self._path} ({message['op']}): it closed the connection"
                )
            if lines := self._lines.feed(data):
                return decode(lines[0])
            self._socket.settimeout(max(deadline - time.monotonic(), _RETRY_S))


def compare_embeddings(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], tolerance: float = 1e-5
) -> bool:
    """Return whether both hold the same vectors within `tolerance`; NaN differs from everything."""
    if [len(vector) for vector in a] != [len(vector) for vector in b]:
        return False
    return all(
        math.fabs(x - y) <= tolerance
        for left, right in zip(a, b, strict=True)
        for x, y in zip(left, right, strict=True)
    )


def main(argv: list[str] | None = None) -> int:
    """Make one call and print its answer as JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m farfork.client", description="Call a function."
    )
    parser.add_argument("socket", help="socket of its runtime")
    parser.add_argument("op", choices=["run", "prepare", "status", "stop"])
    parser.add_argument(
        "args", nargs="?", type=json.loads, default={}, help="arguments of run, in JSON"
    )
    options = parser.parse_args(argv)
    with Client(options.socket) as client:
        do = {"prepare": client.prepare, "status": client.status, "stop": client.stop}.get(
            options.op
        )
        try:
            print(json.dumps(do() if do else client.run(options.args)))
        except (CallError, NoAnswerError) as error:
            print(f"farfork.client: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
