"""What a function keeps from its load that a clone would not have.

Each instance has scratch directories of its own, which are empty when it starts. A clone has
its parent's memory, but not the files there, and not the parent's TCP connections. A function
whose load leaves either is not checkpointed: it would fail because it is a clone.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# As the platform gives them to each instance.
SCRATCH = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")))
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"  # before an address of IPv4
_SHOWN = 3


class Kept:
    """What is there since the load."""

    def __init__(self) -> None:
        self._before: set[Path] | None = None
        self._since_load: set[Path] = set()

    def begin(self) -> None:
        """Look at the scratch directories, which are the instance's own, before the load."""
        self._before = set(_entries())

    def end(self) -> None:
        """Look at them after it."""
        if self._before is not None:
            self._since_load = set(_entries()) - self._before

    def reason(self) -> str | None:
        """Return why a clone would lack something, or None."""
        left = sorted(str(path) for path in self._since_load if os.path.lexists(path))
        if left:
            shown = ", ".join(left[:_SHOWN]) + (", …" if len(left) > _SHOWN else "")
            return (
                f"the function keeps files from its load that clones would not have ({shown}): "
                "keep their content in memory, or make them in each call that misses them"
            )
        if self._before is not None and _is_connected_to_itself():
            return (
                "the function keeps a TCP connection to itself, which clones would not have: "
                "use socket.socketpair, or connect in each call"
            )
        return None


def _entries() -> Iterator[Path]:
    for directory in SCRATCH:
        with suppress(OSError):
            yield from directory.iterdir()


def _is_connected_to_itself() -> bool:
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(descriptor))
    ends = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _ESTABLISHED and f"socket:[{words[9]}]" in own:
                    local, remote = (word.removeprefix(_MAPPED) for word in words[1:3])
                    ends.add((local, remote))
    return any((remote, local) in ends for local, remote in ends)
