"""Confines the process before a user's code runs.

The server is the operator's program until it loads an action, and must not be trusted
after that. The confinement is a part of its checkpoint, so clones are confined from
their first instruction on.
"""

import base64
import binascii
import ctypes
import os
import resource
from pathlib import Path
from typing import Any

from farfork.protocol import Message

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SYS_SECCOMP = 317
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1
_BYTES_OF_STEP = 8
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")

_libc = ctypes.CDLL(None, use_errno=True)


class ConfinementError(RuntimeError):
    """The confinement failed; the message says where. No user's code may run then."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("count", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def enter(document: Message) -> None:
    """Switch to `user` and `group`, without privileges, and allow only the calls of `filter`.

    `open_files` limits descriptors, `processes` processes and threads of the user, `file_bytes`
    the length to which a file can grow, if given; `filter` is a seccomp program in base64.
    """
    try:
        user, group = int(document["user"]), int(document["group"])
        program = base64.b64decode(document["filter"], validate=True)
        _limit(int(document["open_files"]), int(document["processes"]))
        if (file_bytes := document.get("file_bytes")) is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
        _drop_bounds()
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        # Changing the user has made the process undumpable, so that root owns its /proc files.
        _prctl(_PR_SET_DUMPABLE, 1)
        _install(program)
    except (KeyError, TypeError, ValueError, binascii.Error, OSError) as error:
        reason = f"cannot give up privileges: {type(error).__name__}: {error}"
        raise ConfinementError(reason) from error
    _check(user, group)
    os.environ["HOME"] = "/tmp"


def _limit(open_files: int, processes: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _drop_bounds() -> None:
    for capability in range(int(_LAST_CAPABILITY.read_text()) + 1):
        _prctl(_PR_CAPBSET_DROP, capability)


def _prctl(what: int, value: int) -> None:
    if _libc.prctl(what, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {what}: {os.strerror(number)}")


def _install(program: bytes) -> None:
    filter_ = _Program(len(program) // _BYTES_OF_STEP, program)
    # For all threads at once.
    answer = _libc.syscall(
        _SYS_SECCOMP,
        _SECCOMP_SET_MODE_FILTER,
        _SECCOMP_FILTER_FLAG_TSYNC,
        ctypes.byref(filter_),
    )
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _check(user: int, group: int) -> None:
    """Verify the result by the kernel's view of each thread."""
    expected: dict[str, Any] = {
        "Uid": [str(user)] * 4,
        "Gid": [str(group)] * 4,
        "Groups": [],
        "NoNewPrivs": ["1"],
        "Seccomp": ["2"],
    }
    expected |= {f"Cap{name}": ["0" * 16] for name in ("Inh", "Prm", "Eff", "Amb")}
    for task in Path("/proc/self/task").iterdir():
        fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        for name, value in expected.items():
            if fields[name].split() != value:
                raise ConfinementError(f"cannot give up privileges: {name} is {fields[name]}")
