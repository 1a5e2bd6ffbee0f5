"""Cold-started processes of functions, and their memory."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfork.client import Client

_START_TIMEOUT_S = 120


class StartError(RuntimeError):
    """A runtime exited before it listened; the message has its last output."""


@dataclass(frozen=True)
class Runtime:
    """A running `python -m farfork.runtime`, started at `started_s` (perf_counter)."""

    process: "subprocess.Popen[str]"
    client: Client
    started_s: float


@contextmanager
def runtime(function: Path, socket: Path, *options: str) -> Iterator[Runtime]:
    """Run a function's runtime."""
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "farfork.runtime", str(function), "--socket", str(socket), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C must reach only this process, which cleans up
    )
    client = Client(str(socket), connect_timeout_s=0.001)
    try:
        yield Runtime(process, client, started_s)
    finally:
        client.close()
        process.kill()
        process.communicate()


def await_ready(started: Runtime) -> float:
    """Wait until the runtime listens; returns the milliseconds since its start."""
    while True:
        try:
            started.client.connect()
            return milliseconds_since(started.started_s)
        except ConnectionError:
            _check_alive(started)
            time.sleep(0.001)


def _check_alive(started: Runtime) -> None:
    if started.process.poll() is not None:
        assert started.process.stderr
        words = started.process.stderr.read().strip()
        raise StartError(f"cannot start the function; its last output:\n{words}")
    if time.perf_counter() - started.started_s > _START_TIMEOUT_S:
        raise StartError(
            f"cannot start the function: it did not listen within {_START_TIMEOUT_S} s"
        )


def milliseconds_since(started_s: float) -> float:
    """Return the milliseconds since `started_s` (perf_counter)."""
    return (time.perf_counter() - started_s) * 1e3


def timed_run(client: Client, args: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Call the function; returns the whole answer and the milliseconds it took."""
    started_s = time.perf_counter()
    answer = client.call("run", args=args)
    return answer, milliseconds_since(started_s)


def local_bytes(pid: int | str) -> int:
    """Return a process's anonymous memory and page tables, as `farfork ps` counts them."""
    return (_field(pid, "smaps_rollup", "Anonymous") + page_tables(pid)) << 10


def private_bytes(pid: int | str) -> int:
    """Return the private memory of a process, and its page tables."""
    return (_field(pid, "smaps_rollup", "Private_Dirty") + page_tables(pid)) << 10


def page_tables(pid: int | str) -> int:
    """Return the KiB of a process's page tables."""
    return _field(pid, "status", "VmPTE")


def _field(pid: int | str, file: str, name: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(f"/proc/{pid}/{file} has no {name}; use Linux 4.14 or later")


def threads(pid: int) -> int:
    """Return how many threads a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))
