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
    "time for each call that was answered",
    "failed",
]
STARTS = [
    "cold starts",
    "clones in ghosts with the image",
    "clones in other ghosts",
    "warm calls",
]
MEMORY = ["local memory, mean", "local memory, most"]
# Where the time goes.
CAUSES = [
    "waited, mean",
    "waited, P99",
    "ran, mean",
    "calls that wait, mean",
    "instances that start, mean",
    "memory promised, mean",
    "calls wait, of the time",
    "processors not idle while calls wait",
    "processors busy",
    "processors taken away",
]


def markdown(report: dict[str, Any]) -> str:
    """Return the whole page."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"]}
    lines = [f"# farfork bench {report['benchmark']}", "", table.machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## Goals", "", *table.goals(report["goals"]), ""]
    for scenario in scenarios(rows):
        lines += [f"## {scenario}", "", *_systems(rows, scenario, LATENCIES), ""]
        for metrics in ([*STARTS, *MEMORY], CAUSES):
            lines += [*_systems(rows, scenario, metrics), ""]
    lines += [
        f"![latency of each function under each system, local memory]({report['benchmark']}.svg)",
        "",
    ]
    lines += ["How it is measured, and what is not comparable: docs/benchmarks.md.", ""]
    for note in report["notes"]:
        lines += [note, ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def scenarios(rows: Rows) -> list[str]:
    """Return the scenarios."""
    return list(dict.fromkeys(case.split("/")[0] for case, _ in rows))


def systems(rows: Rows) -> list[str]:
    """Return the systems that were measured."""
    return list(dict.fromkeys(case.split("/")[1] for case, _ in rows))


def functions(rows: Rows) -> list[str]:
    """Return the functions that were called, in the order of the alphabet."""
    parts = (case.split("/")[2:] for case, metric in rows if metric == "P99")
    return sorted({name for rest in parts for name in rest})


def over_time(rows: Rows, scenario: str, system: str) -> list[tuple[float, float]]:
    """Return seconds after the traces' beginnings, and bytes of local memory then."""
    start = f"{scenario}/{system}/after "
    looks = ((case, row) for (case, _), row in rows.items() if case.startswith(start))
    return sorted((float(case.removeprefix(start)[:-2]), row["median"]) for case, row in looks)


def _systems(rows: Rows, scenario: str, metrics: list[str]) -> list[str]:
    lines = [f"| system | {' | '.join(metrics)} |", "| --- " * (len(metrics) + 1) + "|"]
    for system in systems(rows):
        if (f"{scenario}/{system}", metrics[0]) not in rows:
            continue
        cells = [table.cell(rows.get((f"{scenario}/{system}", metric))) for metric in metrics]
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return lines
