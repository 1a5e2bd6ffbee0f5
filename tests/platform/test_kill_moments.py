"""Platforms that lose their gateway or a node's agent at moments spread over a start."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from processes import agent_of, containers
from served import Answer, Platform, await_true, open_place, serving

MOMENTS = 100 if os.environ.get("FARFORK_TEST_LONG") else 8
# Beyond the end of a start as it was measured.
SPAN = 1.25
CODE = "def main(args): return {'twice': 2 * args['n']}"
# As many as make an image.
CALLS = 17


def spread(start_s: float) -> Iterator[tuple[int, float]]:
    for number in range(MOMENTS):
        yield number, start_s * SPAN * number / (MOMENTS - 1)


def timed(action: Callable[[], object]) -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def restart(platform: Platform) -> None:
    """Kill the gateway and start another."""
    platform.process.kill()
    platform.process.wait()
    platform.begin(platform.address)


def accept(platform: Platform, name: str, n: int) -> str:
    """Make a non-blocking call; return its id."""
    accepted = platform.ask("POST", f"actions/{name}", {"n": n})
    assert accepted.status == 202, accepted
    activation: str = accepted.body["activationId"]
    return activation


def came_of(platform: Platform, activation: str) -> Any:
    """Wait for what comes of a call, and return it."""

    def record() -> Answer:
        return platform.ask("GET", f"activations/{activation}")

    await_true(lambda: record().status == 200, f"{activation} is made")
    return record().body["response"]


def kill_while_starting(platform: Platform, name: str, n: int, after_s: float) -> None:
    """Have a call accepted, kill the gateway, and demand that the next one makes it."""
    activation = accept(platform, name, n)
    time.sleep(after_s)
    restart(platform)
    response = came_of(platform, activation)
    assert response["result"] == {"twice": 2 * n}, (response, after_s)


def has_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def serves(platform: Platform, name: str, n: int) -> bool:
    """Call a function, whose instance may have been the agent's that was killed."""
    answer = platform.call(name, n=n)
    assert answer.status in (200, 502), answer
    return answer.status == 200 and answer.body["response"]["result"] == {"twice": 2 * n}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        farfork = stack.enter_context(pooled(tmp_path, "1G"))
        state = stack.enter_context(open_place()) / "state"
        with serving(farfork, state) as platform:
            yield platform
            own = containers(farfork)
            platform.process.send_signal(signal.SIGTERM)
            assert platform.process.wait(60) == 0, platform.log()
        await_true(lambda: not own & containers(), "containers end")
        pool = farfork.environment["FARFORK_POOL"]
        # What a killed agent was just writing is found, and given back.
        assert farfork.do("pool", "check", pool).endswith("the pool is sound\n")


def test_no_accepted_call_is_lost_whenever_the_gateway_is_killed(platform: Platform) -> None:
    platform.deploy("timed", CODE)
    cold_s = timed(lambda: platform.good("timed", n=1))
    for number, after_s in spread(cold_s):
        platform.deploy(f"new{number}", CODE)
        kill_while_starting(platform, f"new{number}", number, after_s)
    # The next platform has no instance of it, but an image.
    for n in range(CALLS):
        platform.good("timed", n=n)
    restart(platform)
    clone_s = timed(lambda: platform.good("timed", n=1))
    for number, after_s in spread(clone_s):
        kill_while_starting(platform, "timed", number, after_s)


def test_every_caller_is_answered_whenever_an_agent_is_killed(platform: Platform) -> None:
    platform.deploy("timed", CODE)
    cold_s = timed(lambda: platform.good("timed", n=1))
    statuses = set()
    for number, after_s in spread(cold_s):
        name = f"new{number}"
        platform.deploy(name, CODE)
        agents = [agent_of(platform, node) for node in ("node1", "node2")]
        activation = accept(platform, name, number)
        time.sleep(after_s)
        for agent in filter(None, agents):
            os.kill(agent, signal.SIGKILL)
        # The next look for an agent must not find one that is going.
        for agent in filter(None, agents):
            await_true(partial(has_gone, agent), "an agent that was killed ends")
        statuses.add(came_of(platform, activation)["status"])
        await_true(partial(serves, platform, name, number), "the nodes come back")
    # A call is made once: what an agent takes with it has failed.
    assert statuses <= {"success", "action developer error"}, statuses
    assert "success" in statuses, statuses
