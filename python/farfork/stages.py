"""Stages of a call, such as download, processing and upload, as `farfork profile` reports them.

A call reports them in its result, under the key `stages_us`:

    stages = farfork.Stages()
    with stages("download"):
        data = fetch()
    return {"size": len(data), "stages_us": stages.us()}

While it is profiled, the start and end of each stage are also reported on a descriptor, and the
stage waits for the answer, so that the profiler can look at its memory in between. That takes no
time of the stage.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "FARFORK_STAGE_FD"
# Threads report one by one: each waits for the answer to its own line.
_reporting = threading.Lock()


def _report(event: str, name: str) -> None:
    descriptor = os.environ.get(_VARIABLE)
    if descriptor is None:
        return
    with _reporting:
        os.write(int(descriptor), f"{event} {name}\n".encode())
        os.read(int(descriptor), 1)


class Stages:
    """The stages of one call. A stage that runs several times counts as the sum."""

    def __init__(self) -> None:
        """Begin without stages."""
        self._us: dict[str, int] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Run the stage `name`, a word of letters, digits and `_`."""
        if not name.replace("_", "a").isalnum():
            raise ValueError(f"invalid name of a stage {name!r} (expected letters, digits and _)")
        _report("begin", name)
        begun = time.perf_counter_ns()
        try:
            yield
        finally:
            took = (time.perf_counter_ns() - begun) // 1000
            self._us[name] = self._us.get(name, 0) + took
            _report("end", name)

    def us(self) -> dict[str, int]:
        """Return the microseconds that each stage took so far, in the order of their starts."""
        return dict(self._us)
