"""Delays of a pool that is slower than memory, added to the calls of a function.

`farfork bench porter-slow-pool` appends this to a function's code, with a last line that makes
`main` wait. The time is modelled. The wait is a busy loop, as a processor is busy while it waits
for memory.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farfork

_Main = Callable[[dict[str, Any]], dict[str, Any]]

# How much of smaps is read: enough for the program's own mappings and its heap.
_SMAPS_BYTES = 16 << 10


def _slowed(main: _Main, name: str, path: str) -> _Main:
    """Return `main` with the delays in the file at `path`, in calls of clones."""
    # Seconds that the next call waits, and the calls after it.
    waits = [0.0, 0.0]
    # Seconds that calls wait after promotion of the pages that they read. None if there is none.
    promoted: float | None = None
    # Local pages, and pages of the pool, after the last call.
    own, mapped = 0, 0

    @farfork.after_restore
    def learn() -> None:
        nonlocal promoted, own, mapped
        waits[:], promoted, own, mapped = [0.0, 0.0], None, 0, 0
        try:
            delays = json.loads(Path(path).read_text())
        except FileNotFoundError:
            return
        waits[:] = [us / 1e6 for us in _added_us(delays, name)]
        if not delays["copied_page_us"] and not _is_served():
            promoted = delays["served"][name][1] / 1e6

    def slowed(args: dict[str, Any]) -> dict[str, Any]:
        nonlocal promoted, own, mapped
        # Only promotion makes pages local between calls.
        if promoted is not None and mapped and _pages("RssAnon") - own > mapped // 4:
            waits[:], promoted = [promoted, promoted], None
        result = main(args)
        wait, waits[0] = waits
        end = time.perf_counter() + wait
        while time.perf_counter() < end:
            pass
        if promoted is not None:
            own, mapped = _pages("RssAnon"), _pages("RssShmem")
        return result

    return slowed


def _added_us(delays: dict[str, Any], name: str) -> tuple[float, float]:
    if page_us := delays["copied_page_us"]:
        # All local pages were copied.
        return _pages("RssAnon") * page_us, 0.0
    first, later = delays["served" if _is_served() else "mapped"][name]
    return first, later


def _pages(kind: str) -> int:
    """Count resident pages of a kind of `/proc/self/status`; the pool's are `RssShmem`."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(f"{kind}:")
    )
    return int(line.split()[1]) // 4


def _is_served() -> bool:
    """Return whether a page service supplies pages: userfaultfd marks memory by "ui"."""
    with Path("/proc/self/smaps").open() as smaps:
        lines = smaps.read(_SMAPS_BYTES).splitlines()
    return any(line.startswith("VmFlags:") and " ui" in line for line in lines)
