"""Builds farfork, runs its benchmarks, writes tables and plots to bench/results/.

usage: bench/run.py [--quick] [NAME ...]

For each benchmark: NAME.json as `farfork bench NAME --json` prints it, NAME.md, and for all but
`features`, `gateway`, `objects`, `far`, `vm`, `seeds`, `sim` and `seeds-figures` plots as SVG and
PNG.
Every figure in them is a median with its 95 % interval.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import latency_page
import latency_plots
import plots
import porter_page
import porter_plots
import seeds_report
import table
import tiering_page
import tiering_plots

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
# The program, its benchmarks, and the plugin that QEMU loads.
PACKAGES = ["farfork-cli", "farfork-bench", "farfork-caches-qemu"]
BENCHMARKS = [
    "fork",
    "features",
    "tiering",
    "porter",
    "porter-slow-pool",
    "gateway",
    "latency",
    "objects",
    "far",
    "vm",
    "seeds",
    "sim",
    "seeds-figures",
]
# Benchmarks that are scripts, which start farfork as commands.
SCRIPTS = {"seeds-figures": ROOT / "bench/seeds_figures.py"}


def main() -> int:
    """Run what the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run benchmarks; write bench/results/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="few rounds: good for trying out only")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    program = _build()
    RESULTS.mkdir(parents=True, exist_ok=True)
    names = options.names or BENCHMARKS
    if not options.names and not (ROOT / "build/criu/command").exists():
        print("bench/run.py: without CRIU seeds-figures is left out (see setup/criu.sh)")
        names = [name for name in BENCHMARKS if name != "seeds-figures"]
    for name in names:
        report = _run(program, name, options.quick)
        _write(name, report)
    return 0


def _build() -> Path:
    subprocess.run(
        ["cargo", "build", "--release", *(f"--package={name}" for name in PACKAGES)],
        cwd=ROOT,
        check=True,
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    return target / "release/farfork"


def _run(program: Path, name: str, quick: bool) -> dict[str, Any]:
    script = SCRIPTS.get(name)
    begin = [sys.executable, script] if script else [program, "bench", name]
    command = [*begin, "--json", *(["--quick"] if quick else [])]
    environment = {**os.environ, "FARFORK_BIN": str(program)}
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"bench/run.py: the benchmark {name} failed (see above)")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _write(name: str, report: dict[str, Any]) -> None:
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
    if name == "features":
        text = table.features(report)
    elif name in ("gateway", "objects", "far", "vm", "seeds", "sim"):
        text = table.plain(report)
    elif name == "seeds-figures":
        text = seeds_report.markdown(report)
    elif name == "tiering":
        text = tiering_page.markdown(report)
        tiering_plots.draw(report, RESULTS)
    elif name == "latency":
        text = latency_page.markdown(report)
        latency_plots.draw(report, RESULTS)
    elif name in ("porter", "porter-slow-pool"):
        text = porter_page.markdown(report)
        porter_plots.draw(report, RESULTS)
    else:
        text = table.markdown(report, plot=f"{name}.svg")
        plots.draw(report, [RESULTS / f"{name}.svg", RESULTS / f"{name}.png"])
    (RESULTS / f"{name}.md").write_text(text)
    print(text.split("\n## Everything", 1)[0])
    print(f"more in {(RESULTS / name).relative_to(ROOT)}.md")


if __name__ == "__main__":
    sys.exit(main())
