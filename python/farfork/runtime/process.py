"""The runtime's own process."""

import os
import sys
from contextlib import suppress

pid = os.getpid


def usage() -> dict[str, int | None]:
    """Return `threads` and `rss_bytes`; both None where /proc is not mounted."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
            fields = dict(line.split(":", 1) for line in status)
    except OSError:
        return {"threads": None, "rss_bytes": None}
    return {
        "threads": int(fields["Threads"]),
        "rss_bytes": int(fields["VmRSS"].split()[0]) * 1024,
    }


def flush_output() -> None:
    """Flush the function's output; the function may have closed its streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def keep_streams() -> None:
    """Open descriptors 0, 1 and 2 again if the function has closed them.

    The next connection would get such a number, and what is printed would go to the client.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which this is
            os.set_inheritable(fd, True)


class Environment:
    """A copy of environment and working directory, restored before each activation."""

    def __init__(self) -> None:
        self._variables = dict(os.environ)
        self._directory = os.getcwd()

    def restore(self) -> None:
        """Undo later changes."""
        for name in set(os.environ) - set(self._variables):
            del os.environ[name]
        for name, value in self._variables.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        # It was removed: the current directory stays.
        with suppress(OSError):
            os.chdir(self._directory)
