"""Executes another program: the server of an action of another kind.

The program inherits the process's user, limits, seccomp filter and output, and finds this
server's port free.
"""

import errno
import os
import resource
import signal
import socket
import struct
from typing import NoReturn

from farfork.protocol import Message
from farfork.runtime import process

_WHY = {
    errno.ENOENT: "the file or its interpreter does not exist",
    errno.EACCES: "it is not executable",
    errno.ENOEXEC: "it is neither an ELF program nor a script that begins with #!",
}


class LaunchError(RuntimeError):
    """The program cannot be executed; the message says why."""


def execute(document: Message, connection: socket.socket) -> NoReturn:
    """Execute `program` with exactly `arguments` and `environment`, in `folder`.

    The client sees `connection` reset when the program begins. Raises LaunchError if it cannot
    be executed, ValueError if the document is invalid.
    """
    program, folder = _text(document.get("program")), _text(document.get("folder"))
    arguments = [_text(one) for one in _sequence(document.get("arguments", []))]
    environment = document.get("environment", {})
    if not isinstance(environment, dict):
        raise ValueError("environment is not a JSON object")
    variables = {_text(name): _text(value) for name, value in environment.items()}
    process.flush_output()
    # Signals ignored by Python or its starter would stay ignored in the program.
    ignored = {n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN}
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        # A file that would become too large is an error then, and not the program's end.
        ignored.discard(signal.SIGXFSZ)
    try:
        os.chdir(folder)
        _release(connection, at_once=True)
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, [program, *arguments], variables)
    except OSError as error:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        _release(connection, at_once=False)
        why = _WHY.get(error.errno or 0, error.strerror)
        raise LaunchError(f"cannot execute {program}: {why}") from error


def _release(connection: socket.socket, *, at_once: bool) -> None:
    """Set whether closing resets the connection, which frees the port without TIME_WAIT."""
    linger = struct.pack("ii", at_once, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _sequence(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("arguments is not a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is not a text without NUL")
    return value
