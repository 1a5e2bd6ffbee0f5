"""The report of `farfork bench latency` as a picture: figure 9 of CXLfork's paper."""

from pathlib import Path
from typing import Any

import latency_page
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import plots

OVERLAP = latency_page.OVERLAPS[0]


def draw(report: dict[str, Any], directory: Path) -> None:
    """Write the figure into the directory, as SVG and as PNG."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"] if row["n"]}
    names = latency_page.functions(rows)
    figure, grid = plt.subplots(2, 2, figsize=(16, 9), layout="constrained", squeeze=False)
    for line, call in zip(grid, ("warm", "first"), strict=True):
        for axes, policy in zip(line, ("mow", "hybrid"), strict=True):
            for index, latency in enumerate(latency_page.LATENCIES):
                cases = [
                    (
                        latency_page.case(f"{name}/{policy}", latency_page.LARGE, latency, OVERLAP),
                        f"{call} call / local fork's",
                    )
                    for name in names
                ]
                heights = [rows[case]["median"] if case in rows else 0 for case in cases]
                count = len(latency_page.LATENCIES)
                width = 0.8 / count
                places = [x + (index - (count - 1) / 2) * width for x in range(len(names))]
                axes.bar(places, heights, width, label=f"{latency} ns", color=f"C{index}")
            axes.axhline(1, color="#9a9a9a", linewidth=1)
            axes.set_xticks(range(len(names)), names)
            axes.set(title=f"{call} call, {policy}", ylabel="against a local fork's")
    grid[0][0].legend(title="modelled latency of the pool", fontsize=8)
    plots.title(figure, report)
    plots.save(figure, [directory / f"latency.{kind}" for kind in ("svg", "png")])
