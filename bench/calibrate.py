"""Compares the simulator with the live platform on traces that nothing else uses.

usage: bench/calibrate.py [--rounds N] [--seconds S] [--burst N] [--processors N] [--out DIRECTORY]

    profile   a platform of its own: cold starts, clones, warm calls and memory of each function,
              and the processor time that the platform and all it starts take for them
    rounds    for each seed: a new platform replays a trace, open-loop  ─► live
              farfork sim, the same trace, profiles and policies:
                starts and calls share the machine's processors         ─► simulated
                each has one of its own                                 ─► unshared
    compare   P50, P99, starts, memory: medians over rounds with 95 % intervals, one plot;
              and both as a ratio per round, which differences between traces do not widen

The platform has one node, as all of its nodes would share the processors of this machine.

Durations in a trace are drawn from the measured warm calls; arrivals are bursts of their own
seeds. Writes calibration.json, calibration.md and a plot. An interval that does not overlap is
reported, not hidden. Figures of a machine that does other work show no more than that the command
runs: its load stands in the report.
"""

import argparse
import json
import os
import platform as machine
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import calibrate_live as live
import calibrate_plot
from calibrate_compare import compared, page
from calibrate_profile import ROOT, explained_s, measured

from farfork.demo.command import find_binary

NODES, NODE_MEMORY = 1, "4G"
# No other trace of the project has these seeds.
FIRST_SEED = 900_001
# The mean gap between bursts of a function in seconds. A round of 20 s has about 190 calls: with
# fewer than 100, P99 is the longest one.
GAPS_S = {"float": 0.75, "hello": 1.25, "ballast": 2.0}
# Function, arrival and duration of each call, in microseconds.
Calls = list[tuple[str, int, int]]


def main() -> int:
    """Calibrate, and write the report."""
    parser = argparse.ArgumentParser(description="Compare the simulator with the live platform.")
    parser.add_argument("--rounds", type=int, default=7, help="traces to replay (default 7)")
    parser.add_argument("--seconds", type=float, default=20, help="length of each (default 20)")
    parser.add_argument("--burst", type=int, default=6, help="most calls of a burst (default 6)")
    count = len(os.sched_getaffinity(0))
    words = f"processors that calls share in the simulator (default: this machine's, {count})"
    parser.add_argument("--processors", type=int, default=count, help=words)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results")
    options = parser.parse_args()
    if min(options.rounds, options.burst, options.processors) < 1 or options.seconds <= 0:
        parser.error("give --rounds, --seconds, --burst and --processors above 0")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="farfork-calibrate-", dir="/run") as name:
        place = Path(name)
        place.chmod(0o711)
        profiles, warm = profiled(place)
        rounds = []
        for seed in range(FIRST_SEED, FIRST_SEED + options.rounds):
            calls = trace(seed, options, warm)
            seen = replayed(place, calls, profiles, options.processors)
            rounds.append({"seed": seed, **seen})
    report = {
        "machine": f"{machine.machine()}, {os.cpu_count()} processors, Linux {machine.release()}",
        "processors": options.processors,
        "load_before": [one["load"] for one in rounds],
        "profiles": profiles,
        "rounds": rounds,
        "compared": compared(rounds),
    }
    (options.out / "calibration.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "calibration.md").write_text(page(report))
    calibrate_plot.draw(report, options.out)
    print(page(report))
    return 0


def progress(what: str) -> None:
    """Say what is being done."""
    print(what, file=sys.stderr, flush=True)


@contextmanager
def serving(place: Path) -> Iterator[live.Platform]:
    """Serve with the default policies on a new state."""
    arguments = ["--nodes", str(NODES), "--node-memory", NODE_MEMORY, "--python", sys.executable]
    with live.serving(find_binary(), place, arguments) as platform:
        for name, code in live.functions(ROOT).items():
            platform.deploy(name, code)
        yield platform


def profiled(place: Path) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Measure each function on a platform of its own."""
    profiles, warm = [], {}
    with serving(place) as platform:
        for name in GAPS_S:
            progress(f"profiling {name}")
            seen = measured(platform, name)
            warm[name] = seen.pop("warm_us")
            ordered = sorted(warm[name])
            latency = {"p50": ordered[len(ordered) // 2], "p99": ordered[-1], "n": len(ordered)}
            cold_bytes, clone_bytes = seen["cold_bytes"], seen["clone_bytes"]
            cell = {"payload_bytes": 0, "latency_us": latency, "far_bytes": 0}
            profiles.append(
                {
                    "function": name,
                    "machine": machine.node(),
                    "modelled": False,
                    "version": "",
                    "cells": [
                        {
                            **cell,
                            "local_permille": 1000,
                            "phase_us": {kind: seen[kind] for kind in ("cold", "clone", "ghost")},
                            "processor_us": seen["processor_us"],
                            "near_bytes": cold_bytes,
                            "pool_bytes": 0,
                        },
                        {
                            **cell,
                            "local_permille": 0,
                            "near_bytes": clone_bytes,
                            "pool_bytes": cold_bytes - clone_bytes,
                        },
                    ],
                }
            )
    return profiles, warm


def trace(seed: int, options: argparse.Namespace, warm: dict[str, list[int]]) -> Calls:
    """Draw bursts: function, arrival and duration of each call, in microseconds."""
    chance = random.Random(seed)
    calls = []
    for name, gap_s in GAPS_S.items():
        at = chance.expovariate(1 / gap_s)
        while at < options.seconds:
            for _ in range(chance.randint(1, options.burst)):
                arrival = at + chance.uniform(0, 0.05)
                calls.append((name, round(arrival * 1e6), chance.choice(warm[name])))
            at += chance.expovariate(1 / gap_s)
    # Every function is called, so that every profile belongs to the trace.
    calls += [(name, 0, chance.choice(durations)) for name, durations in warm.items()]
    return sorted(calls, key=lambda call: call[1])


def replayed(
    place: Path, calls: Calls, profiles: list[dict[str, Any]], processors: int
) -> dict[str, Any]:
    """Replay one trace on a new platform and in the simulator."""
    progress(f"replaying {len(calls)} calls")
    load = os.getloadavg()[0]
    with serving(place) as platform:
        before, client_before_s = platform.used_us(), time.process_time()
        seen = platform.replay([(name, at_us) for name, at_us, _ in calls])
        after, client_s = platform.used_us(), time.process_time() - client_before_s
    known = before is not None and after is not None
    return {
        "load": load,
        "client_s": client_s,
        "platform_s": (after - before) / 1e6 if known else None,
        "explained_s": explained_s(seen["by_function"], profiles),
        "live": seen,
        "simulated": simulated(place, calls, profiles, ["--processors", str(processors)]),
        "unshared": simulated(place, calls, profiles, []),
    }


def simulated(
    place: Path, calls: Calls, profiles: list[dict[str, Any]], more: list[str]
) -> dict[str, Any]:
    """Simulate the same calls, with more options."""
    file, report = place / "trace.csv", place / "report.html"
    rows = [f"{name},{at_us},{duration_us}\n" for name, at_us, duration_us in calls]
    file.write_text("function,arrival_us,duration_us\n" + "".join(rows))
    paths = []
    for profile in profiles:
        path = place / f"{profile['function']}.json"
        path.write_text(json.dumps(profile))
        paths.append(str(path))
    options = ["--nodes", str(NODES), "--node-memory", NODE_MEMORY, "--report", str(report), *more]
    command = [str(find_binary()), "sim", "--trace", str(file), "--profile", *paths, *options]
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True)
    seen = json.loads(done.stdout)
    starts, near = seen["starts"], seen["memory_bytes"]["near"]
    return {
        "calls": seen["requests"],
        "failed": seen["failed"],
        "p50_us": seen["latency_us"]["p50"],
        "p99_us": seen["latency_us"]["p99"],
        "cold": starts["cold"],
        "clone": starts["clone"] + starts["ghost"],
        "warm": starts["warm"],
        "near_mean_bytes": near["mean"],
        "near_max_bytes": near["max"],
        "near": live.near_of(report.with_suffix(".time.csv")),
    }


if __name__ == "__main__":
    sys.exit(main())
