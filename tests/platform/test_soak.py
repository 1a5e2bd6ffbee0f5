"""A platform under mixed load and faults: 15 seconds, or an hour with FARFORK_TEST_LONG."""

import http.client
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from processes import (
    agent_of,
    alive,
    containers,
    everybody,
    family,
    known,
    namespaces,
    node_of,
    traces,
)
from served import Answer, Platform, await_true, open_place, serving

from farfork.demo.command import Farfork

# By which later ones are measured; without a gateway that is killed; with one.
SPELLS_S = (450, 2250, 900) if os.environ.get("FARFORK_TEST_LONG") else (3, 6, 6)
SOAK_S = sum(SPELLS_S)
CODE = """
import secrets, time
VERSION = {version}

def main(args):
    time.sleep(args.get("sleep", 0))
    return {{"sum": sum(args["numbers"]), "version": VERSION, "token": secrets.token_hex(8)}}
"""
# Of different worth, so that some are idle, some have images and some have not.
WEIGHTS = {"often": 60, "sometimes": 30, "seldom": 8, "rare": 2}
# By calls that a function has answered before it gets an image, and one more.
IMAGE_AFTER = 17
# What a gateway may hold more than at first: connections of callers, and what it knows of calls.
# Agents: what belongs to the ghosts that wait, of which there may be more.
MOST_MORE_FDS = 64
MOST_MORE_BYTES = 48 << 20


class Soak:
    """Load on a platform, faults, and what came of both."""

    def __init__(self, platform: Platform, seed: int) -> None:
        self.platform = platform
        self.seed = seed
        self.versions = dict.fromkeys(WEIGHTS, 1)
        self.deploying = {name: threading.Lock() for name in WEIGHTS}
        self.answers: Counter[int] = Counter()
        self.kinds: Counter[str] = Counter()
        self.tokens: list[str] = []
        self.accepted: list[str] = []
        self.faults = 0
        self.end = 0.0
        # Gateways that were killed, requests that went with them, and whether one serves.
        self.kills = 0
        self.cut = 0
        self.serves = threading.Event()
        self.serves.set()

    def ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Ask the platform; nothing is the answer if it was killed meanwhile."""
        kills = self.kills
        self.serves.wait()
        try:
            return question()
        except (OSError, http.client.HTTPException):
            if kills == self.kills and self.serves.is_set():
                raise
            self.cut += 1
            self.serves.wait()
            return None

    def deploy(self, name: str, version: int) -> None:
        """Make a function, or another version of it."""
        code = CODE.format(version=version)
        with self.deploying[name]:
            while not (answer := self.ask(lambda: self.platform.deploy(name, code, memory=128))):
                pass
            assert answer.status == 200, answer
            self.versions[name] = version

    def run(self, seconds: float, *, kills_gateways: bool = False) -> None:
        """Run all workers for this long; raise the first unexpected error."""
        self.end = time.monotonic() + seconds
        workers: list[Callable[[random.Random], None]] = [
            self.call_one, self.call_one, self.call_many, self.leave_calls,
            self.change, self.kill, self.talk_nonsense,
        ]  # fmt: skip
        if kills_gateways:
            workers.append(self.kill_gateway)
        with ThreadPoolExecutor(len(workers)) as pool:
            seeded = [random.Random(f"{self.seed} {index}") for index in range(len(workers))]
            working = [pool.submit(self.work, *one) for one in zip(workers, seeded, strict=True)]
            for one in working:
                one.result()

    def spell(self, seconds: float, *, kills_gateways: bool = False) -> tuple[int, int, int]:
        """Run, find everything in order, and end all instances, each of which has descriptors here.

        Return what the gateway holds after that, and how many descriptors agents do.
        """
        for name in WEIGHTS:
            self.deploy(name, 1)
        self.have_clones(random.Random(f"{self.seed} clones"))
        self.run(seconds, kills_gateways=kills_gateways)
        platform = self.platform

        def is_made(one: str) -> bool:
            return platform.ask("GET", f"activations/{one}").status == 200

        def is_tidy() -> bool:
            there, known = counts(platform.farfork)
            return there == known > 0

        await_true(lambda: all(map(is_made, self.accepted[-50:])), "accepted calls are made")
        lost = [one for one in self.accepted if not is_made(one)]
        assert not lost, f"{len(lost)} of {len(self.accepted)} accepted calls are lost"
        await_true(is_tidy, f"containers are known: {counts(platform.farfork)}")
        for name in WEIGHTS:
            assert platform.ask("DELETE", f"actions/{name}").status == 200
        await_true(lambda: not platform.instances(), "instances end with their functions")
        agents = [agent_of(platform, node) for node in ("node1", "node2")]
        assert all(agents), agents
        of_agents = sum(held(agent)[0] for agent in agents if agent)
        return (*held(platform.process.pid), of_agents)

    def work(self, step: Callable[[random.Random], None], chance: random.Random) -> None:
        """Do something again and again."""
        try:
            while time.monotonic() < self.end:
                step(chance)
        finally:
            # If one fails, the others need not go on.
            self.end = 0.0 if time.monotonic() < self.end else self.end

    def call(self, chance: random.Random, name: str, **args: Any) -> None:
        """Call a function, and hold its answer against what it has to be."""
        numbers = [chance.randrange(1 << 40) for _ in range(chance.randrange(20))]
        before = self.versions[name]
        answer = self.ask(lambda: self.platform.call(name, numbers=numbers, **args))
        if not answer:
            return None
        self.answers[answer.status] += 1
        if answer.status != 200:
            return self.told_of_an_end(answer)
        result = answer.body["response"]["result"]
        assert result["sum"] == sum(numbers), answer
        # A version that is there when a call comes, or a later one, makes it.
        assert result["version"] >= before, answer
        self.tokens.append(result["token"])
        (kind,) = [one["value"] for one in answer.body["annotations"] if one["key"] == "startKind"]
        self.kinds[kind] += 1

    def told_of_an_end(self, answer: Answer) -> None:
        """Expect the words for an instance that was killed in a call."""
        assert answer.status == 502, (answer, self.platform.log()[-9999:])
        assert "exited unexpectedly" in answer.body["response"]["result"]["error"], answer

    def call_one(self, chance: random.Random) -> None:
        """Call what is called often, mostly."""
        (name,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        self.call(chance, name, sleep=chance.choice([0, 0, 0.01, 0.1]))
        time.sleep(chance.expovariate(20))

    def call_many(self, chance: random.Random) -> None:
        """Call one function many times at once, after a pause."""
        time.sleep(chance.uniform(0.5, 4))
        name, count = chance.choice(list(WEIGHTS)), chance.randrange(2, 10)
        with ThreadPoolExecutor(count) as pool:
            seeded = [random.Random(chance.random()) for _ in range(count)]
            for done in [pool.submit(self.call, one, name, sleep=0.3) for one in seeded]:
                done.result()

    def leave_calls(self, chance: random.Random) -> None:
        """Have calls made without waiting for them."""
        path = f"actions/{chance.choice(list(WEIGHTS))}"
        answer = self.ask(lambda: self.platform.ask("POST", path, {"numbers": []}))
        if answer:
            assert answer.status == 202, answer
            self.accepted.append(answer.body["activationId"])
        time.sleep(chance.uniform(0.05, 0.4))

    def have_clones(self, chance: random.Random) -> None:
        """Call a function until it has an image, then many times at once.

        What comes after may be too short for that, or deploy another version each time.
        """
        for _ in range(IMAGE_AFTER):
            self.call(chance, "often")
        with ThreadPoolExecutor(8) as pool:
            seeded = [random.Random(chance.random()) for _ in range(8)]
            for done in [pool.submit(self.call, one, "often", sleep=0.3) for one in seeded]:
                done.result()

    def change(self, chance: random.Random) -> None:
        """Deploy another version."""
        time.sleep(chance.uniform(4, 12))
        name = chance.choice(list(WEIGHTS))
        self.deploy(name, self.versions[name] + 1)

    def kill(self, chance: random.Random) -> None:
        """Kill an instance, the init of a ghost that waits or is used, or the agent of a node."""
        time.sleep(chance.uniform(3, 9))
        match chance.choices(["instance", "init", "agent"], [50, 30, 20]):
            case ["instance"]:
                pids = [one["pid"] for one in self.platform.instances()]
            case ["init"]:
                ghosts = self.platform.farfork.json("ghost", "list")
                pids = [one["init_pid"] for one in ghosts]
            case _:
                pids = [agent_of(self.platform, chance.choice(["node1", "node2"])) or 0]
        pid = chance.choice(pids) if pids else 0
        # Only the platform's own processes, in any case.
        if any(pid in node_of(self.platform, node) for node in ("node1", "node2")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.faults += 1

    def kill_gateway(self, chance: random.Random) -> None:
        """Kill the gateway, with the store that it has open, and start another after a while."""
        time.sleep(chance.uniform(4, 12))
        with ThreadPoolExecutor(1) as pool:
            # So that there is one that is cut off.
            asking = pool.submit(self.call, chance, "often", sleep=5)
            time.sleep(0.5)
            # From here on, new requests wait, and running ones are cut off.
            self.serves.clear()
            self.kills += 1
            try:
                self.platform.process.kill()
                self.platform.process.wait()
                time.sleep(chance.uniform(0, 2))
                self.platform.begin(self.platform.address)
            finally:
                # No call hangs, and refused ones are reported.
                self.serves.set()
            asking.result()

    def talk_nonsense(self, chance: random.Random) -> None:
        """Ask for what is not, in ways that are none."""
        time.sleep(chance.uniform(0.2, 1))
        path = "/api/v1/namespaces/_/actions"
        match chance.randrange(4):
            case 0:
                self.refused(lambda: self.platform.call("nobody"), {404})
            case 1:
                self.refused(lambda: self.platform.raw("GET", path), {401})
            case 2:
                content = "{" * 100
                self.refused(
                    lambda: self.platform.raw("POST", f"{path}/often", content), {400, 401}
                )
            case _:
                # A client that announces a large body and disconnects.
                self.serves.wait()
                with suppress(ConnectionError):
                    connection = http.client.HTTPConnection(self.platform.address, timeout=10)
                    connection.putrequest("POST", f"{path}/often")
                    connection.putheader("Content-Length", "1000000")
                    connection.endheaders(b"{")
                    connection.close()

    def refused(self, question: Callable[[], Answer], statuses: set[int]) -> None:
        """Expect an error of the caller's."""
        answer = self.ask(question)
        assert answer is None or answer.status in statuses, answer


def held(pid: int) -> tuple[int, int]:
    """Return the descriptors and the bytes of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), int(line.split()[1]) << 10


def counts(farfork: Farfork) -> tuple[int, int]:
    """Return how many containers' cgroups there are, and how many ghosts, clones in them or not."""
    return len(containers(farfork)), len(farfork.json("ghost", "list"))


def await_none(left: Callable[[], Collection[Any]], what: str) -> None:
    """Wait until nothing is left; say what is if that takes too long."""
    try:
        await_true(lambda: not left(), what)
    except AssertionError:
        pytest.fail(f"{what} are left: {left()}")


def test_a_soak_leaves_nothing(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    with ExitStack() as stack:
        farfork = stack.enter_context(pooled(tmp_path, "1G"))
        state = stack.enter_context(open_place()) / "state"
        pool = farfork.environment["FARFORK_POOL"]
        nodes = f"farfork{farfork.environment['FARFORK_RUN'].replace('/', '-')}-"
        group = Path(farfork.json("pool", "info", pool)["charged_to"]).name
        marks = [str(tmp_path), str(state), nodes, group]
        with serving(farfork, state) as platform:
            soak = Soak(platform, seed)
            first, second, third = SPELLS_S
            at_first = soak.spell(first)
            later = [soak.spell(second), soak.spell(third, kills_gateways=True)]
            print(soak.answers, soak.kinds, soak.faults, at_first, later)
            print("gateways killed:", soak.kills, "requests cut off:", soak.cut)
            for name in WEIGHTS:
                soak.deploy(name, 1)
                platform.good(name, numbers=[1])
            all_of_it, own = family(platform.process.pid), containers(farfork)
            # Agents may be children of a gateway that was killed.
            all_of_it |= node_of(platform, "node1") | node_of(platform, "node2")
            processes = known(all_of_it)
            theirs = namespaces(all_of_it) - namespaces({os.getpid()})
            assert len(platform.instances()) >= len(WEIGHTS)
            assert own, "nothing has a container"
            seen = traces(marks)
            assert all(any(mark in line for line in seen) for mark in (nodes, group)), seen
            platform.process.send_signal(signal.SIGTERM)
            assert platform.process.wait(60) == 0, platform.log()

        # Agents of a killed gateway are not children of this process.
        await_none(lambda: alive(processes), "processes")
        await_none(lambda: theirs & namespaces(everybody()), "namespaces")
        assert theirs, "nothing has namespaces of its own"
        assert not own & containers()
        assert str(tmp_path / "run") not in Path("/proc/self/mounts").read_text()
        # What a killed agent was just writing is found, and given back.
        assert farfork.do("pool", "check", pool).endswith("the pool is sound\n")
    await_none(lambda: traces(marks), "cgroups or mounts")
    assert soak.answers[200] > 5 * SOAK_S, soak.answers
    # An instance that is killed takes one call with it, an agent all those of its node.
    assert soak.answers[502] <= 20 * soak.faults, (soak.answers, soak.faults)
    assert soak.faults > SOAK_S / 20
    assert soak.kills > SOAK_S / 120
    assert soak.cut > 0
    # Whether ghosts with images pay depends on how often, and how fast, instances start.
    assert set(soak.kinds) - {"ghost"} == {"cold", "warm", "clone"}, soak.kinds
    assert len(set(soak.tokens)) == len(soak.tokens), "two clones have drawn the same"
    for fds, memory, of_agents in later:
        assert fds <= at_first[0] + MOST_MORE_FDS, (at_first, later)
        assert of_agents <= at_first[2] + MOST_MORE_FDS, (at_first, later)
        assert memory <= at_first[1] + MOST_MORE_BYTES, (at_first, later)
