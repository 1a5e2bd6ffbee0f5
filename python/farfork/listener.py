"""The listening socket of a runtime, by which a process detects that it is a clone.

A process is checkpointed while it blocks in accept() on fd N. A clone has another
listening socket as fd N; nothing else differs, even its pid is its parent's. So the
runtime remembers its socket and compares.

Within one boot of one machine no two sockets share a cookie. Machines number their
sockets independently, from 1, so the kernel's boot id belongs to the identity; where
/proc is not mounted, inode, cookie and address must not all coincide by chance.
"""

import os
import socket
import stat
from contextlib import suppress
from typing import Any

SO_COOKIE = 57  # <asm-generic/socket.h>; the socket module has no name for it
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BACKLOG = 128
_SEND_TIMEOUT = (30).to_bytes(8, "little") + bytes(8)  # struct timeval: 30 s, 0 us


class ListenError(RuntimeError):
    """The listening socket could not be made; the message names it and a remedy."""


class Listener:
    """A listening stream socket whose file descriptor survives in clones."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self.fd = sock.fileno()
        self.remember()

    @classmethod
    def bind(cls, path: str) -> "Listener":
        """Bind `path`, replacing a stale socket; clients cannot connect before start()."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            sock.bind(path)
        except OSError as error:
            raise ListenError(
                f"cannot bind {path}: {error.strerror or error}; choose another --socket"
            ) from error
        return cls(sock)

    @classmethod
    def bind_tcp(cls, host: str, port: int) -> "Listener":
        """Bind a TCP port in the process's network; clients cannot connect before start()."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ListenError(
                f"cannot bind {host}:{port}: {error.strerror or error}; choose another --port"
            ) from error
        return cls(sock)

    @classmethod
    def inherit(cls, fd: int) -> "Listener":
        """Take over the socket that the caller left open as `fd`."""
        try:
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise ListenError(
                f"cannot use fd {fd}: {error.strerror}; pass an open Unix stream socket"
            ) from error
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            raise ListenError(f"cannot use fd {fd}: it is not a Unix stream socket; pass one")
        return cls(sock)

    def start(self) -> None:
        """Let clients connect."""
        self._sock.listen(_BACKLOG)

    def accept(self) -> socket.socket:
        """Wait for a client; returns the blocking connection to it."""
        try:
            connection, _ = self._sock.accept()
        except BlockingIOError:  # a clone's new socket may come non-blocking
            os.set_blocking(self.fd, True)
            connection, _ = self._sock.accept()
        # A client that never reads must not block the others for ever.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        return connection

    def remember(self) -> None:
        """Remember the socket at `fd` as this process's own."""
        self._ino = os.fstat(self.fd).st_ino
        self._rest = self._cookie_address_boot()

    def is_other(self) -> bool:
        """Return whether `fd` is not the remembered socket (about 6 us)."""
        return self.is_other_inode() or self._cookie_address_boot() != self._rest

    def is_other_inode(self) -> bool:
        """Return the same by the inode alone (under 1 us), for every request."""
        return os.fstat(self.fd).st_ino != self._ino

    def identity(self) -> dict[str, int | str | None]:
        """Return the remembered identity of the socket."""
        cookie, address, _ = self._rest
        path = address if isinstance(address, str) else None
        return {"socket_ino": self._ino, "socket_cookie": cookie, "socket_path": path or None}

    def close(self) -> None:
        """Close the socket; remove its path if this process still has the socket it bound."""
        address = None if self.is_other() else self._sock.getsockname()
        self._sock.close()
        if address and isinstance(address, str):
            with suppress(FileNotFoundError):
                os.unlink(address)

    def _cookie_address_boot(self) -> tuple[int, Any, bytes]:
        cookie = self._sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
        return int.from_bytes(cookie, "little"), self._sock.getsockname(), _boot_id()


def _boot_id() -> bytes:
    try:
        fd = os.open(_BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
