"""Calls of sample functions on a platform: single ones and bursts."""

import base64
import http.client
import json
import random
import runpy
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from farfork.demo.command import ROOT

FUNCTIONS = ["hello", "float", "json", "html"]
BURST = 8
_BURST_EVERY_S = 5.0
_PAUSE_S = 0.3
_TIMEOUT_S = 60
# A function is checkpointed after its sixteenth call.
_WARMING_CALLS = 17


@dataclass(frozen=True)
class Call:
    """A call that was answered."""

    function: str
    start: str
    took_ms: float


@dataclass
class Seen:
    """The outcomes of all calls."""

    calls: list[Call] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Sample:
    """A sample function, with the right answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.file = ROOT / "functions" / name / "main.py"
        module = runpy.run_path(str(self.file))
        self._main: Callable[[dict[str, Any]], Any] = module["main"]
        self._example: Callable[[int], dict[str, Any]] = module["example"]

    def example(self, index: int) -> tuple[dict[str, Any], Any]:
        """Return arguments, and the right answer to them."""
        arguments = self._example(index)
        return arguments, self._main(arguments)


class Traffic:
    """Makes calls, and checks every answer."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._key = base64.b64encode(key.encode()).decode()
        self._lock = threading.Lock()
        self._number = 0
        self.seen = Seen()

    def call(self, sample: Sample) -> None:
        """Make one call with unique arguments."""
        with self._lock:
            self._number += 1
            arguments, expected = sample.example(self._number)
        begun = time.perf_counter()
        status, activation = self._ask(f"actions/{sample.name}?blocking=true", arguments)
        took_ms = (time.perf_counter() - begun) * 1e3
        result = activation.get("response", {}).get("result")
        annotations = {one["key"]: one["value"] for one in activation.get("annotations", [])}
        with self._lock:
            if (status, result) != (200, expected):
                self.seen.wrong.append(f"{sample.name} answered {status}: {result or activation}")
            else:
                start = str(annotations.get("startKind", "unknown"))
                self.seen.calls.append(Call(sample.name, start, took_ms))

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        headers = {"Authorization": f"Basic {self._key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
        try:
            path = f"/api/v1/namespaces/_/{path}"
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def warm(self, samples: list[Sample]) -> None:
        """Call each function until it has an image."""
        for sample in samples:
            for _ in range(_WARMING_CALLS):
                self.call(sample)

    def run(self, samples: list[Sample], seconds: float | None) -> None:
        """Call for this long, or until interrupted."""
        until = time.monotonic() + seconds if seconds is not None else float("inf")
        burst_at, turn = time.monotonic() + 1, 0
        with ThreadPoolExecutor(BURST) as callers:
            while time.monotonic() < until and not self.seen.wrong:
                if time.monotonic() >= burst_at:
                    sample = samples[turn % len(samples)]
                    for done in [callers.submit(self.call, sample) for _ in range(BURST)]:
                        done.result()
                    burst_at, turn = time.monotonic() + _BURST_EVERY_S, turn + 1
                self.call(random.choice(samples))
                time.sleep(_PAUSE_S)


def for_people(seen: Seen) -> str:
    """Return a table of calls by kind of start, with their durations."""
    lines = ["start      calls  median (ms)  slowest (ms)"]
    for start in ("cold", "clone", "ghost", "warm"):
        took = [call.took_ms for call in seen.calls if call.start == start]
        if took:
            median, slowest = statistics.median(took), max(took)
            lines.append(f"{start:<9} {len(took):>6} {median:>12.1f} {slowest:>13.1f}")
    return "\n".join(lines)
