"""Emulated nodes: agents in PID, mount and network namespaces of their own.

They share the pool with other nodes, and nothing else.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from farfork.demo.command import CommandError, Farfork

_JOIN_TIMEOUT_S = 20
_END_TIMEOUT_S = 10
_NAMESPACES = ("unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc")


class NodeError(RuntimeError):
    """An agent did not join the pool; the message names it."""


@contextmanager
def emulated_nodes(farfork: Farfork, names: list[str]) -> Iterator[None]:
    """Run an agent per name; all have joined the pool when this yields."""
    with ExitStack() as stack:
        prefix = (*_NAMESPACES, "--")
        agents = [stack.enter_context(_agent(farfork, name, prefix)) for name in names]
        for agent in agents:
            _await_joined(farfork, agent)
        yield


@contextmanager
def plain_node(farfork: Farfork, name: str) -> Iterator[None]:
    """Run an agent in the caller's namespaces."""
    with _agent(farfork, name, ()) as agent:
        _await_joined(farfork, agent)
        yield


@dataclass(frozen=True)
class _Agent:
    name: str
    process: "subprocess.Popen[bytes]"
    words: IO[str]


@contextmanager
def _agent(farfork: Farfork, name: str, prefix: tuple[str, ...]) -> Iterator[_Agent]:
    call = ("node", "--name", name, "--pool", farfork.environment["FARFORK_POOL"])
    with tempfile.TemporaryFile("w+") as words:
        process = farfork.popen(*call, words=words, prefix=prefix)
        try:
            yield _Agent(name, process, words)
        except BaseException:
            # Raise the original error, not that of a dead agent that cannot list clones.
            with suppress(CommandError):
                end_clones(farfork, name)
            raise
        else:
            end_clones(farfork, name)
        finally:
            (_end_namespace if prefix else _end)(process)


def _await_joined(farfork: Farfork, agent: _Agent) -> None:
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    path = Path(farfork.environment["FARFORK_RUN"]) / f"{agent.name}.sock"
    while not (_listens(path) and agent.name in farfork.json("pool", "info")["nodes"]):
        if agent.process.poll() is not None:
            agent.words.seek(0)
            raise NodeError(
                f"cannot start {agent.name}: its agent exited: {agent.words.read().strip()}"
            )
        if time.monotonic() > deadline:
            raise NodeError(
                f"cannot start {agent.name}: it did not join the pool within {_JOIN_TIMEOUT_S} s"
            )
        time.sleep(0.02)


def _end(agent: "subprocess.Popen[bytes]") -> None:
    agent.kill()
    agent.wait()


def _end_namespace(agent: "subprocess.Popen[bytes]") -> None:
    """Kill the first process of its PID namespace; unshare exits when all processes there have."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    with suppress(FileNotFoundError, ProcessLookupError):
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    try:
        agent.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _end(agent)


def _listens(path: Path) -> bool:
    with (
        suppress(FileNotFoundError, ConnectionRefusedError),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe,
    ):
        probe.connect(str(path))
        return True
    return False


def end_clones(farfork: Farfork, node: str) -> None:
    """Kill every clone on a node and wait until they are gone."""
    while clones := farfork.json("ps", "--node", node):
        for clone in clones:
            farfork.run("kill", clone["pid"], "--signal", 9, "--node", node)
            farfork.run("wait", clone["pid"], "--node", node)
