"""Figures 5b, 6 and 7 of the paper of elastic memory in kind, on synthetic traces.

usage: bench/shares.py [--out DIRECTORY] [--profiles DIRECTORY]

    profiles   four kinds of function, their slowdowns as the paper publishes them: modelled; or
               those that bench/profiles/make.py has made of real functions (docs/results/profiles)
    rates      Poisson traces of one function at ten rates ─► sweep ─► memory in all by rate
    four       a bursty trace of all four ─► fixed, dynamic, adaptive at 1, 5, 10 and 20 %

Traces are made up, and so are profiles without --profiles. With them, durations and memory are
measured, and slowdowns are modelled from cache misses.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from farfork.demo.command import find_binary

ROOT = Path(__file__).resolve().parents[1]
# Of each payload: how much slower a call is with nothing near (paper, section 3), its duration in
# milliseconds with all near, and its memory in MiB. Durations and memory are made up.
FUNCTIONS = {
    "pagerank": {1: (0.04, 40, 80), 10: (0.30, 150, 120), 100: (0.85, 900, 400)},
    "thumbnailer": {1: (0.0, 60, 60), 10: (0.01, 200, 90), 100: (0.02, 700, 200)},
    "dna": {1: (0.06, 120, 100), 10: (0.12, 400, 180), 100: (0.21, 1200, 450)},
    "recognition": {1: (3.90, 300, 350), 10: (3.60, 350, 360), 100: (3.0, 600, 420)},
}
RATES = [0.05, 0.1, 0.2, 0.4, 0.5, 0.7, 1, 2, 4, 8]
TOLERANCES = [10, 50, 100, 200]


def main() -> int:
    """Simulate, and print the tables."""
    parser = argparse.ArgumentParser(description="Shares of near memory on synthetic traces.")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results")
    parser.add_argument("--profiles", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="farfork-shares-") as name:
        place = Path(name)
        for function in FUNCTIONS:
            text = made_up(function)
            if args.profiles:
                text = json.loads((args.profiles / f"{function}.json").read_text())
            (place / f"{function}.json").write_text(json.dumps({**text, "function": function}))
        if args.profiles:
            print("Figures 3 and 4 in kind: how much slower with a share near (modelled)\n")
            print(slowdowns(place))
        print("\nFigure 5b in kind: recognition, largest payload, mean near memory in MiB\n")
        print(by_rate(place, args.out))
        print("\nFigures 6 and 7 in kind: four functions, bursts\n")
        print(by_policy(place, args.out))
    return 0


def cells_of(place: Path, function: str) -> list[dict[str, Any]]:
    """Return the cells of a function's profile."""
    cells: list[dict[str, Any]] = json.loads((place / f"{function}.json").read_text())["cells"]
    return cells


def payloads_of(place: Path, function: str) -> list[int]:
    """Return the payloads of a function's profile, in bytes."""
    return sorted({cell["payload_bytes"] for cell in cells_of(place, function)})


def slowdowns(place: Path) -> str:
    """Return how much slower each stage is with a share near, by function and payload."""
    lines = ["| function | payload | stage | all near, ms | 0.8 | 0.5 | 0 |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for function in FUNCTIONS:
        for payload in payloads_of(place, function):
            cells = [c for c in cells_of(place, function) if c["payload_bytes"] == payload]
            at = {cell["local_permille"]: cell for cell in cells}
            stages = [
                stage for stage in at[1000]["stage_us"] if stage not in ("download", "upload")
            ]
            for stage in ["call", *stages]:
                us = {
                    share: max(
                        cell["latency_us"]["p50"] if stage == "call" else cell["stage_us"][stage], 1
                    )
                    for share, cell in at.items()
                }
                row = [f"{us[share] / us[1000] - 1:+.1%}" for share in (800, 500, 0)]
                lines.append(
                    f"| {function} | {payload} | {stage} | {us[1000] / 1000:.1f} | "
                    + " | ".join(row)
                    + " |"
                )
    return "\n".join(lines)


def made_up(function: str) -> dict[str, Any]:
    """Return the made-up profile of a function."""
    cells = []
    for payload, (slow, ms, mib) in FUNCTIONS[function].items():
        for step in range(11):
            share = step / 10
            # A tenth of the memory is near in any case.
            near = int(mib * (0.1 + 0.9 * share) * (1 << 20))
            p50 = int(ms * 1000 * (1 + slow * (1 - share)))
            cells.append(
                {
                    "payload_bytes": payload << 10,
                    "local_permille": step * 100,
                    "phase_us": {"cold": 500_000},
                    "latency_us": {"p50": p50, "p99": p50, "n": 1},
                    "near_bytes": near,
                    "far_bytes": (mib << 20) - near,
                }
            )
    return {"modelled": True, "cells": cells}


def trace(path: Path, calls: list[tuple[float, str, int]]) -> None:
    """Write calls: second, function and payload."""
    rows = [f"{function},{int(at * 1e6)},,{payload}\n" for at, function, payload in calls]
    path.write_text("function,arrival_us,duration_us,payload_bytes\n" + "".join(rows))


def poisson(rate: float, seconds: float, draw: random.Random) -> list[float]:
    """Draw moments at random."""
    at, all_of_them = draw.expovariate(rate), []
    while at < seconds:
        all_of_them.append(at)
        at += draw.expovariate(rate)
    return all_of_them


def sweep(place: Path, name: str, text: str, report: Path) -> list[dict[str, Any]]:
    """Simulate a sweep."""
    (place / name).write_text(text)
    command = [str(find_binary()), "sim", "sweep", str(place / name), "--json"]
    command += ["--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return runs


def fixed(share: float) -> str:
    """Return the settings of a fixed share."""
    return f'{{policy = "fixed", local_permille = {int(share * 1000)}}}'


def by_rate(place: Path, out: Path) -> str:
    """Return memory in all by the rate of calls, for each share."""
    files, payload = [], payloads_of(place, "recognition")[-1]
    for rate in RATES:
        calls = poisson(rate, 3600, random.Random(f"rate {rate}"))
        files.append(f"rate-{rate}.csv")
        trace(place / files[-1], [(at, "recognition", payload) for at in calls])
    shares = [1, 0.8, 0.5, 0.2]
    text = f"""[base]
policy = "paper"
trace = {json.dumps(files[0])}
profile = ["recognition.json"]
[[vary]]
key = "trace"
values = {json.dumps(files)}
[[vary]]
key = "policies.share"
values = [{", ".join(fixed(share) for share in shares)}]
"""
    runs = sweep(place, "rates.toml", text, out / "shares-rates.html")
    lines = ["| calls per second | " + " | ".join(f"share {share}" for share in shares) + " |"]
    lines.append("| --- |" + " ---: |" * len(shares))
    for index, rate in enumerate(RATES):
        row = runs[index * len(shares) : (index + 1) * len(shares)]
        whole = near(row[0])
        cells = [f"{near(run):.0f} ({near(run) / whole - 1:+.0%}; {cold(run)} cold)" for run in row]
        lines.append(f"| {rate} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cold(run: dict[str, Any]) -> int:
    """Return the number of cold starts."""
    return int(run["result"]["starts"]["cold"])


def near(run: dict[str, Any], figure: str = "mean") -> float:
    """Return near memory in MiB."""
    return float(run["result"]["memory_bytes"]["near"][figure]) / (1 << 20)


def by_policy(place: Path, out: Path) -> str:
    """Return memory and slower runs, for each policy of shares."""
    draw, calls = random.Random("four"), []
    for function in FUNCTIONS:
        payloads = payloads_of(place, function)
        # A steady load, and a burst of a minute every ten.
        moments = poisson(2, 7200, draw)
        for begin in range(60, 7200, 600):
            moments += [begin + at for at in poisson(15, 60, draw)]
        calls += [(at, function, draw.choice(payloads)) for at in moments]
    trace(place / "four.csv", sorted(calls))
    tolerant = [
        f'{{policy = "{policy}", tolerance_permille = {tolerance}}}'
        for policy in ("dynamic", "adaptive")
        for tolerance in TOLERANCES
    ]
    values = [fixed(1), fixed(0.8), fixed(0.5), *tolerant]
    text = f"""[base]
policy = "paper"
trace = "four.csv"
profile = {json.dumps([f"{function}.json" for function in FUNCTIONS])}
[[vary]]
key = "policies.share"
values = [{", ".join(values)}]
"""
    runs = sweep(place, "four.toml", text, out / "shares-policies.html")
    whole = runs[0]
    lines = [
        "| share | near, median MiB | near, mean | cold | over 1 % | 5 % | 10 % | 20 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        share, result = run["set"]["policies.share"], run["result"]
        figure = share.get("tolerance_permille", share.get("local_permille"))
        unit = f"{figure / 1000}" if share["policy"] == "fixed" else f"{figure / 10:.0f} %"
        median, mean = near(run, "p50"), near(run)
        slower = result["slower_runs"]
        cells = [
            f"{share['policy']} {unit}",
            f"{median:.0f} ({median / near(whole, 'p50') - 1:+.0%})",
            f"{mean:.0f} ({mean / near(whole) - 1:+.0%})",
            str(cold(run)),
            *(
                f"{slower[f'over_{over}_percent'] / result['completed']:.0%}"
                for over in (1, 5, 10, 20)
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
