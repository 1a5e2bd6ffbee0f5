"""The steps of the demonstration."""

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farfork.client import Client, compare_embeddings
from farfork.demo import forked, interrupts
from farfork.demo.command import ROOT, Farfork
from farfork.demo.nodes import emulated_nodes
from farfork.demo.progress import Progress
from farfork.demo.runtimes import Runtime, await_ready, local_bytes, runtime, threads, timed_run

IMAGE = "demo/embed"
NODES = ["node1", "node2"]
CLONES_PER_NODE = 4
FUNCTION = ROOT / "functions/embed"
WARM = {"texts": ["The first call of a process is the slowest."]}
TEXTS = [
    "A cat sits on the mat.",
    "The central bank raised interest rates on Monday.",
    "How do I reset my password?",
    "Snow fell on the mountains all night long.",
    "She plays the violin in a small orchestra.",
    "The train to Lisbon leaves at half past nine.",
    "Add two eggs and stir until smooth.",
    "Memory that is only read can be shared.",
]
REQUESTS: list[dict[str, Any]] = [{"texts": [text]} for text in TEXTS]


@dataclass
class Clone:
    """A clone, and its answer to one request."""

    node: str
    pid: int
    restore_ms: float
    answer_ms: float
    result: Any
    generation: int
    local_bytes: int = 0
    pool_bytes: int = 0


@dataclass
class Measured:
    """The results of the demonstration."""

    threads: int = 0
    cold_start_ms: float = 0
    cold_answer_ms: float = 0
    cold_local_bytes: int = 0
    warm_call_ms: float = 0
    forks: list[forked.Child] = field(default_factory=list)
    clones: list[Clone] = field(default_factory=list)
    image_bytes: int = 0
    frozen_ms: float = 0
    wrong: list[str] = field(default_factory=list)


def play(progress: Progress) -> Measured:
    """Run all steps; everything is cleaned up when this returns or raises."""
    seen = Measured()
    with ExitStack() as stack:
        place = stack.enter_context(work_directory())
        with progress.step("making a pool"):
            farfork = stack.enter_context(pool(place))
        with progress.step("warming the sample function"):
            parent = stack.enter_context(warm_parent(place))
            seen.threads = threads(parent.process.pid)
        with progress.step("starting it cold, for comparison"):
            fresh = measure_cold_start(place, seen)
        with progress.step("checkpointing the warm process"):
            listen_fd = checkpoint(farfork, parent, seen)
            stack.callback(farfork.run, "images", "rm", IMAGE)
        check(seen, "the parent after its checkpoint", parent.client.run(REQUESTS[0]), fresh[0])
        with progress.step(f"starting {len(NODES)} emulated nodes"):
            stack.enter_context(emulated_nodes(farfork, NODES))
        with progress.step(f"starting {len(REQUESTS)} clones, one request each"):
            run_clones(farfork, place, listen_fd, seen)
        with progress.step("forking a warm process locally, for comparison"):
            seen.forks = forked.measure(FUNCTION, WARM, REQUESTS)
        check_all(seen, fresh)
        interrupts.ignore()
        progress.cleaning_up()
    return seen


@contextmanager
def work_directory() -> Iterator[Path]:
    """Make a directory that is removed at the end."""
    # A failed removal must not hide the original error.
    with tempfile.TemporaryDirectory(prefix="farfork-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def pool(place: Path) -> Iterator[Farfork]:
    """Use $FARFORK_POOL, or an embedded pool that is removed at the end."""
    farfork = Farfork(place / "run")
    is_given = "FARFORK_POOL" in farfork.environment
    path = Path(farfork.json("pool", "info")["path"])  # makes an embedded pool
    farfork.use_pool(path)
    try:
        yield farfork
    finally:
        if not is_given:
            farfork.do("pool", "destroy", path)


@contextmanager
def warm_parent(place: Path) -> Iterator[Runtime]:
    """Start the function and call it once."""
    with runtime(FUNCTION, place / "parent.sock") as parent:
        await_ready(parent)
        parent.client.run(WARM)
        yield parent


def measure_cold_start(place: Path, seen: Measured) -> list[Any]:
    """Start a new process of the function; returns its answers to all requests."""
    with runtime(FUNCTION, place / "fresh.sock") as fresh:
        seen.cold_start_ms = await_ready(fresh)
        first, answer_ms = timed_run(fresh.client, REQUESTS[0])
        seen.cold_answer_ms = seen.cold_start_ms + answer_ms
        seen.cold_local_bytes = local_bytes(fresh.process.pid)
        others = [timed_run(fresh.client, request) for request in REQUESTS[1:]]
        seen.warm_call_ms = statistics.median(took_ms for _, took_ms in others)
        return [first["result"], *(answer["result"] for answer, _ in others)]


def checkpoint(farfork: Farfork, parent: Runtime, seen: Measured) -> int:
    """Checkpoint the parent, which goes on; returns the descriptor of its listening socket."""
    listen_fd = parent.client.prepare()["listen_fd"]
    made = farfork.json("checkpoint", "--pid", parent.process.pid, "--name", IMAGE)
    seen.image_bytes = made["pool_bytes"]
    seen.frozen_ms = made["frozen_us"] / 1000
    return int(listen_fd)


def run_clones(farfork: Farfork, place: Path, listen_fd: int, seen: Measured) -> None:
    """Start clones on all nodes, send each its request, then measure their memory."""
    for number, node in enumerate(NODES):
        sockets = f"{place}/{node}-%i.sock"
        inherit = ("--inherit-fd", f"{listen_fd}=listen:{sockets}", "--count", CLONES_PER_NODE)
        started = farfork.json("restore", "--node", node, "--detach", *inherit, IMAGE)
        requests = REQUESTS[number * CLONES_PER_NODE :]
        for index, (clone, request) in enumerate(zip(started, requests, strict=False)):
            seen.clones.append(call(node, clone, sockets.replace("%i", str(index)), request))
    usage = {(line["node"], line["pid"]): line for line in farfork.json("ps")}
    for clone in seen.clones:
        line = usage[clone.node, clone.pid]
        clone.local_bytes, clone.pool_bytes = line["local_bytes"], line["pool_bytes"]


def call(node: str, started: dict[str, Any], path: str, request: dict[str, Any]) -> Clone:
    """Send a clone its first request."""
    restore_ms = started["restore_us"] / 1000
    with Client(path) as client:
        answer, answer_ms = timed_run(client, request)
    return Clone(
        node,
        started["pid"],
        restore_ms,
        restore_ms + answer_ms,
        answer["result"],
        answer["generation"],
    )


def check_all(seen: Measured, fresh: list[Any]) -> None:
    """Compare the answers of clones and forks with those of the cold process."""
    for clone, expected in zip(seen.clones, fresh, strict=True):
        check(seen, f"clone {clone.pid} on {clone.node}", clone.result, expected)
        if clone.generation != 1:
            seen.wrong.append(
                f"clone {clone.pid} on {clone.node} has not detected that it is a clone"
            )
    for number, (child, expected) in enumerate(zip(seen.forks, fresh, strict=True)):
        check(seen, f"forked child {number}", child.result, expected)


def check(seen: Measured, process: str, result: Any, expected: Any) -> None:
    """Record an answer that differs from that of the cold process."""
    rest = {key: value for key, value in result.items() if key != "embeddings"}
    if rest != {key: value for key, value in expected.items() if key != "embeddings"}:
        seen.wrong.append(f"{process} answered {rest}")
    elif not compare_embeddings(result["embeddings"], expected["embeddings"]):
        seen.wrong.append(f"{process} answered other numbers than a cold process")
