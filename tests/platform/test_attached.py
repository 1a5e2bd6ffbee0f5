"""Attached ghosts of the platform."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from processes import containers
from served import Platform, annotation, await_true, deciding

DRAW = """
import secrets, time
def main(args):
    time.sleep(args.get("sleep", 0))
    return {"token": secrets.token_hex(8), "boot": time.monotonic()}
"""
# Whatever they save, it is worth it.
POLICIES = {"ghosts": {"worth_us_per_mib_hour": 0}}


def burst(platform: Platform, count: int) -> list[Any]:
    """Call as often at once."""
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(platform.good, "draw", sleep=0.5) for _ in range(count)]
        return [call.result() for call in calls]


def attached(platform: Platform) -> list[str]:
    """Return the images that ghosts have which wait."""
    ghosts = platform.farfork.json("ghost", "list")
    return [one["image"] for one in ghosts if one["state"] == "attached"]


def test_a_burst_finds_ghosts_that_have_the_image() -> None:
    with deciding(POLICIES, pool_size="256M") as platform:
        platform.deploy("draw", DRAW, memory=128)
        for _ in range(17):
            platform.good("draw")
        await_true(lambda: len(burst(platform, 3)) == 3 and attached(platform) != [], "some wait")
        made: list[Any] = []

        def has_found_one() -> bool:
            # Each has more than the one before, so that all that there are do not do.
            made.extend(burst(platform, min(4 + len(made), 16)))
            return any(annotation(one, "startKind") == "ghost" for one in made)

        await_true(has_found_one, "a call comes to a ghost that has the image")
        tokens = [one["response"]["result"]["token"] for one in made]
        assert len(set(tokens)) == len(tokens), "two clones have drawn the same"
        old = set(attached(platform))
        assert all(one.startswith("guest/draw:") for one in old), "none has the base image"
        seen = {f"farfork-{one['id']}" for one in platform.farfork.json("ghost", "list")}
        platform.deploy("draw", DRAW + "# another\n", memory=128)
        platform.good("draw")
        await_true(lambda: not old & set(attached(platform)), "those of the old version go")
    assert seen
    assert not seen & containers()
