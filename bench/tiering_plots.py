"""The report of `farfork bench tiering` as pictures, figure by figure of CXLfork's paper."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import plots
from matplotlib.axes import Axes
from plots import Rows

STARTS = {
    "cold": "cold",
    "criu": "CRIU",
    "clone-copy": "copy",
    "clone-moa": "moa",
    "local-fork": "fork",
    "clone": "mow",
    "ghost-empty": "empty\nghost",
    "ghost-attached": "attached\nghost",
    "warm-unconnected-10ms": "warm",
}
# Many times above the others: their bars may leave the picture, and say how high they are.
TALL = {"cold", "criu", "clone-copy"}
PARTS = {
    "until the first instruction": "#2b6cb0",
    "faults and cold caches": "#d08a2e",
    "the work itself": "#7fb77e",
}
POLICIES = {
    "clone": ("mow", "#2b6cb0"),
    "clone-hybrid": ("hybrid", "#7fb77e"),
    "clone-moa": ("moa", "#d08a2e"),
    "cold": ("cold start", "#9a9a9a"),
}
MEMORY = {**POLICIES, "local-fork": ("local fork", "#805ad5"), "criu": ("CRIU", "#e53e3e")}
ROW = 4
SHARES = {"never touched": "#9a9a9a", "only read": "#2b6cb0", "written": "#d08a2e"}
COLD_PARTS = {
    "container creation": "container creation",
    "state initialisation": "excess of first call",
}
COLD_COLOURS = {"container creation": "#2b6cb0", "state initialisation": "#d08a2e"}


def draw(report: dict[str, Any], directory: Path) -> None:
    """Write every figure into the directory, as SVG and as PNG."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"] if row["n"]}
    functions = [
        case.split("/")[0]
        for case, metric in rows
        if case.endswith("/clone") and metric == "request to response"
    ]
    figures = {
        "1": _shares(rows, functions),
        "6": _containers(rows, functions),
        "7": _first_calls(rows, functions),
        "7b": _memory(rows, functions),
        "8": _policies(rows, functions),
    }
    for name, figure in figures.items():
        plots.title(figure, report)
        plots.save(figure, [directory / f"tiering-{name}.{kind}" for kind in ("svg", "png")])


def _shares(rows: Rows, functions: list[str]) -> plt.Figure:
    figure, both = plt.subplots(1, 2, figsize=(16, 4.5), layout="constrained", sharey=True)
    cases = {"after one call": "access-of-one-call", "after all calls": "access-of-all-calls"}
    for axes, (words, case) in zip(both, cases.items(), strict=True):
        parts = {
            label: [_median(rows, f"{function}/{case}", label) for function in functions]
            for label in SHARES
        }
        _stack(axes, functions, parts, SHARES)
        axes.set(title=f"pages of the parent's memory, {words}", ylabel="%", ylim=(0, 100))
    both[0].legend(fontsize=8, loc="lower right")
    return figure


def _containers(rows: Rows, functions: list[str]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(12, 4.5), layout="constrained")
    parts = {
        label: [_median(rows, f"{function}/container", metric) / 1000 for function in functions]
        for label, metric in COLD_PARTS.items()
    }
    _stack(axes, functions, parts, {label: COLD_COLOURS[label] for label in parts})
    axes.set(title="cold start in a container", ylabel="ms")
    axes.legend(fontsize=8)
    return figure


def _median(rows: Rows, case: str, metric: str) -> float:
    row = rows.get((case, metric))
    return 0.0 if row is None else row["median"]


def _stack(
    axes: Axes, names: list[str], parts: dict[str, list[float]], colours: dict[str, str]
) -> None:
    below = [0.0] * len(names)
    for label, values in parts.items():
        axes.bar(names, values, 0.7, bottom=below, color=colours[label], label=label)
        below = [a + b for a, b in zip(below, values, strict=True)]
    axes.tick_params(axis="x", rotation=30)
    axes.grid(axis="y", alpha=0.3)


def _first_calls(rows: Rows, functions: list[str]) -> plt.Figure:
    lines = -(-len(functions) // ROW)
    figure, grid = plt.subplots(
        lines, ROW, figsize=(5 * ROW, 3.2 * lines), layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(functions) :]:
        axes.set_visible(False)
    for axes, function in zip(grid.flat, functions, strict=False):
        _breakdown(axes, rows, function)
    grid.flat[0].legend(fontsize=8, loc="upper right")
    return figure


def _breakdown(axes: Axes, rows: Rows, function: str) -> None:
    shown = {
        start: parts
        for start in STARTS
        if (parts := _parts(rows, f"{function}/{start}")) is not None
    }
    top = 1.25 * max((sum(parts) for start, parts in shown.items() if start not in TALL), default=1)
    for at, parts in enumerate(shown.values()):
        below = 0.0
        for (label, colour), part in zip(PARTS.items(), parts, strict=True):
            axes.bar(at, part, 0.7, bottom=below, color=colour, label=label if at == 0 else "")
            below += part
        if below > top:
            axes.text(at, top * 0.97, f"{below:.0f}", ha="center", va="top", fontsize=8)
    axes.set(title=function, ylabel="ms", ylim=(0, top))
    axes.set_xticks(range(len(shown)), [STARTS[start] for start in shown], fontsize=7)
    axes.grid(axis="y", alpha=0.3)


def _parts(rows: Rows, case: str) -> list[float] | None:
    """Return the parts of a first call in ms. Faults and caches include unknown parts."""

    def of(metric: str) -> float | None:
        row = rows.get((case, metric))
        return None if row is None else row["median"] / 1000

    whole, warm = of("request to response"), of("warm call after it")
    if whole is None:
        return None
    restore = of("request to first instruction") or 0.0
    work = min(whole - restore, whole if warm is None else warm)
    return [restore, max(0.0, whole - restore - work), max(0.0, work)]


def _memory(rows: Rows, functions: list[str]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(14, 4.5), layout="constrained")
    starts = ["criu", "clone-moa", "clone-hybrid", "clone", "local-fork"]
    width = 0.8 / len(starts)
    for index, start in enumerate(starts):
        label, colour = MEMORY[start]
        for at, function in enumerate(functions):
            metric = "local memory after one call"
            row, cold = rows.get((f"{function}/{start}", metric)), rows[f"{function}/cold", metric]
            if row is None:
                continue
            share = 100 * row["median"] / cold["median"]
            offset = (index - (len(starts) - 1) / 2) * width
            axes.bar(at + offset, share, width, color=colour, label=label)
            label = ""
    axes.axhline(100, color="#9a9a9a", linewidth=1)
    axes.set(title="local memory after one call, against a cold start", ylabel="%")
    axes.set_xticks(range(len(functions)), functions)
    axes.legend(fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    return figure


def _policies(rows: Rows, functions: list[str]) -> plt.Figure:
    figure, all_axes = plt.subplots(3, 1, figsize=(14, 11), layout="constrained")
    starts = ["clone", "clone-hybrid", "clone-moa"]
    panels = [
        plots.Panel("first call", "request to response", starts, "ms", 1e-3),
        plots.Panel("warm call", "warm call after it", starts, "ms", 1e-3),
        plots.Panel("local memory", "local memory after one call", [*starts, "cold"], "MB", 1e-6),
    ]
    for axes, panel in zip(all_axes, panels, strict=True):
        plots.bars(axes, panel, POLICIES, rows, functions)
    return figure
