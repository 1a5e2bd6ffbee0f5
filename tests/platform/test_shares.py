"""Shares of near memory of the platform's instances, which change while they run."""

import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from served import Platform, await_true, deciding

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
FAST, SLOW = 20, 900


def burst(platform: Platform, count: int, ms: int) -> list[Any]:
    """Call as often at once."""
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(platform.good, "wait", ms=ms) for _ in range(count)]
        return [call.result()["response"]["result"] for call in calls]


def clones(platform: Platform, permille: int) -> dict[int, int]:
    """Return the near bytes of running clones that have this share, by pid."""
    listed = [one for one in platform.instances() if one.get("local_permille") == permille]
    return {one["pid"]: one["near_bytes"] for one in listed}


def test_a_clone_that_is_too_slow_gets_more_near_memory() -> None:
    with deciding(POLICIES, pool_size="256M") as platform:
        platform.deploy("wait", WAIT, memory=128)
        took = [platform.good("wait", ms=FAST)["duration"] for _ in range(40)]
        # On a busy machine calls take longer than they wait.
        slow = max(SLOW, 6 * statistics.median_high(took))
        size = 3

        def has_learnt() -> bool:
            burst(platform, size, FAST)
            return bool(clones(platform, 400))

        # Where nothing was learnt yet, clones start with 1000.
        await_true(has_learnt, "a clone starts with a share of 400")
        before = clones(platform, 400)

        def is_raised() -> bool:
            assert burst(platform, size, slow) == [{"last": ord("x")}] * size
            # The share is shown before all of it is copied.
            after = clones(platform, 1000)
            grown = [after[pid] - near for pid, near in before.items() if pid in after]
            return bool(grown) and min(grown) > 4 << 20

        await_true(is_raised, "the share of a clone that runs is raised, and its near memory")
        path = platform.state / "decisions.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        chosen = [line["choice"] for line in lines if line.get("question") == "share"]
        assert 1000 in chosen[chosen.index(400) :], chosen
        assert "decisions replayed, 0 of them differ" in platform.farfork.do("replay", str(path))
