"""Compares what was live with what was simulated: medians over rounds with 95 % intervals."""

import math
import statistics
from typing import Any

# Of medians, that lie outside of their intervals.
OUTSIDE = 0.05
KINDS = ("cold", "clone", "warm")
METRICS = ("p50_us", "p99_us", *KINDS, "near_mean_bytes", "near_max_bytes")


def compared(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare medians over all rounds."""
    result = {}
    for metric in METRICS:
        sides = {
            side: interval([one[side][metric] for one in rounds]) for side in ("live", "simulated")
        }
        low = max(side[1] for side in sides.values())
        high = min(side[2] for side in sides.values())
        result[metric] = {**sides, "overlaps": low <= high}
    return result


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its interval of 95 %, or the extremes of fewer than six values."""
    ordered = sorted(values)
    count, skip = len(ordered), 0
    # Of a binomial: how likely the median lies beyond so many values at an end.
    while 2 * sum(math.comb(count, beyond) for beyond in range(skip + 2)) / 2**count <= OUTSIDE:
        skip += 1
    return statistics.median(ordered), ordered[skip], ordered[count - 1 - skip]


def page(report: dict[str, Any]) -> str:
    """Return the comparison as a table."""
    loads = ", ".join(f"{load:.1f}" for load in report["load_before"])
    calls = sum(one["live"]["calls"] for one in report["rounds"])
    failed = sum(one["live"]["failed"] for one in report["rounds"])
    lines = [
        "# Calibration of the simulator",
        "",
        f"{report['machine']}; load before each round: {loads}. {len(report['rounds'])} rounds, "
        f"{calls} calls, {failed} failed. Medians over rounds with their 95 % intervals (extremes "
        "with fewer than nine rounds). Clones in ghosts count as clones.",
        "",
        "| | live | simulated | intervals |",
        "| --- | --- | --- | --- |",
    ]
    for metric, one in report["compared"].items():
        shown = [
            f"{side[0]:,.0f} [{side[1]:,.0f}, {side[2]:,.0f}]"
            for side in (one["live"], one["simulated"])
        ]
        verdict = "overlap" if one["overlaps"] else "**do not overlap**"
        lines.append(f"| {metric} | {shown[0]} | {shown[1]} | {verdict} |")
    return "\n".join(lines) + "\n"
