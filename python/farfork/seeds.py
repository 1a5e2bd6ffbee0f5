"""Forks from a live process: MITOSIS's fork_prepare, fork_resume and fork_reclaim.

    seed = farfork.prepare()
    if seed.is_child:
        ...                         # a clone, here or on another node
    else:
        child = farfork.resume(seed)
        farfork.reclaim(seed)

The command `farfork` prepares the process from outside while it waits. The layout of the place
where it waits stands in `reply.rs` of `crates/fork/checkpoint`.
"""

import ctypes
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"ffreply1"
_STATE = struct.Struct("<Q")
_STATE_AT = 8
_TEXT_AT = 16
_TEXT_BYTES = 112
_WAITS, _IS_PREPARED, _IS_CLONE = range(3)
_LOOK_S = 0.0005
_LIMIT_S = 60.0
# The command must not be a child of the process that it prepares: the shell leaves it behind.
_LEAVE_BEHIND = '( "$@" >"$0/out" 2>"$0/err" </dev/null; : >"$0/done" ) 2>/dev/null &'


class SeedError(RuntimeError):
    """A seed could not be made, used or ended; the message is that of the command `farfork`."""


@dataclass(frozen=True)
class Seed:
    """A process at one moment, to fork from. The handle is a secret; a clone does not have it."""

    handle: str | None

    @property
    def is_child(self) -> bool:
        """Whether this process is a clone of the seed, and not the process that was prepared."""
        return self.handle is None

    def __repr__(self) -> str:
        """Show no handle."""
        return f"Seed(is_child={self.is_child})"


@dataclass(frozen=True)
class Child:
    """A clone that runs; `report` is what `farfork resume --json` has printed of it."""

    pid: int
    report: dict[str, Any]

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)


def prepare(expires_s: int = 600, listen: str | None = None) -> Seed:
    """Prepare this process; returns in it, and once more in each clone.

    The seed ends after `expires_s`. Clones fetch pages at the address `listen`; without it, at the
    one that this machine has towards others.
    """
    command = ["prepare", "--pid", str(os.getpid()), "--expires", str(expires_s)]
    if listen is not None:
        command += ["--listen", listen]
    place = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place[: len(_MAGIC)] = _MAGIC
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    folder = Path(tempfile.mkdtemp(prefix="farfork-prepare-"))
    arguments = [_program(), *command, "--reply-at", str(address)]
    subprocess.run(["/bin/sh", "-c", _LEAVE_BEHIND, str(folder), *arguments], check=True)
    state = _wait(place, folder / "done")
    if state == _IS_CLONE:
        # What lies in the folder is its parent's.
        return Seed(None)
    try:
        if state == _WAITS:
            raise _error((folder / "err").read_text(errors="replace"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = place[_TEXT_AT : _TEXT_AT + _TEXT_BYTES]
    return Seed(text.split(b"\0", 1)[0].decode())


def resume(seed: Seed | str, *options: str) -> Child:
    """Start a clone of a seed on this machine, with further options of `farfork resume`.

    Its standard input is empty. What it prints is dropped.
    """
    with tempfile.TemporaryFile() as output:
        command = [_program(), "resume", _handle(seed), "--json", "--detach", *options]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, check=False
        )
        if ended.returncode != 0:
            raise _error(ended.stderr.decode(errors="replace"))
        output.seek(0)
        # The clone may have printed behind it.
        reports, _ = json.JSONDecoder().raw_decode(output.read().decode(errors="replace"))
    return Child(reports[0]["pid"], reports[0])


def reclaim(seed: Seed | str, wait_s: int = 10) -> None:
    """End a seed, after nodes whose clones may still fetch pages have had `wait_s` to do so."""
    command = [_program(), "reclaim", _handle(seed), "--wait", str(wait_s)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode != 0:
        raise _error(ended.stderr.decode(errors="replace"))


def _wait(place: mmap.mmap, done: Path) -> int:
    """Return the state, when it has changed or the command has ended."""
    until = time.monotonic() + _LIMIT_S
    while True:
        has_ended = done.exists() or time.monotonic() > until
        (state,) = _STATE.unpack_from(place, _STATE_AT)
        if state != _WAITS or has_ended:
            return int(state)
        time.sleep(_LOOK_S)


def _program() -> str:
    return os.environ.get("FARFORK_BIN", "farfork")


def _handle(seed: Seed | str) -> str:
    handle = seed.handle if isinstance(seed, Seed) else seed
    if handle is None:
        raise SeedError("a clone does not have the handle of its own seed; call prepare() in it")
    return handle


def _error(said: str) -> SeedError:
    said = said.strip().removeprefix("farfork: ")
    return SeedError(said or "the command farfork was killed, or did not answer in time")
