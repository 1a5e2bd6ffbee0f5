"""Reports of benchmarks as pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

STARTS = {
    "cold": ("cold start", "#9a9a9a"),
    "local-fork": ("local fork", "#d08a2e"),
    "clone": ("clone", "#2b6cb0"),
    "warm-idle-10ms": ("warm, idle 10 ms", "#7fb77e"),
    "warm": ("warm, back to back", "#2f855a"),
}
Rows = dict[tuple[str, str], dict[str, Any]]


@dataclass
class Panel:
    """One of the plots beside each other: a metric by subject and start."""

    title: str
    metric: str
    starts: list[str]
    unit: str
    factor: float


PANELS = [
    Panel("request to response, first call", "request to response", list(STARTS), "ms", 1e-3),
    Panel(
        "excess of the first call over a warm one",
        "excess of first call",
        ["local-fork", "clone"],
        "ms",
        1e-3,
    ),
    Panel(
        "local memory after one call",
        "local memory after one call",
        ["cold", "local-fork", "clone"],
        "MB",
        1e-6,
    ),
]


def draw(report: dict[str, Any], paths: list[Path]) -> None:
    """Write the picture of a report to each path, in the format its name says."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"] if row["n"]}
    subjects = list(dict.fromkeys(case.split("/")[0] for case, _ in rows))
    figure, all_axes = plt.subplots(1, len(PANELS), figsize=(16, 5), layout="constrained")
    for axes, panel in zip(all_axes, PANELS, strict=True):
        bars(axes, panel, STARTS, rows, subjects)
    title(figure, report)
    save(figure, paths)


def title(figure: plt.Figure, report: dict[str, Any]) -> None:
    """Write the machine above a picture."""
    machine = report["machine"]
    figure.suptitle(
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; farfork "
        f"{report['version']}; medians with 95 % intervals"
        + (" (quick run)" if report["quick"] else ""),
        fontsize=9,
    )


def save(figure: plt.Figure, paths: list[Path]) -> None:
    """Write a picture to each path, in the format its name says."""
    for path in paths:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def bars(
    axes: Axes,
    panel: Panel,
    starts: dict[str, tuple[str, str]],
    rows: Rows,
    subjects: list[str],
) -> None:
    """Draw a panel: a group of bars for each subject, one for each start of the panel."""
    width = 0.8 / len(panel.starts)
    for index, start in enumerate(panel.starts):
        label, colour = starts[start]
        offset = (index - (len(panel.starts) - 1) / 2) * width
        for at, subject in enumerate(subjects):
            row = rows.get((f"{subject}/{start}", panel.metric))
            if row is None or row["median"] <= 0:  # no place on a logarithmic axis
                continue
            value, errors = row["median"] * panel.factor, _errors(row, panel.factor)
            axes.bar(at + offset, value, width, yerr=errors, color=colour, label=label)
            label = ""
    axes.set(title=panel.title, ylabel=panel.unit, yscale="log")
    axes.set_xticks(range(len(subjects)), subjects, rotation=30, ha="right")
    axes.set_ylim(top=axes.get_ylim()[1] * 10)  # room for the legend
    axes.legend(fontsize=8, ncols=2, loc="upper right")
    axes.grid(axis="y", alpha=0.3)


def _errors(row: dict[str, Any], factor: float) -> list[list[float]]:
    median = row["median"]
    low = median if row["ci_low"] is None else max(row["ci_low"], median / 100)
    high = median if row["ci_high"] is None else row["ci_high"]
    return [[(median - low) * factor], [(high - median) * factor]]
