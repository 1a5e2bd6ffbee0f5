"""Compares what was live with what was simulated: medians over rounds with 95 % intervals."""

import math
import statistics
from typing import Any

# Of medians, that lie outside of their intervals.
OUTSIDE = 0.05
KINDS = ("cold", "clone", "warm")
SIDES = ("live", "simulated", "unshared")
METRICS = ("p50_us", "p99_us", *KINDS, "near_mean_bytes", "near_max_bytes")


def compared(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare medians over all rounds."""
    result = {}
    for metric in METRICS:
        sides = {side: interval([one[side][metric] for one in rounds]) for side in SIDES}
        result[metric] = {
            **sides,
            "overlaps": overlap(sides["live"], sides["simulated"]),
            "unshared_overlaps": overlap(sides["live"], sides["unshared"]),
            "ratio": ratio(rounds, metric, "simulated"),
            "unshared_ratio": ratio(rounds, metric, "unshared"),
        }
    return result


def ratio(
    rounds: list[dict[str, Any]], metric: str, side: str
) -> tuple[float, float, float] | None:
    """Return simulated by live figures of the same traces, where the live ones are not 0."""
    pairs = [(one[side][metric], one["live"][metric]) for one in rounds]
    ratios = [simulated / live for simulated, live in pairs if live > 0]
    return interval(ratios) if ratios else None


def overlap(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Return whether two intervals have a value in common."""
    return max(one[1], other[1]) <= min(one[2], other[2])


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
        "with fewer than nine rounds). Clones in ghosts count as clones. Simulated: starts and "
        f"calls share {report['processors']} processors; unshared: each has one of its own. Bold: "
        "the interval does not overlap with the live one. Ratios compare two runs of the same "
        "trace, where the live figure is not 0.",
        "",
        "| | live | simulated | unshared | simulated / live | unshared / live |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for metric, one in report["compared"].items():
        cells = [words(one["live"], True)]
        cells.append(words(one["simulated"], one["overlaps"]))
        cells.append(words(one["unshared"], one["unshared_overlaps"]))
        cells += [times(one["ratio"]), times(one["unshared_ratio"])]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    lines += busy(report["rounds"])
    return "\n".join(lines) + "\n"


def busy(rounds: list[dict[str, Any]]) -> list[str]:
    """Return what took the processors of the live rounds, if that is known."""
    names = ("platform_s", "explained_s", "client_s")
    known = [[one.get(name) for one in rounds] for name in names]
    if any(value is None for values in known for value in values):
        return []
    platform, explained, client = (statistics.median(values) for values in known)
    return [
        "",
        f"Processor time of a live round: the platform and what it starts {platform:.2f} s, of "
        f"which calls and starts explain {explained:.2f} s by their profiles; this client "
        f"{client:.2f} s (medians).",
    ]


def words(side: tuple[float, float, float], overlaps: bool) -> str:
    """Return a median with its interval."""
    shown = f"{side[0]:,.0f} [{side[1]:,.0f}, {side[2]:,.0f}]"
    return shown if overlaps else f"**{shown}**"


def times(ratio: tuple[float, float, float] | None) -> str:
    """Return a ratio with its interval."""
    return "" if ratio is None else f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]"
