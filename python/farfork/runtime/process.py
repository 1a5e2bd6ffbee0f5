"""What the runtime asks about its own process."""

import os
import sys
from contextlib import suppress

pid = os.getpid


def usage() -> dict[str, int | None]:
    """Return `threads` and `rss_bytes`; None each where /proc is not mounted."""
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
    """Write out what the function printed; a closed stdout is the caller's affair."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


class Surroundings:
    """Environment and working directory as they are now, for each activation to find."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._directory = os.getcwd()

    def restore(self) -> None:
        """Undo what was changed since."""
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        # Nothing better is at hand where it has been removed.
        with suppress(OSError):
            os.chdir(self._directory)
