"""What a function keeps from its load that a clone would not have.

Each instance has scratch directories of its own, which are empty when it starts, and a layer
of its own over its working directory, with the files of the function's archive. A clone has
its parent's memory, but not the files that the parent has written there, and not the parent's
TCP connections. A function whose load leaves either is not checkpointed: it would fail because
it is a clone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# As the platform gives them to each instance.
SCRATCH = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")))
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"  # before an address of IPv4
_SHOWN = 3
_CLOCK_REALTIME_COARSE = 5  # of Linux


class Layer:
    """A working directory that goes on in a layer of the instance's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Times of files are those of the kernel's last tick.
        self._begun_ns = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)
        self._files = _files_in_layer(directory)

    def written(self) -> list[Path]:
        """Return files that were written since.

        If there are none, return directories that have changed: they are new, or something was
        removed from them.
        """
        if _files_in_layer(self._directory) == self._files:
            return []
        files, directories = [], [self._directory]
        for at, below, names in os.walk(self._directory):
            directories += [Path(at, name) for name in below]
            files += [Path(at, name) for name in names]
        return list(filter(self._has_changed, files)) or list(
            filter(self._has_changed, directories)
        )

    def _has_changed(self, path: Path) -> bool:
        with suppress(OSError):
            return path.lstat().st_ctime_ns >= self._begun_ns
        return False


class Kept:
    """What is there since the load."""

    def __init__(self) -> None:
        self._before: set[Path] | None = None
        self._since_load: set[Path] = set()
        self._layer: Layer | None = None

    def begin(self, directory: Path | None = None) -> None:
        """Look at the scratch directories and the working one before the load.

        The former are the instance's own, and changes of the latter.
        """
        self._before = set(_entries())
        self._layer = None if directory is None else Layer(directory)

    def end(self) -> None:
        """Look at them after it."""
        if self._before is not None:
            self._since_load = set(_entries()) - self._before
        if self._layer is not None:
            self._since_load |= set(self._layer.written())

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


def _files_in_layer(directory: Path) -> int:
    """Return the number of files and directories in the layer: those written, and some more."""
    found = os.statvfs(directory)
    return found.f_files - found.f_ffree


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
