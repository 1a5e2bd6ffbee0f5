"""Functions of the benchmark with a slower pool wait as their pages are mapped."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bed import Bed, Clone

from farfork.client import Client

pytestmark = pytest.mark.needs_farfork

PROGRAM = Path(__file__).parents[2] / "bench/programs/slow_pool.py"
FUNCTION = """
    def main(args):
        return {}
"""
# Microseconds that a clone's first call and later ones wait.
MAPPED = [50_000.0, 20_000.0]
SERVED = [400_000.0, 200_000.0]
COPIED_PAGE = 100.0
# <linux/posix-timers.h>: of the clock of another process, that which clock_getcpuclockid() names.
CPUCLOCK_SCHED = 2


@pytest.fixture
def slowed(
    bed: Bed, write_function: Callable[[str], Path], tmp_path: Path
) -> Callable[[str, float], Clone]:
    """Return what makes a clone of a function that waits, under a policy."""

    def cloned(tiering: str, copied_page_us: float) -> Clone:
        function, reply = write_function(FUNCTION), tmp_path / "reply.json"
        last = f"main = _slowed(main, 'it', {str(reply)!r})"
        function.write_text(f"{function.read_text()}\n\n{PROGRAM.read_text()}\n\n{last}\n")
        parent = bed.parent(function)
        pid = parent.runtime.process.pid
        # Waiting keeps a processor busy; where processors are taken away, nothing waits.
        clock = (~pid << 3) | CPUCLOCK_SCHED
        took = waits(parent.client, lambda: time.clock_gettime(clock))
        shorter = [one < us / 1e4 for one, us in zip(took, MAPPED, strict=True)]
        assert all(shorter), f"only clones wait, not {took}"
        added = {"copied_page_us": copied_page_us, "mapped": {"it": MAPPED}}
        reply.write_text(json.dumps(added | {"served": {"it": SERVED}}))
        options = ("--detach", "--tiering", tiering)
        path, call = bed.restore_call(parent.image, parent.listen_fd, *options)
        (said,) = bed.farfork.json(*call)
        return Clone("local", said["pid"], bed.client(path.replace("%i", "0")), said)

    return cloned


def waits(client: Client, clock: Callable[[], float] = time.monotonic) -> list[int]:
    """Return how long the first two calls wait, in tens of milliseconds."""
    took = []
    for _ in range(2):
        begun = clock()
        client.run({})
        took.append(int((clock() - begun) * 100))
    return took


@pytest.mark.parametrize(
    ("tiering", "expected"), [("mow", MAPPED), ("moa", SERVED), ("hybrid", SERVED)]
)
def test_clones_wait_by_their_policy(
    slowed: Callable[[str, float], Clone], tiering: str, expected: list[float]
) -> None:
    least = [int(us / 1e4) for us in expected]
    took = waits(slowed(tiering, 0.0).client)
    # A processor that is taken away makes it longer, not as long as under the other policies.
    assert all(low <= one < 4 * low for low, one in zip(least, took, strict=True)), took


def test_clones_wait_as_if_served_once_their_pages_are_promoted(
    bed: Bed, slowed: Callable[[str, float], Clone]
) -> None:
    clone = slowed("mow", 0.0)
    assert max(waits(clone.client)) < SERVED[1] / 1e4
    pid, pool = clone.said["pid"], bed.farfork.environment["FARFORK_POOL"]
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    # What the init leaves in its window is not the image's.
    ranges = [line.split()[0] for line in maps if f" {pool}/images/" in line]
    ranges = [one for one in ranges if not one.startswith("4f")]
    promoted = bed.farfork.json("promote", pid, *ranges)
    assert promoted["promoted_pages"] > 1000
    assert min(waits(clone.client)) >= SERVED[1] / 1e4


def test_copied_clones_wait_for_their_pages(slowed: Callable[[str, float], Clone]) -> None:
    clone = slowed("copy", COPIED_PAGE)
    first, later = waits(clone.client)
    (kib,) = (
        line.split()[1]
        for line in Path(f"/proc/{clone.said['pid']}/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    )
    # What it wrote since then is its own, too.
    pages = int(kib) / 4
    assert pages > 1000
    assert first > 0.8 * pages * COPIED_PAGE / 1e4 > 10 * later
