"""Budgets of nodes, limits of instances, and what they take, as the kernel has it in cgroups.

By version 1 or 2, whichever the machine has; tests/qemu has one with version 2 alone.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import cgroups
from served import COUNT, Platform, annotation, await_true, open_place, serving, start_kind

from farfork.demo.command import Farfork

NODES = ["node1", "node2"]
BUDGET_MB = 640
LIMIT_MB = 96
MOST_PIDS = 512

EATS = """
def main(args):
    data = bytearray(args["mb"] << 20)
    data[::4096] = b"x" * len(data[::4096])
    return {"n": len(data)}
"""


THREADS = """
import threading

def main(args):
    threads, over = [], threading.Event()
    try:
        while len(threads) < args["count"]:
            threads.append(threading.Thread(target=over.wait))
            threads[-1].start()
    except RuntimeError:
        threads.pop()
    over.set()
    [thread.join() for thread in threads]
    return {"count": len(threads)}
"""


@pytest.fixture(scope="module")
def platform(farfork: Farfork) -> Iterator[Platform]:
    """Return a platform whose nodes have a budget; nothing of it is left after the tests."""
    options = ["--nodes", str(len(NODES)), "--node-memory", f"{BUDGET_MB}M"]
    with open_place() as place, serving(farfork, place / "state", *options) as platform:
        yield platform
    await_true(lambda: not any(of_node(platform, node) for node in NODES), "no cgroup stays")


def only(directories: list[Path], *names: str) -> Path:
    """Return the one file that has a name of either version's."""
    every = [directory / name for directory in directories for name in names]
    (found,) = [path for path in every if path.exists()]
    return found


def number(directories: list[Path], *names: str) -> int:
    return int(only(directories, *names).read_text())


def of_node(platform: Platform, node: str) -> list[Path]:
    """Return the cgroups of a node, one in each hierarchy that has any."""
    socket = f"{platform.farfork.environment['FARFORK_RUN']}/{node}.sock"
    return cgroups(re.escape(f"farfork{socket.replace('/', '-')}"))


def of_functions(platform: Platform, node: str) -> Path:
    """Return the limit of processes of a node's instances together."""
    (name,) = {path.name for path in of_node(platform, node)}
    return only(cgroups(re.escape(f"{name}-functions")), "pids.max")


def of_process(pid: int) -> list[Path]:
    """Return the cgroups of a process."""
    names = {line.rsplit("/", 1)[1] for line in Path(f"/proc/{pid}/cgroup").read_text().split()}
    return [path for name in names if name for path in cgroups(re.escape(name))]


def used(platform: Platform, node: str) -> int:
    """Return what a node's cgroup is charged that cannot just be dropped."""
    gauge = only(of_node(platform, node), "memory.current", "memory.usage_in_bytes")
    droppable = "inactive_file" if gauge.name == "memory.current" else "total_inactive_file"
    stat = dict(line.split() for line in gauge.with_name("memory.stat").read_text().splitlines())
    return int(gauge.read_text()) - int(stat[droppable])


def reply(platform: Platform, figure: str, node: str) -> int:
    """Return a figure of a node."""
    wanted = f'farfork_node_{figure}{{node="{node}"}} '
    lines = platform.raw("GET", "/metrics").body.splitlines()
    (line,) = [line for line in lines if line.startswith(wanted)]
    return int(line.removeprefix(wanted))


def test_instances_are_held_to_their_limits_and_nodes_to_theirs(platform: Platform) -> None:
    limits = ("memory.max", "memory.limit_in_bytes")
    for node in NODES:
        assert number(of_node(platform, node), *limits) == BUDGET_MB << 20
        assert reply(platform, "memory_budget_bytes", node) == BUDGET_MB << 20
    platform.deploy("limited", COUNT, memory=LIMIT_MB)
    for _ in range(17):
        platform.good("limited")

    def clones() -> list[int]:
        listed = platform.instances()
        return [one["pid"] for one in listed if one["image"].startswith("guest/limited")]

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(platform.good, "limited", sleep=8) for _ in range(4)]
        await_true(lambda: clones() != [], "clones serve beside the first instance")
        for pid in clones():
            assert number(of_process(pid), *limits) == LIMIT_MB << 20
            assert number(of_process(pid), "pids.max") == MOST_PIDS
        made = [call.result() for call in calls]
    assert "clone" in {start_kind(one) for one in made}


def test_processes_of_all_functions_are_limited_together(platform: Platform) -> None:
    kernel = Path("/proc/sys/kernel")
    machine = min(int((kernel / name).read_text()) for name in ("pid_max", "threads-max"))
    limits = [of_functions(platform, node) for node in NODES]
    usual = [limit.read_text() for limit in limits]
    assert all(int(text) <= machine // 2 // len(NODES) for text in usual)
    platform.deploy("starts-threads", THREADS)
    assert platform.good("starts-threads", count=64)["response"]["result"] == {"count": 64}
    platform.deploy("comes-later", COUNT)

    def started_with_room_for_8() -> int:
        for limit in limits:
            taken = int(limit.with_name("pids.current").read_text())
            limit.write_text(str(taken + 8))
        return int(platform.good("starts-threads", count=64)["response"]["result"]["count"])

    try:
        # Threads that were joined count until the kernel has ended them.
        await_true(lambda: started_with_room_for_8() < 16, "threads are refused")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(platform.good, "comes-later")
            await_true(lambda: "functions have all processes" in platform.log(), "it is logged")
            assert not call.done()
            for limit, text in zip(limits, usual, strict=True):
                limit.write_text(text)
            assert call.result()["response"]["success"]
    finally:
        for limit, text in zip(limits, usual, strict=True):
            limit.write_text(text)


def test_memory_of_a_node_matches_the_kernels_count(platform: Platform) -> None:
    platform.deploy("counted", EATS, memory=LIMIT_MB)
    platform.good("counted", mb=1)

    def differs_by() -> int:
        # No instance is busy, so nothing is promised.
        return max(abs(reply(platform, "memory_bytes", one) - used(platform, one)) for one in NODES)

    await_true(lambda: differs_by() < 1 << 19, "the figures are the kernel's")
    # An agent and its ghosts take that much without any instance.
    assert all(used(platform, node) > 1 << 20 for node in NODES)


@pytest.mark.parametrize("calls", [1, 17])
def test_who_eats_more_than_its_limit_ends_alone(platform: Platform, calls: int) -> None:
    name = f"eats{calls}"
    platform.deploy(name, EATS, memory=64)
    platform.deploy("goes-on", COUNT)
    before = platform.good("goes-on")["response"]["result"]
    # After the 17th, what takes its place is a clone of its image.
    for _ in range(calls):
        platform.good(name, mb=1)
    ended = platform.call(name, mb=256)
    assert ended.status == 502, ended
    assert any("out of memory" in line for line in ended.body["logs"]), ended.body["logs"]
    again = platform.good(name, mb=16)
    assert again["response"]["result"]["n"] == 16 << 20
    assert start_kind(again) == ("cold" if calls == 1 else "clone")
    after = platform.good("goes-on")
    assert annotation(after, "startKind") == "warm"
    assert after["response"]["result"]["count"] == before["count"] + 1, "its neighbour goes on"
    assert [reply(platform, "up", node) for node in NODES] == [1, 1]
