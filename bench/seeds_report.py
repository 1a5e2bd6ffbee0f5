"""The report of bench/seeds_figures.py: medians, goals, and a page with a table for each figure."""

import math
import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any

import table

SAMPLES: dict[tuple[str, str, str, str], list[float]] = {}
# By the end of a value's name: its unit, and how many of these it is.
UNITS = {
    "_ms": ("us", 1e3),
    "_kib": ("bytes", 1024.0),
    "per_s": ("1/s", 1.0),
    "seconds": ("s", 1.0),
}
NAMES = {
    "made_ms": "prepare, checkpoint or dump",
    "frozen_ms": "of which the process stands still",
    "moved_ms": "of the start: copying the files",
    "start_ms": "start, to the first line",
    "run_ms": "run, to the answer",
    "reply_ms": "start of the command to the answer",
    "memory_kib": "memory",
    "provisioned_kib": "memory before the start",
    "fetched_kib": "fetched",
    "per_s": "answers a second",
    "seconds": "all have answered after",
}
TITLES = {
    "prepare": "What prepare takes",
    "reply": "The first reply",
    "12": "Figures 4, 12 and 14: phases, and memory",
    "13": "Figures 13 and 17: throughput",
    "15": "Figure 15: pages with each",
    "16": "Figure 16: copies on access, or all before",
    "18": "Figure 18: what the parts save",
    "crowd": "Children of one seed",
}
# Of the medians, so many may lie outside of their intervals.
OUTSIDE = 0.05
COLLECTED = "collected while it stands still"
POST_COPY = "CRIU, post-copy"
NOTES = [
    "All nodes are this machine: pages come by TCP on the loopback device, each frame sealed, or "
    "by shared memory where it says shm. Names and numbers of figures are those of MITOSIS (Wei "
    "et al., OSDI '23). Every answer was that of a process that is not a clone."
]


def note(figure: str, subject: str, way: str, **values: float) -> None:
    """Keep one sample of each value."""
    for name, value in values.items():
        SAMPLES.setdefault((figure, subject, way, name), []).append(value)


def machine() -> dict[str, Any]:
    """Return what a reader needs for comparing figures."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line for line in cpuinfo.splitlines() if line.startswith("model name")), ":")
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    is_guest = " hypervisor" in cpuinfo
    return {
        "cpu": model.split(":", 1)[1].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "huge_pages": pages.split("[")[1].split("]")[0],
        "virtualised": "hypervisor not named" if is_guest else "",
    }


def interval(values: list[float]) -> list[float] | None:
    """Return the 95 % interval of the median: two of the values. Fewer than six have none."""
    count, rank, tail = len(values), None, 0.0
    for number in range(count // 2):
        tail += math.comb(count, number) / 2**count
        if 2 * tail > OUTSIDE:
            break
        rank = number
    if rank is None:
        return None
    ordered = sorted(values)
    return [ordered[rank], ordered[count - 1 - rank]]


def goal(words: str, limit: float, values: list[float]) -> dict[str, Any]:
    """Judge a median by its interval."""
    ci = interval(values)
    verdict = "undecided"
    if ci and ci[1] <= limit:
        verdict = "met"
    elif ci and ci[0] > limit:
        verdict = "missed"
    value = statistics.median(values) if values else None
    return {"goal": words, "limit": limit, "value": value, "ci": ci, "verdict": verdict}


def goals() -> list[dict[str, Any]]:
    """Judge what was measured of prepare and of first replies."""
    judged = []
    post_copy: list[float] = []
    for (figure, _, way, name), values in SAMPLES.items():
        if figure == "reply" and way == POST_COPY and name == "reply_ms":
            post_copy = values
    for (figure, subject, way, name), values in SAMPLES.items():
        if figure == "prepare" and name == f"{COLLECTED}_ms":
            judged.append(goal(f"{subject}: state {COLLECTED}, ms", 5, values))
        if figure == "reply" and way.startswith("farfork") and name == "reply_ms":
            judged.append(goal(f"{subject}, {way}: first reply, ms", 10, values))
            pairs = zip(values, post_copy, strict=bool(post_copy))
            shares = [seed / other for seed, other in pairs]
            if shares:
                judged.append(goal(f"{subject}, {way}: of CRIU's post-copy", 0.1, shares))
    return judged


def rows() -> list[dict[str, Any]]:
    """Return the medians."""
    all_rows = []
    for (figure, subject, way, name), samples in SAMPLES.items():
        end = next(end for end in UNITS if name.endswith(end))
        unit, factor = UNITS[end]
        values = [value * factor for value in samples]
        ci = interval(values)
        row = {
            "case": f"{figure}/{subject}/{way}",
            "metric": NAMES.get(name, name.removesuffix(end)),
            "unit": unit,
            "median": statistics.median(values),
            "ci_low": ci[0] if ci else None,
            "ci_high": ci[1] if ci else None,
            "min": min(values),
            "max": max(values),
            "n": len(values),
        }
        all_rows.append(row)
    return all_rows


def report(farfork: str, started: dict[str, Any], *, is_quick: bool) -> dict[str, Any]:
    """Return all of it, in the shape of a report of farfork bench."""
    said = subprocess.run([farfork, "--version"], check=True, capture_output=True, text=True)
    profile = "release" if "/release/" in farfork else "other than release"
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    notes = [*NOTES, f"Build profile of farfork: {profile}. Load at the end: {load}."]
    return {
        "benchmark": "seeds-figures",
        "quick": is_quick,
        "machine": started,
        "version": said.stdout.split()[-1],
        "goals": goals(),
        "rows": rows(),
        "notes": notes,
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the whole page."""
    lines = ["# Seeds beside MITOSIS's figures", "", table.machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    for words in report["notes"]:
        lines += [words, ""]
    lines += ["## Goals", "", *table.goals(report["goals"]), ""]
    figures = dict.fromkeys(row["case"].split("/", 1)[0] for row in report["rows"])
    for figure in figures:
        own = [row for row in report["rows"] if row["case"].split("/", 1)[0] == figure]
        lines += [f"## {TITLES[figure]}", ""]
        for metric in dict.fromkeys(row["metric"] for row in own):
            lines += [*_grid([row for row in own if row["metric"] == metric], metric), ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def _grid(own: list[dict[str, Any]], metric: str) -> list[str]:
    """Return one value of all subjects and ways."""
    by_place = {tuple(row["case"].split("/", 2)[1:]): row for row in own}
    subjects = dict.fromkeys(subject for subject, _ in by_place)
    ways = dict.fromkeys(way for _, way in by_place)
    lines = [f"| {metric} | {' | '.join(subjects)} |", "| --- " * (len(subjects) + 1) + "|"]
    for way in ways:
        cells = [table.cell(by_place.get((subject, way))) for subject in subjects]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines
