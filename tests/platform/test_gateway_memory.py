"""What calls with large arguments or results take in the gateway: about as much as these have.

As trees of values, arguments of 1 MiB took 150 MiB for as long as the call waited.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import Platform, await_true, open_place, serving

from farfork.demo.command import Farfork

CALLS = 20
MIB = 1 << 20
# Of trees, this document makes the largest.
LARGE = '{"a":[' + ",".join(['{"":0}'] * 149_000) + "]}"
# Each call its arguments, once more while it is sent, and the buffers of its connection.
MOST_MIB = 3 * CALLS
SLEEPS = (
    "import time\ndef main(args):\n    time.sleep(float(args.get('sleep', 3)))\n    return {}\n"
)


@pytest.fixture
def platform(farfork: Farfork) -> Iterator[Platform]:
    """Return a platform with room for four instances, so that most calls wait."""
    options = ["--nodes", "1", "--node-memory", "400M"]
    with open_place() as place, serving(farfork, place / "state", *options) as platform:
        yield platform


def rss_mib(platform: Platform) -> int:
    """Return the resident memory of the gateway."""
    return resident_mib(platform, "VmRSS")


def resident_mib(platform: Platform, figure: str) -> int:
    """Return a figure of the gateway's memory: what is resident, or the most that was."""
    status = Path(f"/proc/{platform.process.pid}/status").read_text()
    found = re.search(rf"{figure}:\s+(\d+) kB", status)
    assert found
    return int(found[1]) >> 10


def at_once(ask: Callable[[int], int]) -> list[int]:
    with ThreadPoolExecutor(CALLS) as pool:
        return list(pool.map(ask, range(CALLS)))


def test_large_arguments_take_what_they_have(platform: Platform) -> None:
    assert platform.deploy("sleeps", SLEEPS, memory=64).status == 200
    platform.good("sleeps", sleep=0)
    before = rss_mib(platform)
    key = platform.authorization()
    path = "/api/v1/namespaces/_/actions/sleeps?blocking=false"
    assert set(at_once(lambda _: platform.raw("POST", path, LARGE, key).status)) == {202}
    grown = rss_mib(platform) - before
    assert grown < MOST_MIB, f"{before} MiB, and {grown} MiB more with {CALLS} calls of 1 MiB"
    # What they took goes back, and a restart takes no more.
    platform.end()
    platform.begin("127.0.0.1:0")
    await_true(lambda: made(platform) > CALLS // 4, "accepted calls are made again")
    assert rss_mib(platform) < before + MOST_MIB
    await_true(lambda: made(platform) >= CALLS, "all are made")
    await_true(lambda: rss_mib(platform) < before + CALLS, "what they took went back")


def made(platform: Platform) -> int:
    count = platform.ask("GET", "activations?name=sleeps&count=true").body
    number: int = count["activations"] - 1
    return number


def test_parameters_of_web_actions_take_what_they_have(platform: Platform) -> None:
    value = [{"": 0}] * 120_000
    body = {
        "exec": {"kind": "python:default", "code": SLEEPS},
        "parameters": [{"key": "a", "value": value}],
        "annotations": [{"key": "web-export", "value": True}],
        "limits": {"memory": 64},
    }
    assert platform.ask("PUT", "actions/public", body).status == 200
    assert platform.raw("GET", "/api/v1/web/guest/default/public.json?sleep=0").status == 200
    before = rss_mib(platform)
    most = 0

    def ask(number: int) -> int:
        nonlocal most
        status = platform.raw("GET", "/api/v1/web/guest/default/public.json").status
        most = max(most, rss_mib(platform))
        return status

    assert set(at_once(ask)) <= {200}
    assert most - before < MOST_MIB, f"{before} MiB, and {most - before} MiB more"


RETURNS = "def main(args):\n    return {'a': [{'': 0}] * 110_000}\n"


def test_large_results_take_what_they_have(platform: Platform) -> None:
    assert platform.deploy("returns", RETURNS, memory=64).status == 200
    before = rss_mib(platform)
    path = "/api/v1/namespaces/_/actions/returns?blocking=true&result=true"
    key = platform.authorization()
    assert set(at_once(lambda _: platform.raw("POST", path, "{}", key).status)) == {200}
    most = resident_mib(platform, "VmHWM")
    assert most - before < MOST_MIB + CALLS, f"{before} MiB, and up to {most - before} MiB more"
