"""Idle instances are frozen, and kills meanwhile block nothing."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import agent_of, containers
from served import Platform, await_true, deciding, start_kind

# A thread goes on when its call has been answered.
LEAVES_A_THREAD = """
import threading
count = 0

def go_on():
    global count
    while True:
        count += 1

def main(args):
    if threading.active_count() == 1:
        threading.Thread(target=go_on, daemon=True).start()
    return {"count": count}
"""


@pytest.fixture
def platform() -> Iterator[Platform]:
    with deciding({"freeze": {"after_ms": 500}}) as platform:
        platform.deploy("leaves", LEAVES_A_THREAD)
        yield platform
        farfork = platform.farfork
    assert containers(farfork) == set()


def own(platform: Platform) -> int:
    """Return the pid of the only instance."""
    (one,) = platform.instances()
    pid: int = one["pid"]
    return pid


def ticks(pid: int) -> int:
    """Return the processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def stands_still(pid: int) -> bool:
    """Look for longer than a thread that may run is kept waiting."""
    before = ticks(pid)
    time.sleep(0.5)
    return ticks(pid) == before


def await_standstill(platform: Platform) -> int:
    """Return the pid of the only instance once it is frozen."""
    pid = own(platform)
    await_true(lambda: stands_still(pid), "it stands still")
    return pid


def test_threads_left_running_are_frozen_between_calls(platform: Platform) -> None:
    counts = []
    for _ in range(3):
        made = platform.good("leaves")
        counts.append(made["response"]["result"]["count"])
        begun = ticks(own(platform))
        pid = await_standstill(platform)
        assert ticks(pid) > begun, "it has gone on for a while"
    assert start_kind(made) == "warm"
    assert counts[0] < counts[1] < counts[2], "it goes on where it was"


def test_a_killed_agent_is_restarted_though_instances_are_frozen(
    platform: Platform,
) -> None:
    platform.good("leaves")
    pid = await_standstill(platform)
    agent = agent_of(platform, "node1")
    assert agent
    os.kill(agent, signal.SIGKILL)
    await_true(lambda: not Path(f"/proc/{pid}").exists(), "its instances end with it")
    platform.good("leaves")
    assert agent_of(platform, "node1") not in {None, agent}


def test_an_agent_that_hangs_is_ended_with_who_stands_still(platform: Platform) -> None:
    platform.good("leaves")
    pid = await_standstill(platform)
    agent = agent_of(platform, "node1")
    assert agent
    # Nothing ends its instances or reuses its agent.
    os.kill(agent, signal.SIGSTOP)
    platform.process.kill()
    platform.process.wait()
    platform.begin("127.0.0.1:0")
    assert not Path(f"/proc/{pid}").exists()
    assert agent_of(platform, "node1") not in {None, agent}
    assert "does not end" not in platform.log()
    platform.good("leaves")


def test_a_killed_platform_leaves_no_frozen_processes(platform: Platform) -> None:
    platform.good("leaves")
    pid = await_standstill(platform)
    platform.process.kill()
    platform.process.wait()
    await_true(lambda: not Path(f"/proc/{pid}").exists(), "its instances end with it")
    platform.begin("127.0.0.1:0")
    assert start_kind(platform.good("leaves")) == "cold"


def test_one_that_is_killed_while_it_stands_still_fails_one_call_at_most(
    platform: Platform,
) -> None:
    platform.good("leaves")
    pid = await_standstill(platform)
    os.kill(pid, signal.SIGKILL)
    # By cgroup v1 it dies when it goes on, and may have the call by then.
    assert platform.call("leaves").status in {200, 502}
    platform.good("leaves")
    await_true(lambda: not Path(f"/proc/{pid}").exists(), "it ends")
