"""The live platform of `bench/calibrate.py`: starts it, calls it, replays traces on it."""

import base64
import csv
import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate_group import Group, counting

PATIENCE_S = 60.0
SAMPLE_S = 0.25
GOOD = 200
# Calls at the same time: more wait in this program.
MOST_CALLS = 64
POOL = "1G"

BALLAST = '''
"""Memory of 40 MB, and 10 ms of work on a part of it."""
import time

data = bytearray(40 << 20)
for page in range(0, len(data), 4096):
    data[page] = 1


def main(args):
    end = time.perf_counter() + 0.01
    total = 0
    while time.perf_counter() < end:
        total += sum(data[:4096])
    return {"total": total > 0}
'''


def functions(root: Path) -> dict[str, str]:
    """Return names and code of the functions."""
    code = {name: (root / f"functions/{name}/main.py").read_text() for name in ("float", "hello")}
    return {**code, "ballast": BALLAST}


@dataclass(frozen=True)
class Call:
    """A call that has ended."""

    function: str
    start: str
    took_us: int
    is_well: bool
    # Processor time of the platform and all that it has started, if it was asked for and is known.
    busy_us: int | None = None


class Platform:
    """A platform that serves."""

    def __init__(self, address: str, key: str, group: Group | None) -> None:
        self.address, self.group = address, group
        authorization = base64.b64encode(key.strip().encode()).decode()
        self.headers = {"Authorization": f"Basic {authorization}"}

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        try:
            content = None if body is None else json.dumps(body)
            headers = {**self.headers, "Content-Type": "application/json"}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def deploy(self, name: str, code: str) -> None:
        """Make an action."""
        path = f"/api/v1/namespaces/_/actions/{name}?overwrite=true"
        status, answer = self._ask("PUT", path, {"exec": {"kind": "python:default", "code": code}})
        if status != GOOD:
            raise RuntimeError(f"cannot deploy {name}: status {status}: {answer}")

    def call(self, name: str) -> Call:
        """Call a function, and wait for its activation."""
        begun = time.monotonic()
        path = f"/api/v1/namespaces/_/actions/{name}?blocking=true"
        try:
            status, answer = self._ask("POST", path, {})
        except OSError:
            status, answer = 0, {}
        took_us = round((time.monotonic() - begun) * 1e6)
        notes = {note["key"]: note["value"] for note in answer.get("annotations", [])}
        return Call(name, notes.get("startKind", ""), took_us, status == GOOD)

    def used_us(self) -> int | None:
        """Return the processor time of the platform and what it has started, in µs, if known."""
        return None if self.group is None else self.group.used_us()

    def counted_call(self, name: str) -> Call:
        """Call a function, and count the processor time that this takes."""
        before = self.used_us()
        call = self.call(name)
        after = self.used_us()
        busy_us = None if before is None or after is None else after - before
        return Call(name, call.start, call.took_us, call.is_well, busy_us)

    def call_together(self, name: str, count: int) -> list[Call]:
        """Call a function several times at once."""
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(self.call, [name] * count))

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the platform."""
        status, answer = self._ask("GET", "/dashboard/snapshot")
        if status != GOOD:
            raise RuntimeError(f"cannot get the state of the platform: status {status}")
        return dict(answer)

    def function(self, name: str) -> dict[str, Any]:
        """Return the state of a function: `instances` and `local_bytes`."""
        # The memory of instances is measured from time to time.
        time.sleep(1.5)
        seen = self.snapshot()["functions"][f"guest/{name}"]
        kinds = ("busy", "idle")
        return {**seen, "instances": sum(seen.get(kind, 0) for kind in kinds)}

    def await_image(self, name: str) -> None:
        """Call a function until it has an image."""
        deadline = time.monotonic() + PATIENCE_S
        while self.snapshot()["functions"][f"guest/{name}"]["image"] != "ready":
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} has no image after {PATIENCE_S:.0f} s")
            self.call(name)

    def replay(self, arrivals: list[tuple[str, int]]) -> dict[str, Any]:
        """Call functions when they are due, whether others have been answered or not."""
        begun = time.monotonic()
        is_over = threading.Event()
        near: list[tuple[float, int]] = []

        def sample() -> None:
            while not is_over.wait(SAMPLE_S):
                nodes = self.snapshot()["nodes"].values()
                bytes_now = sum(node["local_bytes"] for node in nodes)
                near.append((time.monotonic() - begun, bytes_now))

        def due(arrival: tuple[str, int]) -> Call:
            name, at_us = arrival
            late_s = time.monotonic() - begun - at_us / 1e6
            call = self.call(name)
            # What this program is late counts as if the platform were.
            return Call(name, call.start, call.took_us + round(max(late_s, 0) * 1e6), call.is_well)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            with ThreadPoolExecutor(MOST_CALLS) as pool:
                waiting = []
                for arrival in arrivals:
                    time.sleep(max(begun + arrival[1] / 1e6 - time.monotonic(), 0))
                    waiting.append(pool.submit(due, arrival))
                calls = [one.result() for one in waiting]
        finally:
            is_over.set()
            sampler.join()
        return figures(calls, near)


def figures(calls: list[Call], near: list[tuple[float, int]]) -> dict[str, Any]:
    """Return what the simulator reports of a run, of a live one."""
    took = sorted(call.took_us for call in calls if call.is_well)
    if not took or not near:
        raise RuntimeError(f"none of {len(calls)} calls succeeded, or the state was never sampled")

    def rank(percent: int) -> int:
        return took[max(-(-len(took) * percent // 100) - 1, 0)]

    def count(*kinds: str) -> int:
        return sum(call.is_well and call.start in kinds for call in calls)

    by_function: dict[str, dict[str, int]] = {}
    for call in calls:
        kinds = by_function.setdefault(call.function, {})
        kinds[call.start] = kinds.get(call.start, 0) + call.is_well
    return {
        "by_function": by_function,
        "calls": len(calls),
        "failed": len(calls) - len(took),
        "p50_us": rank(50),
        "p99_us": rank(99),
        "cold": count("cold"),
        "clone": count("clone", "ghost"),
        "warm": count("warm"),
        "near_mean_bytes": sum(size for _, size in near) / len(near),
        "near_max_bytes": max(size for _, size in near),
        "near": near,
    }


def near_of(path: Path) -> list[tuple[float, float]]:
    """Return near memory over time of a simulated run: seconds and bytes."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        return [(int(row["begin_us"]) / 1e6, float(row["near_bytes_mean"])) for row in rows]


@contextmanager
def serving(binary: Path, place: Path, arguments: list[str]) -> Iterator[Platform]:
    """Serve on a new state and a new pool while the context lasts."""
    number = len(list(place.glob("platform-*")))
    home = place / f"platform-{number}"
    state, pool, said = home / "state", home / "pool", home / "said"
    state.mkdir(parents=True)
    for directory in (home, state):
        directory.chmod(0o711)
    environment = {**os.environ, "FARFORK_RUN": str(home / "run")}
    create = [str(binary), "pool", "create", str(pool), "--size", POOL]
    subprocess.run(create, env=environment, check=True, stdout=subprocess.DEVNULL)
    command = [str(binary), "serve", "--pool", str(pool), "--state", str(state)]
    command += ["--listen", "127.0.0.1:0", *arguments]
    with counting() as group:
        entered = command if group is None else group.entering(command)
        with said.open("wb") as out, (home / "log").open("wb") as log:
            process = subprocess.Popen(
                entered, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=log
            )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (address := said.read_text().strip().removeprefix("http://")):
                if process.poll() is not None or time.monotonic() > deadline:
                    words = (home / "log").read_text().splitlines()[-1:] or ["its log is empty"]
                    raise RuntimeError(f"cannot start the platform: {words[0]}")
                time.sleep(0.05)
            yield Platform(address, (state / "guest.key").read_text(), group)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()
                subprocess.run(
                    [str(binary), "pool", "destroy", str(pool)], env=environment, check=False
                )
