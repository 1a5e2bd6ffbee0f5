"""The report of `bench/calibrate.py` as one picture."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

SIDES = {"live": "#2b6cb0", "simulated": "#d55e00", "unshared": "#999999"}
# Titles, units and scales of the metrics, one panel each.
PANELS = [
    ("latency", ["p50_us", "p99_us"], ["P50", "P99"], "ms", 1e-3),
    ("starts", ["cold", "clone", "warm"], ["cold", "clone", "warm"], "calls", 1.0),
    ("near memory", ["near_mean_bytes", "near_max_bytes"], ["mean", "most"], "MiB", 2.0**-20),
]


def draw(report: dict[str, Any], directory: Path) -> None:
    """Write the figure into the directory, as SVG and as PNG."""
    figure, all_axes = plt.subplots(1, 4, figsize=(20, 4.5), layout="constrained")
    for axes, (title, metrics, labels, unit, scale) in zip(all_axes, PANELS, strict=False):
        for index, (side, colour) in enumerate(SIDES.items()):
            values = [report["compared"][metric][side] for metric in metrics]
            middle = [value[0] * scale for value in values]
            below = [(value[0] - value[1]) * scale for value in values]
            above = [(value[2] - value[0]) * scale for value in values]
            places = [place + (index - 1) * 0.2 for place in range(len(metrics))]
            axes.errorbar(
                places, middle, [below, above], fmt="o", capsize=5, label=side, color=colour
            )
        axes.set_xticks(range(len(metrics)), labels)
        axes.set(title=f"{title}, median and interval", ylabel=unit)
        if min(report["compared"][metric]["live"][0] for metric in metrics) > 0:
            axes.set_yscale("log")
    _memory(all_axes[-1], report)
    all_axes[0].legend()
    figure.suptitle(
        f"{report['machine']}; load before each round {report['load_before']}", fontsize=8
    )
    for end in ("svg", "png"):
        figure.savefig(directory / f"calibration.{end}")
    plt.close(figure)


def _memory(axes: Axes, report: dict[str, Any]) -> None:
    """Draw near memory over time of every round."""
    for side, colour in SIDES.items():
        for one in report["rounds"]:
            seconds, sizes = zip(*one[side]["near"], strict=True)
            mebibytes = [size / 2**20 for size in sizes]
            axes.plot(seconds, mebibytes, color=colour, alpha=0.5, linewidth=1)
    axes.set(title="near memory over time, each round", xlabel="s", ylabel="MiB")
