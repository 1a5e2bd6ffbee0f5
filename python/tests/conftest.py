"""Starts runtimes as processes of their own and ends them after the test."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from bed import Bed, make_bed, why_not
from runtimes import Serve

from farfork.client import Client


@pytest.fixture
def write_function(tmp_path: Path) -> Callable[[str], Path]:
    def write(source: str) -> Path:
        path = tmp_path / "function.py"
        path.write_text(dedent(source))
        return path

    return write


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return `serve(function, *options)`: a client of a new runtime."""
    processes: list[subprocess.Popen[bytes]] = []
    clients: list[Client] = []

    def start(function: Path, *options: str) -> Client:
        path = str(tmp_path / f"runtime-{len(processes)}.sock")
        command = [sys.executable, "-m", "farfork.runtime", str(function), "--socket", path]
        processes.append(subprocess.Popen([*command, *options]))
        clients.append(Client(path, connect_timeout_s=20))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def made_bed() -> Iterator[Bed]:
    if reason := why_not():
        pytest.skip(reason)
    with make_bed() as bed:
        yield bed


@pytest.fixture
def bed(made_bed: Bed) -> Iterator[Bed]:
    """Return where to checkpoint and clone; nothing of it is left after the test."""
    yield made_bed
    made_bed.tidy()
