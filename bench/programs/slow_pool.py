"""What a pool slower than memory would add to a function's calls, waited for in the function.

`farfork bench porter-slow-pool` puts this behind a function's code, with a last line by which
`main` waits. How long it waits is modelled; that it keeps a processor busy meanwhile is what a
processor does that waits for memory.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farfork

_Main = Callable[[dict[str, Any]], dict[str, Any]]

# Mappings of which the first are looked at: the program's own and its heap are among them.
_SMAPS_BYTES = 16 << 10


def _slowed(main: _Main, name: str, path: str) -> _Main:
    """Return `main`, waiting in a clone's calls for what the file at `path` tells."""
    # Seconds: what the next call waits, and what those after it do.
    waits = [0.0, 0.0]
    # Seconds that calls wait once what they read has become local while the clone ran; nothing if
    # they wait for nothing of the kind.
    promoted: float | None = None
    # Pages of its own, and pages of the pool, after the last call.
    own, mapped = 0, 0

    @farfork.after_restore
    def learn() -> None:
        nonlocal promoted, own, mapped
        waits[:], promoted, own, mapped = [0.0, 0.0], None, 0, 0
        try:
            told = json.loads(Path(path).read_text())
        except FileNotFoundError:
            return
        waits[:] = [us / 1e6 for us in _added_us(told, name)]
        if not told["copied_page_us"] and not _is_served():
            promoted = told["served"][name][1] / 1e6

    def slowed(args: dict[str, Any]) -> dict[str, Any]:
        nonlocal promoted, own, mapped
        # Between calls nothing else makes pages of the pool its own.
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


def _added_us(told: dict[str, Any], name: str) -> tuple[float, float]:
    if page_us := told["copied_page_us"]:
        # All of its own pages were copied.
        return _pages("RssAnon") * page_us, 0.0
    first, later = told["served" if _is_served() else "mapped"][name]
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
    """Tell whether pages are supplied one by one: memory is registered for that ("ui")."""
    with Path("/proc/self/smaps").open() as smaps:
        lines = smaps.read(_SMAPS_BYTES).splitlines()
    return any(line.startswith("VmFlags:") and " ui" in line for line in lines)
