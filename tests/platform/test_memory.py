"""Functions on nodes that have less memory than they would like."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from processes import cgroups
from served import Platform, await_true, deciding, open_place, serving, start_kind

from farfork.demo.command import Farfork

NEEDY = """
import time
def main(args):
    data = bytearray(args["mb"] << 20)
    data[::4096] = b"x" * len(data[::4096])
    time.sleep(args["sleep"])
    return {"n": len(data)}
"""
CALLS = 12


def kills() -> int:
    """Return how often the kernel has OOM-killed."""
    fields = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(fields["oom_kill"])


@pytest.mark.parametrize("growth", ["all-at-once", "one-by-one"])
@pytest.mark.parametrize("megabytes", [1024, 512, 256])
def test_calls_wait_for_memory(megabytes: int, growth: str) -> None:
    settings = {"growth": {"policy": growth}}
    before = kills()
    with deciding(settings, "--node-memory", f"{megabytes}M") as platform:
        farfork = platform.farfork
        platform.deploy("needy", NEEDY, memory=160, timeout=60000)
        for _ in range(17):
            platform.good("needy", mb=1, sleep=0)
        peak = Peak(farfork)
        with ThreadPoolExecutor(CALLS) as pool:
            calls = [pool.submit(platform.good, "needy", mb=96, sleep=0.5) for _ in range(CALLS)]
            while not all(call.done() for call in calls):
                peak.look()
        made = [call.result() for call in calls]
        pauses = decisions(platform, "growth")
    assert [one["response"]["result"]["n"] for one in made] == [96 << 20] * CALLS
    # The smallest node has room for one busy instance, which may make all calls.
    kinds = {start_kind(one) for one in made}
    assert "clone" in kinds if megabytes > 256 else kinds <= {"clone", "warm"}
    assert kills() == before
    # All clones were expected to take as little as those before them.
    if growth == "all-at-once":
        assert pauses == 0
    elif megabytes == 512:
        assert pauses > 0
    # Each takes 96 MiB and is promised 160, and some of a node is for its agent.
    least = {1024: 4 * 96, 512: 2 * 96, 256: 100}[megabytes]
    assert least << 20 < peak.bytes <= megabytes << 20


PATIENT = """
import time
def main(args):
    begun = time.time()
    time.sleep(args["sleep"])
    return {"begun": begun, "ended": time.time()}
"""


def test_more_work_at_a_time_than_limits_add_up_to() -> None:
    settings = {"growth": {"policy": "one-by-one"}}
    # By their limits, two of them fill the node.
    with deciding(settings, "--node-memory", "512M") as platform:
        platform.deploy("patient", PATIENT, memory=200)
        for _ in range(18):
            platform.good("patient", sleep=0)
        with ThreadPoolExecutor(CALLS) as pool:
            made = list(pool.map(lambda _: platform.good("patient", sleep=1), range(CALLS)))
    times = [one["response"]["result"] for one in made]

    def at_work(at: float) -> int:
        return sum(one["begun"] <= at < one["ended"] for one in times)

    assert max(at_work(one["begun"]) for one in times) > 2, times


def decisions(platform: Platform, policy: str) -> int:
    """Return how often a policy has decided."""
    lines = platform.raw("GET", "/metrics").body.splitlines()
    ours = (line for line in lines if line.startswith("farfork_decisions_total{"))
    return sum(int(line.split()[-1]) for line in ours if f'policy="{policy}"' in line)


# Of what a node has, the share that instances may take.
MOST_PERMILLE = 950


def test_ghosts_that_wait_make_room_for_a_large_function() -> None:
    before = kills()
    with deciding({"ghosts": {"spare": 32}}, "--node-memory", "512M") as platform:

        def node() -> dict[str, Any]:
            reply: dict[str, Any] = platform.farfork.json(
                "top", "--url", f"http://{platform.address}"
            )
            found: dict[str, Any] = reply["nodes"]["node1"]
            return found

        await_true(lambda: node()["ghosts"] == 32, "as many ghosts wait as are asked for")
        # Some of them hold what it lacks, and nothing else does.
        free = (512 << 20) * MOST_PERMILLE // 1000 - node()["memory_bytes"]
        platform.deploy("large", NEEDY, memory=(free >> 20) + 6)
        platform.good("large", mb=64, sleep=0)
        assert node()["ghosts"] < 32
    assert kills() == before


FUNCTIONS = 6


def test_images_make_room_for_others_in_the_pool() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with open_place() as place, pooled(place, "128M") as farfork:
        with serving(farfork, place / "state") as platform:

            def images() -> set[str]:
                names = [image["name"] for image in farfork.json("images", "list")]
                return {name.split(":")[0] for name in names if name.startswith("guest/")}

            for index in range(FUNCTIONS):
                platform.deploy(f"f{index}", NEEDY, memory=128)
                for _ in range(16):
                    platform.good(f"f{index}", mb=1, sleep=0)

            def has_one() -> bool:
                # Where there was no room, the next call finds some.
                platform.good(f"f{FUNCTIONS - 1}", mb=1, sleep=0)
                return f"guest/f{FUNCTIONS - 1}" in images()

            await_true(has_one, "the last has an image")
            assert len(images()) < FUNCTIONS, "the pool has room for all of them: no test"
            for index in range(FUNCTIONS):
                platform.good(f"f{index}", mb=1, sleep=0)
        assert farfork.do("pool", "check", farfork.environment["FARFORK_POOL"])


class Peak:
    """The most that the node's cgroup has held."""

    def __init__(self, farfork: Farfork) -> None:
        run = re.escape(farfork.environment["FARFORK_RUN"].replace("/", "-"))
        gauges = ("memory.current", "memory.usage_in_bytes")
        # Not that of its functions, which lies in it.
        nodes = cgroups(rf"farfork{run}-.*node1\.sock")
        found = [path / gauge for path in nodes for gauge in gauges]
        files = [path for path in found if path.exists()]
        (self._file,) = files
        self.bytes = 0

    def look(self) -> None:
        """Look at what it holds now."""
        self.bytes = max(self.bytes, int(self._file.read_text()))
