"""Clones of this process as farfork's are, made without farfork: same memory, same pid.

os.fork() would not do. It gives another pid, which libraries take as the sign to
reseed, and it runs the fork handlers of Python and the C library. Here raw clone3
makes the pid 1 of a new namespace, and that makes a child with our own pid.
"""

import ctypes
import json
import os
import signal
from collections.abc import Callable
from typing import Any

_SYS_CLONE3 = 435
_CLONE_NEWPID = 0x20000000
_FIELDS = "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size"
_libc = ctypes.CDLL(None, use_errno=True)


class _CloneArgs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _FIELDS.split()]


def allowed() -> bool:
    """Return whether this process may make twins (it needs root)."""
    try:
        return twin(lambda: True)
    except PermissionError:
        return False


def twin(work: Callable[[], Any]) -> Any:
    """Run `work` in a twin of this process; returns its JSON result."""
    mine = os.getpid()
    reader, writer = os.pipe()
    init = _clone3(_CLONE_NEWPID)
    if init == 0:
        _be_init(mine, writer, work)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(init, 0)
    return json.loads(answer)


def _be_init(pid: int, writer: int, work: Callable[[], Any]) -> None:
    try:
        child = _clone3(0, pid)
        if child == 0:
            assert os.getpid() == pid
            os.write(writer, json.dumps(work()).encode())
        else:
            os.waitpid(child, 0)
    finally:
        os._exit(0)


def _clone3(flags: int, pid: int | None = None) -> int:
    tids = (ctypes.c_int * 1)(pid or 0)
    args = _CloneArgs(flags=flags, exit_signal=signal.SIGCHLD)
    if pid is not None:
        args.set_tid, args.set_tid_size = ctypes.addressof(tids), 1
    child = _libc.syscall(_SYS_CLONE3, ctypes.byref(args), ctypes.sizeof(args))
    if child < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"clone3: {os.strerror(number)}")
    return child
