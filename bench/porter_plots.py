"""The report of `farfork bench porter` as a picture: figure 10 of CXLfork's paper."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import plots
import porter_page
from matplotlib.axes import Axes

COLOURS = {
    "container-cold-start": "#4a4a4a",
    "cold-start": "#9a9a9a",
    "keep-warm": "#d08a2e",
    "full-copy": "#e53e3e",
    "migrate-on-access": "#805ad5",
    "migrate-on-write": "#7fb77e",
    "farfork": "#2b6cb0",
}
METRICS = ["P50", "P99"]
# Of a bar; those of all systems fit between two functions.
WIDTH = 0.12


def draw(report: dict[str, Any], directory: Path) -> None:
    """Write the figure into the directory, as SVG and as PNG."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"] if row["n"]}
    scenarios, functions = porter_page.scenarios(rows), porter_page.functions(rows)
    systems = [system for system in COLOURS if system in porter_page.systems(rows)]
    figure, grid = plt.subplots(
        len(scenarios),
        len(METRICS) + 1,
        figsize=(22, 3.5 * len(scenarios)),
        layout="constrained",
        squeeze=False,
    )
    for line, scenario in zip(grid, scenarios, strict=True):
        _memory(line[-1], scenario, systems, rows)
        for axes, metric in zip(line[:-1], METRICS, strict=True):
            for index, system in enumerate(systems):
                cases = [(f"{scenario}/{system}/{function}", metric) for function in functions]
                heights = [rows[case]["median"] / 1e3 if case in rows else 0 for case in cases]
                places = [x + (index - len(systems) / 2 + 0.5) * WIDTH for x in range(len(cases))]
                axes.bar(places, heights, WIDTH, label=system, color=COLOURS[system])
            axes.set_xticks(range(len(functions)), functions)
            axes.set(title=f"{metric}, {scenario}", ylabel="ms", yscale="log")
    grid[0][0].legend(fontsize=8, ncols=2)
    plots.title(figure, report)
    plots.save(figure, [directory / f"{report['benchmark']}.{kind}" for kind in ("svg", "png")])


def _memory(axes: Axes, scenario: str, systems: list[str], rows: porter_page.Rows) -> None:
    for system in systems:
        looks = porter_page.over_time(rows, scenario, system)
        seconds, gigabytes = [at for at, _ in looks], [held / 1e9 for _, held in looks]
        axes.plot(seconds, gigabytes, label=system, color=COLOURS[system])
    axes.set(title=f"local memory, {scenario}", xlabel="s", ylabel="GB")
