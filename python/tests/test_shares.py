"""Shares of near memory of the platform's instances, which change while they run."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from served import Platform, annotation, await_true, deciding

# No call touches the state.
WAIT = """
import time
STATE = bytearray(b"x" * (16 << 20))

def main(args):
    time.sleep(args["ms"] / 1000)
    return {"last": STATE[-1] if args["ms"] > 99 else None}
"""
# Calls may take four times as long as with all memory near; the first share that is tried is 400.
POLICIES = {
    "checkpoint": {"policy": "after-calls", "calls": 4},
    "share": {
        "policy": "adaptive",
        "tolerance_permille": 3000,
        "learn_calls": 4,
        "least_calls": 2,
        "step_permille": 600,
    },
}
FAST, SLOW = 50, 900


def pair(platform: Platform, ms: int) -> list[Any]:
    """Call twice at once."""
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(platform.good, "wait", ms=ms) for _ in range(2)]
        return [call.result()["response"]["result"] for call in calls]


def clones(platform: Platform) -> dict[int, dict[str, Any]]:
    """Return the running clones that have a share of near memory."""
    listed = platform.instances()
    return {one["pid"]: one for one in listed if one.get("local_permille") is not None}


def test_a_clone_that_is_too_slow_gets_more_near_memory() -> None:
    with deciding(POLICIES, pool_size="256M") as platform:
        platform.deploy("wait", WAIT, memory=128)
        fast = [platform.good("wait", ms=FAST)["duration"] for _ in range(5)]
        # On a busy machine calls take longer than they wait.
        slow = max(SLOW, 6 * max(fast[1:]))
        await_true(lambda: bool(pair(platform, FAST)) and clones(platform) != {}, "a clone starts")
        before = clones(platform)
        assert {one["local_permille"] for one in before.values()} == {400}, before
        raised: list[int] = []

        def is_raised() -> bool:
            assert pair(platform, slow) == [{"last": ord("x")}] * 2
            now = clones(platform)
            raised[:] = [pid for pid in before if now[pid]["local_permille"] == 1000]
            return raised != []

        await_true(is_raised, "the share of a clone that runs is raised")
        after = clones(platform)
        grown = [after[pid]["near_bytes"] - before[pid]["near_bytes"] for pid in raised]
        assert min(grown) > 4 << 20, (before, after)
        assert annotation(platform.good("wait", ms=FAST), "startKind") == "warm"
        path = platform.state / "decisions.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        chosen = [line["choice"] for line in lines if line.get("question") == "share"]
        assert (chosen[0], chosen[-1]) == (400, 1000), chosen
        assert "decisions replayed, 0 of them differ" in platform.farfork.do("replay", str(path))
