"""Local fork of a warm process, to compare with: `python -m farfork.demo.forked FUNCTION`.

Reads one request a line; for each it forks, the child answers, stays until its memory has
been looked at, and ends. fork() copies the calling thread only: a child of a process with
threads goes on without them. A clone has all of them.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from farfork import identity, loader
from farfork.demo.runtimes import private_bytes

_ANSWER_TIMEOUT_S = 20


@dataclass(frozen=True)
class Child:
    """One forked child: times from the call of fork(), in the parent."""

    start_ms: float
    answer_ms: float
    private_bytes: int
    result: Any


def measure(function: Path, warm: dict[str, Any], requests: list[dict[str, Any]]) -> list[Child]:
    """Fork a process that was warmed with `warm`, once per request."""
    lines = "".join(json.dumps(request) + "\n" for request in [warm, *requests])
    done = subprocess.run(
        [sys.executable, "-m", "farfork.demo.forked", str(function)],
        input=lines,
        capture_output=True,
        text=True,
        process_group=0,
        timeout=_ANSWER_TIMEOUT_S * (len(requests) + 1),
        check=True,
    )
    return [Child(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    """Serve requests from stdin, each in a child; the first only warms this process."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    function = loader.load(sys.argv[1])
    identity.get_ready()
    requests = map(json.loads, sys.stdin)
    function.call(next(requests), "warm")
    for request in requests:
        print(json.dumps(asdict(_serve(function, request))), flush=True)


def _serve(function: loader.Function, request: dict[str, Any]) -> Child:
    answers, answer = os.pipe()
    release, hold = os.pipe()
    begun_ns = time.perf_counter_ns()
    pid = os.fork()
    if pid == 0:
        started_ns = time.perf_counter_ns()
        os.close(hold)
        _answer(function, request, started_ns, answer, release)
    os.close(answer)
    os.close(release)
    with os.fdopen(answers, "rb") as stream:
        started_ns, result = json.loads(stream.readline())
        answered_ns = time.perf_counter_ns()
        used = private_bytes(pid)
    os.close(hold)
    os.waitpid(pid, 0)
    milliseconds = [(at - begun_ns) / 1e6 for at in (started_ns, answered_ns)]
    return Child(milliseconds[0], milliseconds[1], used, result)


def _answer(
    function: loader.Function, request: dict[str, Any], started_ns: int, answer: int, release: int
) -> None:
    try:
        identity.renew()  # as a clone does
        result = function.call(request, "forked")
        os.write(answer, json.dumps([started_ns, result]).encode() + b"\n")
        os.read(release, 1)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
