"""A pool, two emulated nodes and an agent of this machine, for tests of the real restore."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfork.client import Client
from farfork.demo.command import Farfork, MissingError, find_binary
from farfork.demo.nodes import emulated_nodes, end_clones, plain_node
from farfork.demo.runtimes import Runtime, await_ready, runtime

LOCAL = "local"
NODES = ["node1", "node2"]
POOL_SIZE = "2G"


def why_not() -> str | None:
    """Return why nothing can be cloned here; None if it can."""
    if os.geteuid() != 0:
        return "cloning needs root: it mounts a pool and makes namespaces"
    try:
        find_binary()
    except MissingError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Parent:
    """A process that was checkpointed, and goes on."""

    runtime: Runtime
    image: str
    listen_fd: int

    @property
    def client(self) -> Client:
        """The client of its runtime."""
        return self.runtime.client


@dataclass(frozen=True)
class Clone:
    """A detached clone and what `farfork restore` said of it."""

    node: str
    pid: int
    client: Client
    said: dict[str, Any]


class Bed:
    """Where tests checkpoint and clone; `tidy` after each."""

    def __init__(self, farfork: Farfork, place: Path) -> None:
        self.farfork = farfork
        self._place = place
        self._parents = ExitStack()
        self._clients: list[Client] = []
        self._made = 0

    def parent(self, function: Path, *options: str) -> Parent:
        """Start a function, prepare and checkpoint it."""
        started = self.start(function, *options)
        listen_fd = started.client.prepare()["listen_fd"]
        image = f"test/{function.stem}-{self._next()}"
        self.farfork.json("checkpoint", "--pid", started.process.pid, "--name", image)
        return Parent(started, image, listen_fd)

    def start(self, function: Path, *options: str) -> Runtime:
        """Start a function the slow way."""
        socket = self._place / f"runtime-{self._next()}.sock"
        started = self._parents.enter_context(runtime(function, socket, *options))
        await_ready(started)
        return started

    def restore_call(self, image: str, listen_fd: int, *options: object) -> tuple[str, list[Any]]:
        """Return the path of the clone's socket (with %i) and the arguments that start it."""
        path = f"{self._place}/clone-{self._next()}-%i.sock"
        return path, ["restore", *options, "--inherit-fd", f"{listen_fd}=listen:{path}", image]

    def clones(
        self,
        image: str,
        listen_fd: int,
        count: int = 1,
        node: str = LOCAL,
        more: Sequence[object] = (),
    ) -> list[Clone]:
        """Start detached clones, with more options."""
        options = ("--node", node, "--detach", "--count", count, *more)
        path, call = self.restore_call(image, listen_fd, *options)
        return [
            Clone(node, said["pid"], self.client(path.replace("%i", str(index))), said)
            for index, said in enumerate(self.farfork.json(*call))
        ]

    @contextmanager
    def foreground(self, call: list[Any]) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a call beside the test."""
        with tempfile.TemporaryFile("w+") as words:
            process = self.farfork.popen(*call, words=words)
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def client(self, path: str) -> Client:
        """Return a client that is closed after the test."""
        self._clients.append(Client(path))
        return self._clients[-1]

    def tidy(self) -> None:
        """End what a test started, and remove its images."""
        for client in self._clients:
            client.close()
        for node in [LOCAL, *NODES]:
            end_clones(self.farfork, node)
        self._parents.close()
        for image in self.farfork.json("images", "list"):
            self.farfork.do("images", "rm", image["name"])

    def _next(self) -> int:
        self._made += 1
        return self._made


@contextmanager
def pooled(place: Path, size: str) -> Iterator[Farfork]:
    """Run farfork on a pool of its own, until the end."""
    farfork = Farfork(place / "run")
    pool = place / "pool"
    farfork.do("pool", "create", pool, "--size", size)
    try:
        farfork.use_pool(pool)
        yield farfork
    finally:
        farfork.do("pool", "destroy", pool)


@contextmanager
def make_bed() -> Iterator[Bed]:
    """Make the pool and start the nodes, until the end."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farfork-bed-")))
        farfork = stack.enter_context(pooled(place, POOL_SIZE))
        stack.enter_context(emulated_nodes(farfork, NODES))
        stack.enter_context(plain_node(farfork, LOCAL))
        yield Bed(farfork, place)
