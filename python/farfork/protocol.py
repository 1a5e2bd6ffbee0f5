r"""The protocol between a function's runtime and its callers; both sides import it.

One Unix stream connection carries many exchanges: one JSON object and "\n" each
way, answered in order.

    request                               answer
    {"id", "op": "run", "args": {...}}    {"id", "ok": true, "result", "run_us", "pid",
                                           "generation"}
    {"id", "op": "status"}                {"id", "ok": true, "pid", "generation", "threads", ...}
    {"id", "op": "prepare"}               {"id", "ok": true, "listen_fd", "generation",
                                           "hot"}, then EOF
    {"id", "op": "stop"}                  {"id", "ok": true}, then EOF
    any                                   {"id", "ok": false, "error"[, "trace"]}

- `id` is any JSON value and is returned unchanged; it may be left out.
- `run_us` is the time inside the function, in microseconds.
- `generation` counts the restores in a process's ancestry: 0 in the first parent.
- `prepare` drops all connections, including pending requests, its own one last. After
  that EOF the process blocks in accept() on `listen_fd` and can be checkpointed.
"""

import json
from typing import Any

MAX_LINE_BYTES = 64 << 20

Message = dict[str, Any]

# NaN is not JSON: strict readers would refuse the whole answer.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder().decode


class ProtocolError(ValueError):
    """A line was not a message: too long, or not a JSON object."""


def encode(message: Message) -> bytes:
    """Return `message` as one line; TypeError or ValueError if JSON cannot represent it."""
    return _encode(message).encode() + b"\n"


def decode(line: bytes | bytearray) -> Message:
    """Return the message on `line`; raises ProtocolError."""
    try:
        message = _decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"cannot read a message: {error}; send one JSON object per line"
        ) from error
    if not isinstance(message, dict):
        raise ProtocolError(
            "cannot read a message: it is not a JSON object; send one JSON object per line"
        )
    return message


class LineBuffer:
    """Splits a byte stream into lines; holds at most MAX_LINE_BYTES of an unfinished one."""

    __slots__ = ("_partial",)

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without their ends; raises ProtocolError."""
        if not self._partial and data.find(b"\n") == len(data) - 1:
            return [data[:-1]]  # the usual case: one whole message
        # Only the new bytes are searched, so a long line costs linear time.
        head, *rest = data.split(b"\n")
        self._partial += head
        if len(self._partial) > MAX_LINE_BYTES:
            raise ProtocolError(f"cannot read a message: it is longer than {MAX_LINE_BYTES} bytes")
        if not rest:
            return []
        lines = [bytes(self._partial), *rest[:-1]]
        self._partial = bytearray(rest[-1])
        return lines
