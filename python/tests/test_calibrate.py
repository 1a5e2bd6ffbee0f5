"""The comparison of `bench/calibrate.py`; the platform is not started."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from calibrate_compare import METRICS, compared, interval, page
from calibrate_group import Group
from calibrate_live import Call, Platform, figures, near_of
from calibrate_profile import bursts, cold_starts, explained_s, processor_us, typical_busy


def test_intervals_are_the_extremes_of_few_values_and_ranks_of_many() -> None:
    assert interval([3, 1, 2]) == (2, 1, 3)
    assert interval([5]) == (5, 5, 5)
    # Of eight values without the outer ones it would be 93 %, of nine it is 96 %.
    assert interval(list(range(1, 9))) == (4.5, 1, 8)
    assert interval(list(range(1, 10))) == (5, 2, 8)
    assert interval(list(range(1, 12))) == (6, 2, 10)
    # Of 20 values, the 6th and the 15th: 95.9 % by the binomial distribution.
    assert interval(list(range(1, 21))) == (10.5, 6, 15)


def test_intervals_that_do_not_overlap_are_named() -> None:
    def one(live: float, simulated: float) -> dict[str, Any]:
        side = {"calls": 10, "failed": 1}
        values = {"live": live, "simulated": simulated, "unshared": live + 1}
        return {name: {**side, **dict.fromkeys(METRICS, one)} for name, one in values.items()}

    rounds = [one(1, 4), one(3, 6)]
    for metric in METRICS:
        assert compared(rounds)[metric] == {
            "live": (2, 1, 3),
            "simulated": (5, 4, 6),
            "unshared": (3, 2, 4),
            "overlaps": False,
            "unshared_overlaps": True,
            "ratio": (3, 2, 4),
            "unshared_ratio": (pytest.approx(5 / 3), pytest.approx(4 / 3), 2),
        }
    rounds[0]["simulated"]["p50_us"] = 3
    report = {
        "machine": "m",
        "processors": 2,
        "load_before": [0.5, 1],
        "rounds": rounds,
        "compared": compared(rounds),
    }
    assert report["compared"]["p50_us"]["overlaps"] is True
    text = page(report)
    assert "20 calls, 2 failed" in text
    assert text.count("**5 [4, 6]**") == len(METRICS) - 1
    shown = "| p50_us | 2 [1, 3] | 4 [3, 6] | 3 [2, 4] | 2.50 [2.00, 3.00] | 1.67 [1.33, 2.00] |"
    assert shown in text
    assert "Processor time" not in text
    for one_round in rounds:
        one_round["live"]["clone"] = 0
        one_round.update({"platform_s": 3.0, "explained_s": 1.25, "client_s": 0.5})
    assert compared(rounds)["clone"]["ratio"] is None
    text = page({**report, "compared": compared(rounds)})
    assert "| clone | 0 [0, 0] | **5 [4, 6]** | **3 [2, 4]** |  |  |" in text
    assert "what it starts 3.00 s, of which calls and starts explain 1.25 s" in text


def test_figures_are_those_that_the_simulator_reports(tmp_path: Path) -> None:
    calls = [Call("f", "warm", took_us, True) for took_us in range(1, 101)]
    calls += [Call("f", "ghost", 200, True), Call("f", "cold", 999, False)]
    seen = figures(calls, [(0.25, 10), (0.5, 30)])
    assert (seen["calls"], seen["failed"], seen["p50_us"], seen["p99_us"]) == (102, 1, 51, 100)
    assert (seen["cold"], seen["clone"], seen["warm"]) == (0, 1, 100)
    assert (seen["near_mean_bytes"], seen["near_max_bytes"]) == (20, 30)
    assert seen["by_function"] == {"f": {"warm": 100, "ghost": 1, "cold": 0}}
    known = {"warm": 1000, "cold": 50_000, "ghost": 3000}
    profiles = [{"function": "f", "cells": [{"processor_us": known}]}]
    assert explained_s(seen["by_function"], profiles) == pytest.approx(0.104)
    assert (
        explained_s(seen["by_function"], [{**profiles[0], "cells": [{"processor_us": {}}]}]) is None
    )
    with pytest.raises(RuntimeError, match="none of 1 calls"):
        figures(calls[-1:], [(0.25, 10)])
    path = tmp_path / "r.time.csv"
    path.write_text("run,begin_us,near_bytes_mean\na,0,5.0\na,500000,7.5\n")
    assert near_of(path) == [(0.0, 5.0), (0.5, 7.5)]


class Counted(Platform):
    """A platform whose processor time is known: calls take 2 ms, clones 3 more, cold starts 40."""

    def __init__(self) -> None:
        self.busy_us, self.seen = 0, set[str]()

    def used_us(self) -> int:
        """Return the processor time so far."""
        return self.busy_us

    def deploy(self, name: str, code: str) -> None:
        """Do nothing: what is not known yet starts cold."""
        assert code

    def call(self, name: str) -> Call:
        """Call, cold at first and then warm."""
        start = "warm" if name in self.seen else "cold"
        self.seen.add(name)
        self.busy_us += 2000 + (40_000 if start == "cold" else 0)
        return Call(name, start, 9000 if start == "warm" else 90_000, True)

    def call_together(self, name: str, count: int) -> list[Call]:
        """Call once warm, and otherwise clones."""
        first = self.call(name)
        self.busy_us += (count - 1) * 5000
        return [first] + [Call(name, "clone", 15_000, True)] * (count - 1)


def test_processor_time_of_starts_is_that_beyond_warm_calls() -> None:
    platform = Counted()
    colds = cold_starts(platform, "hello")
    assert [call.busy_us for call in colds] == [42_000] * 5
    warm = typical_busy([platform.counted_call("hello") for _ in range(3)])
    excess, clones = bursts(platform, "hello", 9000, warm)
    assert excess == {"clone": [6000] * 21, "ghost": []}
    known = processor_us(warm, typical_busy(colds), clones)
    assert known == {"warm": 2000, "cold": 40_000, "clone": 3000, "ghost": 3000}
    assert processor_us(warm, typical_busy(colds), []) == {"warm": 2000, "cold": 40_000}
    platform.group = None
    assert Platform.used_us(platform) is None
    assert processor_us(None, None, []) == {}


def test_processor_time_is_read_from_both_versions_of_cgroups(tmp_path: Path) -> None:
    group = Group(tmp_path, tmp_path / "cgroup.procs")
    (tmp_path / "cpu.stat").write_text("usage_usec 4711\nuser_usec 4000\n")
    assert group.used_us() == 4711
    (tmp_path / "cpuacct.usage").write_text("8001999\n")
    assert group.used_us() == 8001
    command = group.entering(["sh", "-c", "echo $$ $0", "more"])
    seen = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert seen.split() == [group.procs.read_text().strip(), "more"]
