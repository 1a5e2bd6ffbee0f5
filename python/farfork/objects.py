"""Bytes and structures through mailboxes in shared memory, by the C library libfarfork.

    region = farfork.objects.attach()            # a function's region, or attach("/dev/shm/points")
    region.mailbox("points", slots=64).send(b"...")
    data = region.mailbox("points", slots=64).receive(timeout_s=1)

A message of bytes is an object: its length as 8 bytes, little-endian, and then the bytes. Other
calls of `farfork.h` are made by `region.library` with `region.handle`.

Invariants:
- A client is closed before a checkpoint and opened after it, in the parent and in each clone: a
  clone that had its parent's id would own its parent's objects.
- What a process has received belongs to it until it is freed; `receive` copies and frees it.
"""

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any

from farfork import hooks

_LENGTH = 8
_MICROSECONDS = 1_000_000
_NAME = "libfarfork.so"

# Name, result and arguments, as in farfork.h.
_CALLS: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("ff_open", ctypes.c_void_p, (ctypes.c_char_p,)),
    ("ff_close", None, (ctypes.c_void_p,)),
    ("ff_alloc", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)),
    ("ff_free", None, (ctypes.c_void_p, ctypes.c_void_p)),
    ("ff_usable_size", ctypes.c_size_t, (ctypes.c_void_p, ctypes.c_void_p)),
    ("ff_ref_of", ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_void_p)),
    ("ff_deref", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_uint64)),
    ("ff_mailbox_open", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)),
    ("ff_send", ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    ("ff_recv", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int64)),
    ("ff_alloc_refs", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)),
    (
        "ff_link",
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p),
    ),
    ("ff_error", ctypes.c_char_p, ()),
)


class ObjectsError(OSError):
    """A call of the library failed; the message is the library's, `errno` is its number."""


class Region:
    """A client of a region. One thread at a time uses it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.library = _library()
        self._handle: int | None = None
        self._mailboxes: dict[str, int] = {}
        self._is_paused = False
        self._open()
        _clients.add(self)

    @property
    def handle(self) -> int:
        """The `ff_region *` of this client, which changes with each checkpoint."""
        if self._handle is None:
            raise ValueError(f"region {self.path} is closed")
        return self._handle

    def mailbox(self, name: str, slots: int = 64) -> "Mailbox":
        """Return a mailbox, which is made if there is none; `slots` is a power of two."""
        return Mailbox(self, name, slots)

    def close(self) -> None:
        """Give back what this client owns. It is not opened again."""
        handle, self._handle = self._handle, None
        self._mailboxes.clear()
        self._is_paused = False
        if handle is not None:
            self.library.ff_close(handle)

    def fail(self, doing: str) -> ObjectsError:
        """Return the error of the call that this thread has just made."""
        number = ctypes.get_errno()
        words = self.library.ff_error() or os.strerror(number).encode()
        return ObjectsError(number, f"cannot {doing}: {words.decode(errors='replace')}")

    def opened(self, name: str, slots: int) -> int:
        """Return the `ff_mailbox *` of a mailbox, which this client opens once."""
        if (known := self._mailboxes.get(name)) is not None:
            return known
        made: int | None = self.library.ff_mailbox_open(self.handle, name.encode(), slots)
        if made is None:
            raise self.fail(f"open mailbox {name}")
        self._mailboxes[name] = made
        return made

    def _open(self) -> None:
        self._handle = self.library.ff_open(self.path.encode())
        if self._handle is None:
            raise self.fail(f"attach to {self.path}")

    def _pause(self) -> None:
        was_open = self._handle is not None
        self.close()
        self._is_paused = was_open

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._open()


# Those that are in use: clients are made in calls, too, and hooks stay.
_clients: "weakref.WeakSet[Region]" = weakref.WeakSet()


@hooks.before_checkpoint
def pause_all() -> None:
    """Close the clients of this process, before a checkpoint."""
    for client in list(_clients):
        client._pause()


@hooks.after_restore
def resume_all() -> None:
    """Open again those that were open."""
    for client in list(_clients):
        client._resume()


class Mailbox:
    """A mailbox: one client sends, another one receives."""

    def __init__(self, region: Region, name: str, slots: int) -> None:
        self._region, self.name, self._slots = region, name, slots

    def send(self, data: bytes, timeout_s: float | None = None) -> None:
        """Send bytes. Waits while the mailbox is full: without a limit, or `timeout_s` (0: not)."""
        region, library = self._region, self._region.library
        mailbox = region.opened(self.name, self._slots)
        made = library.ff_alloc(region.handle, _LENGTH + len(data))
        if made is None:
            raise region.fail(f"allocate {_LENGTH + len(data)} bytes in {region.path}")
        ctypes.memmove(made, len(data).to_bytes(_LENGTH, "little") + data, _LENGTH + len(data))
        if library.ff_send(mailbox, made, _us(timeout_s)) != 0:
            error = region.fail(f"send to mailbox {self.name}")
            library.ff_free(region.handle, made)
            raise error

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the next message. Waits for one as `send` does for room."""
        region, library = self._region, self._region.library
        mailbox = region.opened(self.name, self._slots)
        got = library.ff_recv(mailbox, _us(timeout_s))
        if got is None:
            raise region.fail(f"receive from mailbox {self.name}")
        try:
            length = int.from_bytes(ctypes.string_at(got, _LENGTH), "little")
            room = library.ff_usable_size(region.handle, got) - _LENGTH
            if length > room:
                raise ValueError(
                    f"the message in mailbox {self.name} does not begin with its length"
                )
            return ctypes.string_at(got + _LENGTH, length)
        finally:
            library.ff_free(region.handle, got)


def attach(path: str | None = None) -> Region:
    """Become a client of the region at `path`, or of the one in `FARFORK_REGION`."""
    path = path or os.environ.get("FARFORK_REGION")
    if path is None:
        raise ValueError("name a region, or deploy the function with --region")
    return Region(path)


def _us(timeout_s: float | None) -> int:
    return -1 if timeout_s is None else int(timeout_s * _MICROSECONDS)


def _library() -> Any:
    """Load the library of `FARFORK_LIBRARY`, that of this package, or the system's."""
    own = Path(__file__).with_name(_NAME)
    place = os.environ.get("FARFORK_LIBRARY") or (str(own) if own.exists() else _NAME)
    library = ctypes.CDLL(place, use_errno=True)
    for name, result, arguments in _CALLS:
        call = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    return library
