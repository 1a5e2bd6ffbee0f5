"""The report of the simulator in a browser."""

import json
import subprocess
from pathlib import Path

import pytest
from browser import browsing, why_no_browser

from farfork.demo.command import find_binary

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "crates/platform/sim/tests/data/sample.csv"
CHARTS = 12
DRAWN = """
return [...document.querySelectorAll("figure")].map((figure) => {
    const svg = figure.querySelector("svg");
    const lines = [...svg.querySelectorAll("polyline")];
    const edge = svg.getBoundingClientRect();
    return {
        title: figure.querySelector("h2").textContent,
        lines: lines.length,
        isInside: lines.every((line) => {
            const box = line.getBoundingClientRect();
            return box.width > 100 && box.left >= edge.left && box.right <= edge.right + 1
                && box.top >= edge.top - 1 && box.bottom <= edge.bottom + 1;
        }),
        hasHeight: lines.some((line) => line.getBoundingClientRect().height > 20),
    };
});
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Make a report of two policies side by side."""
    policies = []
    for name, window_ms in (("short <b>", 1_000), ("long", 600_000)):
        path = tmp_path / f"{name}.json"
        keep_alive = {"policy": "by-pressure", "long_ms": window_ms}
        path.write_text(json.dumps({"keep_alive": keep_alive}))
        policies.append(str(path))
    report = tmp_path / "report.html"
    command = [str(find_binary()), "sim", "--trace", str(SAMPLE), "--policies", *policies]
    subprocess.run([*command, "--report", str(report)], check=True, capture_output=True)
    return report


@pytest.mark.skipif(why_no_browser() is not None, reason=why_no_browser() or "")
def test_a_report_is_drawn_without_errors_and_without_a_network(page: Path) -> None:
    with browsing() as browser:
        browser.get(page.as_uri())
        drawn = browser.execute_script(DRAWN)
        assert len(drawn) == CHARTS
        for chart in drawn:
            assert chart["lines"] == 2, chart
            assert chart["isInside"], chart
        # No ghosts and no far memory are simulated: lines at zero.
        flat = {chart["title"] for chart in drawn if not chart["hasHeight"]}
        assert flat == {
            "Far memory (most within each interval)",
            "Calls with a clone in a ghost, per second",
        }
        heads = browser.execute_script(
            "const heads = document.querySelectorAll('#figures tr:first-child th');"
            "return [...heads].map((head) => head.textContent)"
        )
        assert heads == ["", "short <b>", "long"]
        requests = "return performance.getEntriesByType('resource').map((one) => one.name)"
        assert browser.execute_script(requests) == []
        assert browser.get_log("browser") == []
        width = "return document.documentElement.scrollWidth <= window.innerWidth"
        assert browser.execute_script(width) is True
