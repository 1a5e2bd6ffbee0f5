"""`farfork serve` as its clients see it: real nodes, real clones, raw HTTP."""

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from patience import await_end
from processes import Process, agent_of, alive, cgroups, containers, family, known, node_of
from served import (
    COUNT,
    PATIENCE_S,
    POOL_SIZE,
    Answer,
    Platform,
    annotation,
    await_true,
    deciding,
    open_place,
    serving,
    start_kind,
)

from farfork.demo.command import Farfork

# The binary, on a pool of its own, and where one platform after the other keeps its state.
Lasting = tuple[Farfork, Path]


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Lasting]:
    if reason := why_not():
        pytest.skip(reason)
    with pooled(tmp_path, POOL_SIZE) as farfork, open_place() as place:
        yield farfork, place / "state"


def test_a_function_becomes_an_image_and_is_called_through_a_burst(platform: Platform) -> None:
    assert platform.deploy("burst", COUNT).status == 200
    first = platform.good("burst", name="Ada")
    assert annotation(first, "startKind") == "cold"
    assert annotation(first, "initTime") >= 200
    assert [line.split("Z ", 1)[1] for line in first["logs"]] == [
        "stdout: loaded",
        "stdout: hello Ada",
    ]
    result = first["response"]["result"]
    assert (result["name"], result["activation"]) == ("Ada", first["activationId"])
    assert result["mode"] is None, "what is the operator's is hidden from functions"
    counts = []
    for number in range(29):
        activation = platform.good("burst", name=number)
        assert annotation(activation, "startKind") == "warm"
        assert annotation(activation, "initTime") is None
        counts.append(activation["response"]["result"]["count"])
    assert counts == list(range(2, 31)), "the parent of the image goes on"
    images = platform.farfork.json("images", "list")
    assert [image["name"].split(":")[0] for image in images].count("guest/burst") == 1
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: platform.good("burst", name=n, sleep=4), range(8)))
    assert [one["response"]["result"]["name"] for one in made] == list(range(8))
    kinds = [start_kind(one) for one in made]
    # On a busy machine one call may begin after another's end.
    assert kinds.count("clone") >= 5
    assert set(kinds) == {"clone", "warm"}
    clones = [one["response"]["result"] for one in made if start_kind(one) == "clone"]
    # Made after the 16th call; and its clones load nothing.
    assert {clone["count"] for clone in clones} == {17}
    assert len({clone["network"] for clone in clones}) == len(clones)
    assert {one["node"] for one in platform.instances()} == {"node1", "node2"}
    kept = platform.ask("GET", "activations?name=burst&limit=200&docs=true").body
    assert len(kept) == 38
    assert kept[-1] == first


def test_a_call_that_takes_too_long_is_ended(platform: Platform) -> None:
    platform.deploy("late", COUNT, timeout=1000)
    platform.good("late")
    begun = time.monotonic()
    answer = platform.call("late", sleep=60)
    assert time.monotonic() - begun < 10
    assert answer.status == 502
    assert "exceeded its time limits of 1000 milliseconds" in str(answer.body["response"])
    assert platform.good("late")["response"]["result"]["count"] == 1


def test_errors_of_a_function_are_reported(platform: Platform) -> None:
    platform.deploy("wrong", COUNT)
    raised = platform.call("wrong", **{"raise": True})
    assert raised.status == 502
    assert raised.body["response"]["status"] == "action developer error"
    assert "KeyError" in raised.body["response"]["result"]["error"]
    assert any("KeyError: 'missing'" in line for line in raised.body["logs"]), raised.body["logs"]
    ended = platform.call("wrong", exit=True)
    assert (ended.status, "exited unexpectedly" in str(ended.body)) == (502, True)
    assert any("status 3" in line for line in ended.body["logs"]), ended.body["logs"]
    platform.deploy("broken", "def main(args: return")
    broken = platform.call("broken")
    assert (broken.status, "SyntaxError" in str(broken.body["response"])) == (502, True)
    platform.good("wrong")


def test_an_instance_that_is_killed_in_a_call_fails_that_call_alone(platform: Platform) -> None:
    platform.deploy("killed", COUNT)
    # With an image, its instances can be distinguished from others.
    for _ in range(17):
        platform.good("killed")

    def own() -> list[int]:
        return [
            one["pid"] for one in platform.instances() if one["image"].startswith("guest/killed")
        ]

    def is_there() -> bool:
        return len(own()) == 2

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(platform.call, "killed", sleep=3) for _ in range(3)]
        await_true(is_there, "two clones serve beside the parent")
        for pid in own():
            os.kill(pid, signal.SIGKILL)
        answers = [call.result() for call in calls]
    assert sorted(answer.status for answer in answers) == [200, 502, 502]
    for answer in answers:
        if answer.status == 502:
            assert "exited unexpectedly" in answer.body["response"]["result"]["error"]
    await_true(lambda: not own(), "they are gone")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: platform.good("killed", name=n, sleep=0.5), range(3)))


def test_a_function_that_eats_memory_ends_alone(platform: Platform) -> None:
    eats = "def main(args):\n    a = bytearray(args['mb'] << 20)\n    return {'n': len(a)}\n"
    platform.deploy("eats", eats, memory=64)
    assert platform.good("eats", mb=16)["response"]["result"]["n"] == 16 << 20
    ended = platform.call("eats", mb=256)
    assert ended.status == 502
    assert any("out of memory" in line for line in ended.body["logs"]), ended.body["logs"]
    platform.good("eats", mb=1)


def test_an_update_starts_over(platform: Platform) -> None:
    platform.deploy("new", COUNT)
    for _ in range(17):
        platform.good("new")
    assert platform.good("new")["response"]["result"]["count"] == 18
    platform.deploy("new", "def main(args):\n    return {'new': True}\n")
    made = platform.good("new")
    assert made["response"]["result"] == {"new": True}
    assert (annotation(made, "startKind"), made["version"]) == ("cold", "0.0.2")
    assert platform.ask("DELETE", "actions/new").status == 200
    assert platform.call("new").status == 404

    def images() -> list[str]:
        return [image["name"] for image in platform.farfork.json("images", "list")]

    await_true(lambda: not [one for one in images() if one.startswith("guest/new:")], "no image")


def test_a_function_with_a_descriptor_that_no_clone_can_get_is_called_without_an_image(
    platform: Platform,
) -> None:
    pipe = Path("/opt/farfork-test-pipe")
    os.mkfifo(pipe)
    try:
        code = f"""
import os
PIPE = os.open({str(pipe)!r}, os.O_RDONLY | os.O_NONBLOCK)
def main(args):
    return {{"is_open": os.fstat(PIPE).st_size == 0}}
"""
        assert platform.deploy("pipe", code).status == 200
        for _ in range(20):
            assert platform.good("pipe")["response"]["result"] == {"is_open": True}
        words = "which a clone cannot get"
        await_true(lambda: words in platform.log(), words)
        assert images_of(platform, "pipe") == []
    finally:
        pipe.unlink()


def test_a_node_that_fails_is_done_without_and_comes_back(platform: Platform) -> None:
    platform.deploy("fails", COUNT)
    for _ in range(17):
        platform.good("fails")
    agent = agent_of(platform, "node1")
    assert agent
    os.kill(agent, signal.SIGKILL)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: platform.call("fails", sleep=0.2), range(4)))
    # Calls on that node may fail, but none hangs.
    assert {answer.status for answer in answers} <= {200, 502}
    platform.good("fails")
    await_true(lambda: agent_of(platform, "node1") not in {None, agent}, "it is started again")

    def is_used() -> bool:
        # Those of before are all on the other one, and idle.
        platform.deploy("again", COUNT)
        platform.good("again")
        return "node1" in {one["node"] for one in platform.instances()}

    await_true(is_used, "it is used again")


def test_only_unknown_ghosts_are_stopped(platform: Platform) -> None:
    await_true(lambda: len(ghosts_of(platform)) >= 2, "ghosts wait on both nodes")
    platform.deploy("known", COUNT)
    platform.good("known")
    known = ghosts_of(platform)
    adrift = platform.farfork.json("ghost", "start", "--node", "node1")["id"]

    def has_gone() -> bool:
        return adrift not in ghosts_of(platform)

    # It has to be unknown for half a minute.
    await_true(has_gone, "it is stopped", within_s=3 * PATIENCE_S)
    assert known & ghosts_of(platform)
    platform.good("known")


def test_a_stopped_node_blocks_no_other_and_is_used_again(platform: Platform) -> None:
    names = [f"meanwhile-{number}" for number in range(6)]
    for name in names:
        platform.deploy(name, COUNT)
    agent = agent_of(platform, "node1")
    assert agent
    os.kill(agent, signal.SIGSTOP)
    try:
        # Each has to have an instance started, and they go to both nodes at first.
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda name: platform.good(name, sleep=1), names))
    finally:
        os.kill(agent, signal.SIGCONT)
    used: list[str] = []

    def is_used() -> bool:
        # Each is another function's first, and goes where more room is.
        used.append(f"moved-{len(used)}")
        platform.deploy(used[-1], COUNT)
        platform.good(used[-1])
        of = [one["node"] for one in platform.instances() if one["pid"] not in before]
        return "node1" in of

    before = {one["pid"] for one in platform.instances()}
    await_true(is_used, "it is used again")
    assert agent_of(platform, "node1") == agent


def agents_of(platform: Platform) -> list[int | None]:
    return [agent_of(platform, node) for node in ("node1", "node2")]


def all_of(platform: Platform) -> set[Process]:
    nodes = node_of(platform, "node1") | node_of(platform, "node2")
    return known(family(platform.process.pid) | nodes)


def end_in_order(platform: Platform) -> None:
    processes = all_of(platform)
    assert len(processes) > 10
    platform.process.send_signal(signal.SIGTERM)
    assert await_end(platform.process) == 0, platform.log()
    # The platform that has started an agent may be gone, so another process has to reap it.
    await_true(lambda: not alive(processes), "nothing of it is left")


def ghosts_of(platform: Platform) -> set[str]:
    return {ghost["id"] for ghost in platform.farfork.json("ghost", "list")}


def records(platform: Platform, ids: list[str]) -> list[Answer]:
    return [platform.ask("GET", f"activations/{one}") for one in ids]


def test_accepted_calls_survive_a_kill_and_nothing_is_left(
    lasting: Lasting, tmp_path: Path
) -> None:
    farfork, state = lasting
    with serving(farfork, state) as platform:
        platform.deploy("kept", COUNT)
        for _ in range(17):
            platform.good("kept")
        calls = [platform.ask("POST", "actions/kept", {"sleep": 5}) for _ in range(3)]
        assert [call.status for call in calls] == [202] * 3
        ids = [call.body["activationId"] for call in calls]
        await_true(lambda: len(platform.instances()) == 3, "all of them run")
        agents, ghosts = agents_of(platform), ghosts_of(platform)
        assert len(ghosts) >= len(ids), "each instance runs in one"
        own = known(one["pid"] for one in platform.instances())
        platform.process.kill()
        platform.process.wait()
        await_true(lambda: not alive(own), "instances go with it")
    with serving(farfork, state) as platform:
        assert agents_of(platform) == agents, "they have survived it"
        assert not ghosts & ghosts_of(platform), "unknown ghosts are stopped"
        await_true(lambda: {one.status for one in records(platform, ids)} == {200}, "they are made")
        made = [one.body for one in records(platform, ids)]
        assert [one["response"]["status"] for one in made] == ["success"] * 3
        assert {start_kind(one) for one in made} == {"clone"}
        ghosts |= ghosts_of(platform)
        end_in_order(platform)
    assert not {f"farfork-{one}" for one in ghosts} & containers()
    assert str(tmp_path / "run") not in Path("/proc/self/mounts").read_text()
    assert list((tmp_path / "run").glob("*.ghosts")) == []
    pool = farfork.environment["FARFORK_POOL"]
    assert farfork.do("pool", "check", pool) == "the pool is sound\n"
    journal = (state / "decisions.jsonl").read_text().splitlines()
    again = farfork.do("replay", str(state / "decisions.jsonl"))
    assert again.endswith(" decisions replayed, 0 of them differ\n"), again
    asked = {json.loads(line).get("question") for line in journal}
    assert asked >= {"placement", "checkpoint", "keep-alive", "empty-ghosts", "tiering"}


def images_of(platform: Platform, action: str) -> list[str]:
    names = [image["name"] for image in platform.farfork.json("images", "list")]
    return [name for name in names if name.startswith(f"guest/{action}:")]


def begin(platform: Platform, sleep: float) -> str:
    """Leave a call of the function "last" to the platform's only node, which has begun it."""

    def busy() -> int:
        instances = 'farfork_instances{namespace="guest",action="last",node="node1",state="busy"} '
        lines = platform.raw("GET", "/metrics").body.splitlines()
        return sum(int(line.split()[-1]) for line in lines if line.startswith(instances))

    # One that has answered is busy a little longer: it may be checkpointed.
    await_true(lambda: busy() == 0, "earlier calls are over")
    call = platform.ask("POST", "actions/last", {"sleep": sleep})
    assert call.status == 202
    await_true(lambda: busy() == 1, "it has begun")
    one: str = call.body["activationId"]
    return one


@pytest.mark.parametrize("outlive_s", [60, 5], ids=["agents-left", "agents-gone"])
def test_a_node_that_is_served_no_more_leaves_no_cgroup(lasting: Lasting, outlive_s: int) -> None:
    farfork, state = lasting
    run = farfork.environment["FARFORK_RUN"].replace("/", "-")

    def left() -> set[str]:
        return {path.name for path in cgroups(re.escape(f"farfork{run}-") + ".*")}

    outlive = ("--agents-outlive-s", str(outlive_s))
    with serving(farfork, state, "--nodes", "2", *outlive) as platform:
        await_true(lambda: len(ghosts_of(platform)) >= 2, "ghosts wait")
        processes = all_of(platform)
        platform.process.kill()
        platform.process.wait()
        if outlive_s == 5:
            await_true(lambda: not alive(processes), "agents leave by themselves")
    # Each has one for its functions in it.
    assert len(left()) == 4, left()
    with serving(farfork, state, "--nodes", "1") as platform:
        assert len(left()) == 2, left()
        platform.process.send_signal(signal.SIGTERM)
        assert await_end(platform.process) == 0, platform.log()
    assert not left()


def test_a_second_signal_waits_for_no_call_and_the_next_run_makes_it(lasting: Lasting) -> None:
    sleep_s = 6
    farfork, state = lasting
    with serving(farfork, state, "--nodes", "1") as platform:
        platform.deploy("last", COUNT)
        one = begin(platform, sleep_s)
        platform.process.send_signal(signal.SIGTERM)
        await_true(lambda: "shutting down" in platform.log(), "it has the first")
        platform.process.send_signal(signal.SIGTERM)
        assert await_end(platform.process) == 0, platform.log()
        ended_ms = time.time() * 1000
    with serving(farfork, state, "--nodes", "1") as platform:
        await_true(lambda: records(platform, [one])[0].status == 200, "it is made")
        made = records(platform, [one])[0].body
        assert made["response"]["status"] == "success"
        assert made["end"] >= ended_ms + 1000 * sleep_s, "it had ended before"


def test_shutdown_finishes_running_calls_and_cleans_up(lasting: Lasting) -> None:
    farfork, state = lasting
    with serving(farfork, state, "--nodes", "1") as platform:
        platform.deploy("last", COUNT)
        for _ in range(17):
            platform.good("last")
        one = begin(platform, 8)
        platform.process.send_signal(signal.SIGTERM)
        assert await_end(platform.process) == 0, platform.log()
        ended_ms = time.time() * 1000
    with serving(farfork, state, "--nodes", "1") as platform:
        made = platform.ask("GET", f"activations/{one}")
        assert made.status == 200, "it is not made again"
        assert made.body["end"] <= ended_ms
        # Its image stays as long as the old version has something to do.
        begin(platform, 30)
        assert len(images_of(platform, "last")) == 1
        platform.deploy("last", "def main(args):\n    return {'new': True}\n")
        assert len(images_of(platform, "last")) == 1
        platform.process.kill()
        platform.process.wait()
    with serving(farfork, state, "--nodes", "1") as platform:
        await_true(lambda: images_of(platform, "last") == [], "its version is gone")
        assert platform.good("last")["response"]["result"] == {"new": True}
        names = [image["name"] for image in platform.farfork.json("images", "list")]
        assert names != [], "the base image stays"


def test_unused_agents_exit(lasting: Lasting, tmp_path: Path) -> None:
    farfork, state = lasting
    options = ("--nodes", "2", "--agents-outlive-s", "5")
    with serving(farfork, state, *options) as platform:
        # The first that is seen may be that of the platform's own check at its start.
        ghosts: set[str] = set()

        def waits() -> bool:
            ghosts.update(ghosts_of(platform))
            return bool({f"farfork-{one}" for one in ghosts_of(platform)} & containers())

        await_true(waits, "ghosts wait, and have cgroups")
        processes = all_of(platform)
        platform.process.kill()
        platform.process.wait()
        agents = agents_of(platform)
        assert None not in agents
        await_true(lambda: not alive(processes), "they do not wait for ever")
    assert not {f"farfork-{one}" for one in ghosts} & containers()
    assert list((tmp_path / "run").glob("*.ghosts")) == []
    assert list((tmp_path / "run").glob("*.sock")) == []
    # In the place of one that hangs another is started.
    with serving(farfork, state, "--nodes", "2") as platform:
        agents = agents_of(platform)
        platform.process.kill()
        platform.process.wait()
        assert agents[0]
        os.kill(agents[0], signal.SIGSTOP)
    with serving(farfork, state, "--nodes", "2") as platform:
        now = agents_of(platform)
        assert (now[0] != agents[0], now[1] == agents[1]) == (True, True)
        old = known(agent for agent in now if agent)
        platform.process.kill()
        platform.process.wait()
    # With other settings, others are started in their place.
    with serving(farfork, state, *options) as platform:
        assert not alive(old)
        platform.deploy("goes", COUNT)
        platform.good("goes")
        end_in_order(platform)
    assert list(state.glob("*.agent")) == []


def limits_of(farfork: Farfork, node: str) -> list[str]:
    socket = Path(farfork.environment["FARFORK_RUN"]) / f"{node}.sock"
    groups = cgroups(re.escape(f"farfork{str(socket).replace('/', '-')}"))
    limits = (group / name for group in groups for name in ("memory.max", "memory.limit_in_bytes"))
    return [limit.read_text() for limit in limits if limit.exists()]


def test_another_platform_leaves_nodes_of_this_one_alone(platform: Platform) -> None:
    before = limits_of(platform.farfork, "node1")
    assert before != []
    with open_place() as place:
        call = ["--state", str(place / "state"), "--listen", "127.0.0.1:0"]
        call += ["--python", sys.executable, "--nodes", "2", "--node-memory", "1G"]
        done = platform.farfork.run("serve", *call)
    assert (done.returncode, "already serves" in done.stderr) == (1, True), done.stderr
    assert limits_of(platform.farfork, "node1") == before != ["1073741824\n"]
    platform.deploy("goes-on", COUNT)
    platform.good("goes-on")


LIMITS = """
import resource

def main(args):
    return {"files": resource.getrlimit(resource.RLIMIT_NOFILE)}
"""


def test_gateway_and_functions_have_their_limits_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard // 2, 1024), hard))
    try:
        with deciding({}) as platform:
            pid = platform.process.pid
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
            assert platform.deploy("limits", LIMITS).status == 200
            seen = platform.good("limits")["response"]["result"]["files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == [1024, 1024]


def test_policies_are_set_by_a_file() -> None:
    with deciding({"checkpoint": {"policy": "after-calls", "calls": 2}}) as platform:
        platform.deploy("soon", COUNT)
        for _ in range(2):
            platform.good("soon")

        def has_image() -> bool:
            images = platform.farfork.json("images", "list")
            return "guest/soon" in {image["name"].split(":")[0] for image in images}

        await_true(has_image, "two calls are enough")


def test_a_function_scales_from_nothing_through_a_burst_and_back() -> None:
    short = {"policy": "by-pressure", "long_ms": 1000, "short_ms": 1000}
    with deciding({"keep_alive": short}) as platform:
        platform.deploy("rests", COUNT)

        def instances() -> int:
            lines = platform.raw("GET", "/metrics").body.splitlines()
            of = 'farfork_instances{namespace="guest",action="rests"'
            return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(of))

        kinds = [start_kind(platform.good("rests")) for _ in range(17)]
        assert kinds == ["cold"] + ["warm"] * 16
        for _ in range(2):
            await_true(lambda: instances() == 0, "nothing of it is left")
            with ThreadPoolExecutor(4) as pool:
                burst = [pool.submit(platform.good, "rests", sleep=5) for _ in range(4)]
                await_true(lambda: instances() == 4, "each call has an instance")
                made = [one.result() for one in burst]
            assert {start_kind(one) for one in made} == {"clone"}
            assert {one["response"]["result"]["count"] for one in made} == {17}


def test_clones_that_run_get_local_copies_near_their_objective() -> None:
    # By the gaps between these calls, instances would end at once.
    with deciding({"keep_alive": {"policy": "by-pressure"}}) as platform:
        slo = {"annotations": [{"key": "slo-p99-ms", "value": 4000}]}
        code = {"exec": {"kind": "python:default", "code": COUNT}}
        assert platform.ask("PUT", "actions/near", code | slo).status == 200
        for _ in range(32):
            platform.good("near")

        def both(sleep: float) -> None:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda _: platform.good("near", sleep=sleep), range(2)))

        def clone() -> dict[str, Any]:
            images = ((one["image"], one) for one in platform.instances())
            (only,) = (one for image, one in images if image.startswith("guest/near"))
            return only

        both(0.5)
        assert (clone()["tiering"], clone()["promoted_bytes"]) == ("mow", 0)
        both(3.7)
        await_true(lambda: clone()["promoted_bytes"] > 1 << 20, "what it reads is local")
        both(0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--python", "/nowhere/python"], "cannot run /nowhere/python"),
        (["--listen", "192.0.2.1:80"], "cannot listen at 192.0.2.1:80"),
        (["--state", "/dev/null/state"], "/dev/null/state"),
        (["--policies", "/nowhere/policies"], "cannot read /nowhere/policies"),
        (["--policies", "{place}/policies"], "{place}/policies: unknown field `calls`"),
        (
            ["--state", "{place}/closed/state"],
            "users of functions may not traverse {place}/closed;",
        ),
    ],
)
def test_invalid_settings_are_explained(farfork: Farfork, options: list[str], words: str) -> None:
    with open_place() as place:
        (place / "closed").mkdir(0o700)
        (place / "policies").write_text('{"calls": 4}')
        given = {"--state": "{place}/state", "--python": sys.executable}
        given |= {"--listen": "127.0.0.1:0"} | dict(zip(options[::2], options[1::2], strict=True))
        call = [word.format(place=place) for pair in given.items() for word in pair]
        done = farfork.run("serve", *call)
        assert (done.returncode, words.format(place=place) in done.stderr) == (1, True), done.stderr
