"""The report of `farfork bench porter` as Markdown."""

from typing import Any

import table

Row = dict[str, Any]
Rows = dict[tuple[str, str], Row]

LATENCIES = [
    "P50",
    "P99",
    "P99, geometric mean of the functions'",
    "answered before the trace's end",
    "failed",
]
STARTS = ["cold starts", "clones", "warm calls"]
MEMORY = ["local memory, mean", "local memory, most"]


def markdown(report: dict[str, Any]) -> str:
    """Return the whole page."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"]}
    lines = [f"# farfork bench {report['benchmark']}", "", table.machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## Goals", "", *table.goals(report["goals"]), ""]
    for share in memories(rows):
        lines += [f"## {share} of the memory", "", *_systems(rows, share, LATENCIES), ""]
        lines += [*_systems(rows, share, [*STARTS, *MEMORY]), ""]
    lines += [
        f"![latency of each function under each system, local memory]({report['benchmark']}.svg)",
        "",
    ]
    lines += ["How it is measured, and what is not comparable: docs/benchmarks.md.", ""]
    for note in report["notes"]:
        lines += [note, ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def memories(rows: Rows) -> list[str]:
    """Return the amounts of memory that were measured."""
    return list(dict.fromkeys(case.split("/")[0] for case, _ in rows))


def systems(rows: Rows) -> list[str]:
    """Return the systems that were measured."""
    return list(dict.fromkeys(case.split("/")[1] for case, _ in rows))


def functions(rows: Rows) -> list[str]:
    """Return the functions that were called, in the order of the alphabet."""
    parts = (case.split("/")[2:] for case, metric in rows if metric == "P99")
    return sorted({name for rest in parts for name in rest})


def over_time(rows: Rows, share: str, system: str) -> list[tuple[float, float]]:
    """Return seconds after the traces' beginnings, and bytes of local memory then."""
    start = f"{share}/{system}/after "
    looks = ((case, row) for (case, _), row in rows.items() if case.startswith(start))
    return sorted((float(case.removeprefix(start)[:-2]), row["median"]) for case, row in looks)


def _systems(rows: Rows, share: str, metrics: list[str]) -> list[str]:
    lines = [f"| system | {' | '.join(metrics)} |", "| --- " * (len(metrics) + 1) + "|"]
    for system in systems(rows):
        cells = [table.cell(rows.get((f"{share}/{system}", metric))) for metric in metrics]
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return lines
