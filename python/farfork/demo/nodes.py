"""Emulated nodes: agents in PID, mount and network namespaces of their own.

They share the pool with everybody else, and nothing that is a node's own.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farfork.demo.command import Farfork

_JOIN_TIMEOUT_S = 20
_NAMESPACES = ("unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc")


class NodeError(RuntimeError):
    """An agent did not join the pool; the message names it."""


@contextmanager
def emulated_nodes(farfork: Farfork, names: list[str]) -> Iterator[None]:
    """Run an agent per name until the end; each has joined the pool when this begins."""
    pool = farfork.environment["FARFORK_POOL"]
    arguments = [("node", "--name", name, "--pool", pool) for name in names]
    agents: list[subprocess.Popen[bytes]] = []
    try:
        agents.extend(farfork.popen(*call, prefix=(*_NAMESPACES, "--")) for call in arguments)
        for name, agent in zip(names, agents, strict=True):
            _await_joined(farfork, name, agent)
        yield
    finally:
        for agent in agents:
            agent.kill()  # its namespace's first process, and so all in it, goes along
            agent.wait()


def _await_joined(farfork: Farfork, name: str, agent: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    path = Path(farfork.environment["FARFORK_RUN"]) / f"{name}.sock"
    while not (_listens(path) and name in farfork.json("pool", "info")["nodes"]):
        if agent.poll() is not None:
            raise NodeError(f"starting {name}: it ended with status {agent.returncode}")
        if time.monotonic() > deadline:
            raise NodeError(f"starting {name}: not in the pool after {_JOIN_TIMEOUT_S} s")
        time.sleep(0.02)


def _listens(path: Path) -> bool:
    with (
        suppress(FileNotFoundError, ConnectionRefusedError),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe,
    ):
        probe.connect(str(path))
        return True
    return False


def end_clones(farfork: Farfork, node: str) -> None:
    """Kill every clone on a node."""
    for clone in farfork.json("ps", "--node", node):
        farfork.run("kill", clone["pid"], "--signal", 9, "--node", node)
