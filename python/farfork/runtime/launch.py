"""Becomes another program: the server of an action that is not Python's.

The process stays: its user, its limits, its filter of system calls and its output are the
program's, which finds the port free that this server has listened at.
"""

import errno
import os
import signal
import socket
import struct
from typing import NoReturn

from farfork.protocol import Message
from farfork.runtime import process

_WHY = {
    errno.ENOENT: "it is not there, or the interpreter that it names is not",
    errno.EACCES: "it may not be executed",
    errno.ENOEXEC: "it is neither an ELF program nor a script that begins with #!",
}


class LaunchError(RuntimeError):
    """The program does not run; the message says why."""


def become(document: Message, connection: socket.socket) -> NoReturn:
    """Run `program` with `arguments` and `environment`, and nothing more of either, in `folder`.

    Who asked sees `connection` reset as the program begins. Raises LaunchError, and does
    nothing else then; ValueError for what is no such document.
    """
    program, folder = _text(document.get("program")), _text(document.get("folder"))
    arguments = [_text(one) for one in _sequence(document.get("arguments", []))]
    environment = document.get("environment", {})
    if not isinstance(environment, dict):
        raise ValueError("environment is no JSON object")
    variables = {_text(name): _text(value) for name, value in environment.items()}
    process.flush_output()
    # By Python, some by whoever has started it; what is ignored stays so in another program.
    ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
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
    """Have the port free `at_once` when the connection is closed: by a reset, no TIME_WAIT."""
    linger = struct.pack("ii", at_once, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _sequence(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("arguments is no list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{value!r} is no text without NUL")
    return value
