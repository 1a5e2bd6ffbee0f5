"""The report of `farfork bench latency` as Markdown."""

from typing import Any

import table

Row = dict[str, Any]
Rows = dict[tuple[str, str], Row]

POLICIES = ["mow", "hybrid", "moa"]
LARGE, SMALL = "64 MiB cache", "4 MiB cache"
LATENCIES = [100, 200, 300, 391]
OVERLAPS = {"one miss at a time": "1", "four misses at a time": "4"}
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
        lines += [*_times(rows, call), ""]
    lines += ["![calls by the latency of the pool](latency.svg)", ""]
    lines += ["## What calls read in the pool (emulated)", "", *_counts(rows), ""]
    lines += ["How it is modelled, and what is not in it: docs/benchmarks.md.", ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def functions(rows: Rows) -> list[str]:
    """Return the functions that were looked at."""
    return list(dict.fromkeys(case.split("/")[0] for case, _ in rows))


def _times(rows: Rows, call: str) -> list[str]:
    columns = [(LARGE, latency, overlap) for latency in LATENCIES for overlap in OVERLAPS]
    # Of local memory, what overlaps is measured already.
    columns = [column for column in columns if column[1:] != (LATENCIES[0], list(OVERLAPS)[1])]
    columns += [(SMALL, LATENCIES[-1], overlap) for overlap in OVERLAPS]
    heads = [
        f"{latency} ns"
        + (f", overlap {OVERLAPS[overlap]}" if latency > LATENCIES[0] else "")
        + (f", {cache}" if cache == SMALL else "")
        for cache, latency, overlap in columns
    ]
    lines = [f"| function | policy | {' | '.join(heads)} |", "| --- " * (len(heads) + 2) + "|"]
    for function in functions(rows):
        for policy in POLICIES:
            cells = [
                table.cell(
                    rows.get(
                        (
                            f"{function}/{policy}/{cache}/pool of {latency} ns",
                            f"{call} call / local fork's, {overlap}",
                        )
                    )
                )
                for cache, latency, overlap in columns
            ]
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
