"""Reports of benchmarks as Markdown."""

from typing import Any

STARTS = {
    "cold": "cold start",
    "local-fork": "local fork",
    "clone": "clone",
    "clone-copy": "clone, all pages copied before it runs",
    "clone-moa": "clone, pages copied when touched",
    "warm": "warm, back to back",
    "warm-idle-10ms": "warm, idle 10 ms",
    "criu": "CRIU restore",
}
COLUMNS = [
    "request to first instruction",
    "request to response",
    "warm call after it",
    "excess of first call",
    "local memory after one call",
]

PHASES = [
    "mappings",
    "request to first instruction",
    "restore phase: to the init",
    "restore phase: container",
    "restore phase: process",
    "restore phase: memory",
    "restore phase: state and threads",
    "restore phase: leaving",
]


def markdown(report: dict[str, Any], plot: str) -> str:
    """Return the whole page; `plot` is the picture's file name."""
    lines = [f"# farfork bench {report['benchmark']}", "", machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## Goals", "", *goals(report["goals"]), ""]
    lines += ["## First calls", "", *_starts(report["rows"]), ""]
    lines += [f"![first calls, excess and local memory]({plot})", ""]
    lines += ["How each case is measured, and what is not comparable: docs/benchmarks.md.", ""]
    for note in report["notes"]:
        lines += [note, ""]
    lines += ["## Everything", "", *everything(report["rows"]), ""]
    return "\n".join(lines)


def plain(report: dict[str, Any]) -> str:
    """Return a page of goals and rows alone."""
    lines = [f"# farfork bench {report['benchmark']}", "", machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## Goals", "", *goals(report["goals"]), ""]
    lines += ["How it is measured: docs/benchmarks.md.", ""]
    lines += ["## Everything", "", *everything(report["rows"]), ""]
    return "\n".join(lines)


def features(report: dict[str, Any]) -> str:
    """Return the page with the costs of each kind of thing in a restore."""
    rows = report["rows"]
    lines = ["# farfork bench features", "", machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## One more of each kind", "", *_costs(rows), "", *report["notes"], ""]
    lines += ["## A process with many things", "", *_phases(rows), ""]
    lines += ["How it is measured: docs/benchmarks.md.", ""]
    lines += ["## Everything", "", *everything(rows), ""]
    return "\n".join(lines)


def _costs(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| one more | restore takes longer by |", "| --- | --- |"]
    costs = [row for row in rows if row["metric"] == "restore time of one more"]
    return lines + [f"| {row['case']} | {cell(row)} |" for row in costs]


def _phases(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| | median |", "| --- | --- |"]
    by_metric = {row["metric"]: row for row in rows if row["case"] == "many things"}
    listed = [by_metric[metric] for metric in PHASES if metric in by_metric]
    return lines + [f"| {row['metric']} | {cell(row)} |" for row in listed]


def show(value: float | None, unit: str) -> str:
    """Return a figure with three digits and a unit that people read easily."""
    if value is None:
        return "-"
    scales = [*_SCALES.get(unit, []), (1.0, "" if unit == "count" else unit)]
    fitting = (scale for scale in scales if abs(value) >= scale[0])
    factor, name = next(fitting, scales[-1])
    return f"{_digits(value / factor)} {name}".strip()


_SCALES = {
    "us": [(1e6, "s"), (1e3, "ms")],
    "bytes": [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")],
    "bytes/s": [(1e9, "GB/s"), (1e6, "MB/s")],
}


def _digits(value: float) -> str:
    """Three digits, or all that stand before the point."""
    whole = len(f"{abs(value):.0f}")
    return f"{value:.{max(0, 3 - whole)}f}"


def machine(report: dict[str, Any]) -> str:
    """Return the machine, in one line."""
    it = report["machine"]
    guest = f" virtual machine ({it['virtualised']})," if it["virtualised"] else ""
    return (
        f"{it['cpu']}, {it['cores']} cores,{guest} "
        f"{show(it['memory_bytes'], 'bytes')}, Linux {it['kernel']}, "
        f"transparent huge pages `{it['huge_pages']}`, "
        f"load {' '.join(str(load) for load in it['load'])} at the start; "
        f"farfork {report['version']}. Medians [95 % intervals]."
    )


def goals(judged: list[dict[str, Any]]) -> list[str]:
    """Return the table of goals."""
    lines = ["| goal | at most | is | verdict |", "| --- | --- | --- | --- |"]
    for goal in judged:
        value = _share(goal["value"])
        if goal["ci"]:
            value += f" [{', '.join(map(_share, goal['ci']))}]"
        lines.append(f"| {goal['goal']} | {goal['limit']:g} | {value} | {goal['verdict']} |")
    return lines


def _share(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.3g}" if value < 1 else _digits(value)


def _starts(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"| subject | start | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 2) + "|"]
    by_key = {(row["case"], row["metric"]): row for row in rows}
    subjects = dict.fromkeys(row["case"].split("/")[0] for row in rows)
    for subject in subjects:
        for start, words in STARTS.items():
            cells = [cell(by_key.get((f"{subject}/{start}", column))) for column in COLUMNS]
            if any(cells):
                lines.append(f"| {subject} | {words} | {' | '.join(cells)} |")
    return lines


def cell(row: dict[str, Any] | None) -> str:
    """Return a median with its interval, or the reason why it was not measured."""
    if row is None:
        return ""
    if row["n"] == 0:
        return f"not measured: {row.get('note', 'no reason given')}"
    return show(row["median"], row["unit"]) + _interval(row)


def _interval(row: dict[str, Any]) -> str:
    if row["ci_low"] is None:
        return ""
    return f" [{show(row['ci_low'], row['unit'])}, {show(row['ci_high'], row['unit'])}]"


def everything(rows: list[dict[str, Any]]) -> list[str]:
    """Return all rows as a table."""
    lines = ["| case | metric | median [95 %] | min | max | n | note |", "| --- " * 7 + "|"]
    for row in rows:
        low, high = show(row["min"], row["unit"]), show(row["max"], row["unit"])
        median = show(row["median"], row["unit"]) + _interval(row)
        cells = [row["case"], row["metric"], median, low, high, str(row["n"]), row.get("note", "")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
