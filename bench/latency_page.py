"""The report of `farfork bench latency` as Markdown."""

from typing import Any

import table

Row = dict[str, Any]
Rows = dict[tuple[str, str], Row]
# A cache, a latency, and the number of overlapping misses.
Column = tuple[str, int, int]

POLICIES = ["mow", "hybrid", "moa"]
LARGE, SMALL = "64 MiB cache", "4 MiB cache"
# From the slowest pool down to local memory; goals are judged by the device's.
LATENCIES = [400, 391, 300, 200, 100]
DEVICE = LATENCIES[1]
LOCAL = LATENCIES[-1]
OVERLAPS = [1, 2, 4, 8, 16]
# What the tables of latencies show: the worst, and one that is likely.
SHOWN = [1, 4]
COUNTS = [
    f"{call} call: {what}"
    for call in ("first", "warm")
    for what in ("lines of the pool that it waits for", "pages copied")
]


def markdown(report: dict[str, Any]) -> str:
    """Return the whole page."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"]}
    lines = ["# farfork bench latency", "", table.machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    for note in report["notes"]:
        lines += [note, ""]
    lines += ["## Goals", "", *table.goals(report["goals"]), ""]
    for call in ("warm", "first"):
        lines += [f"## {call.capitalize()} calls against a local fork's (modelled)", ""]
        lines += [*_times(rows, call, _by_latency()), ""]
    lines += ["![calls by the latency of the pool](latency.svg)", ""]
    for call in ("warm", "first"):
        lines += [f"## {call.capitalize()} calls by what overlaps, with {DEVICE} ns (modelled)", ""]
        lines += [*_times(rows, call, _by_overlap()), ""]
    lines += ["## What calls read in the pool (emulated)", "", *_counts(rows), ""]
    lines += ["How it is modelled, and what is not in it: docs/benchmarks.md.", ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def functions(rows: Rows) -> list[str]:
    """Return the functions that were measured."""
    return list(dict.fromkeys(case.split("/")[0] for case, _ in rows))


def case(start: str, cache: str, latency: int, overlap: int) -> str:
    """Return the case of clones that have such a pool."""
    return f"{start}/{cache}/pool of {latency} ns, overlap {overlap}"


def _by_latency() -> list[Column]:
    # For local memory, overlap makes no difference.
    local = [(LARGE, LOCAL, SHOWN[0])]
    others = [(LARGE, latency, overlap) for latency in LATENCIES[:-1] for overlap in SHOWN]
    return others + local + [(SMALL, DEVICE, overlap) for overlap in SHOWN]


def _by_overlap() -> list[Column]:
    return [(cache, DEVICE, overlap) for cache in (LARGE, SMALL) for overlap in OVERLAPS]


def _times(rows: Rows, call: str, columns: list[Column]) -> list[str]:
    heads = [
        f"{latency} ns"
        + (f", overlap {overlap}" if latency > LOCAL else "")
        + (f", {cache}" if cache == SMALL else "")
        for cache, latency, overlap in columns
    ]
    lines = [f"| function | policy | {' | '.join(heads)} |", "| --- " * (len(heads) + 2) + "|"]
    metric = f"{call} call / local fork's"
    for function in functions(rows):
        for policy in POLICIES:
            start = f"{function}/{policy}"
            cells = [table.cell(rows.get((case(start, *column), metric))) for column in columns]
            lines.append(f"| {function} | `{policy}` | {' | '.join(cells)} |")
    return lines


def _counts(rows: Rows) -> list[str]:
    lines = [
        f"| function | policy | cache | {' | '.join(COUNTS)} |",
        "| --- " * (len(COUNTS) + 3) + "|",
    ]
    for function in functions(rows):
        for policy in POLICIES:
            for cache in (LARGE, SMALL):
                found = [rows.get((f"{function}/{policy}/{cache}", count)) for count in COUNTS]
                cells = [f"{row['median']:,.0f}" if row else "" for row in found]
                lines.append(f"| {function} | `{policy}` | {cache} | {' | '.join(cells)} |")
    return lines
