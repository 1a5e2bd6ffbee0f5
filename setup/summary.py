"""Sums up the steps of setup/test.sh; the last line is "N passed, N failed".

A step is NAME.log, its output, and NAME.status, its exit status. Where the output counts
tests, these count; where it does not, the step is one test. A step that fails without a
failed test, because a test program died or did not build, counts as one failure.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

CARGO = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
PYTEST = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
REPORT = re.compile(r"^---- (.+?) ----\n(.*?)(?=^---- |^failures:$|\Z)", re.MULTILINE | re.DOTALL)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)


REPORT_LINES = 40


class Count(NamedTuple):
    """Tests by what became of them."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


def count(log: str) -> Count:
    """Add up the tests that a log reports."""
    found = [Count(*map(int, numbers)) for numbers in CARGO.findall(log)]
    for text in PYTEST.findall(log):
        words = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", text)}
        failed = sum(words.get(word, 0) for word in ("failed", "error", "errors"))
        found.append(Count(words.get("passed", 0), failed, words.get("skipped", 0)))
    for ran, text in UNITTEST.findall(log):
        words = {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", text)}
        failed, skipped = words.get("failures", 0) + words.get("errors", 0), words.get("skipped", 0)
        found.append(Count(int(ran) - failed - skipped, failed, skipped))
    return Count(*map(sum, zip(*found, strict=True))) if found else Count()


def judge(log: str, status: int) -> Count:
    """Decide what one step adds to the sum."""
    counted = count(log)
    if status != 0 and counted.failed == 0:
        return counted._replace(failed=1)
    return Count(passed=1) if status == 0 and counted == Count() else counted


def reports(log: str) -> list[str]:
    """Collect what failed tests of cargo said, the end of it where it is long."""
    said = [(name, text.strip().splitlines()) for name, text in REPORT.findall(log)]
    return ["\n".join([f"---- {name}", *lines[-REPORT_LINES:]]) for name, lines in said]


def main(folder: Path) -> int:
    """Print the sum of all steps; 0 if nothing failed."""
    logs = {
        path: path.with_suffix(".log").read_text(errors="replace")
        for path in sorted(folder.glob("*.status"))
    }
    # Thousands of lines may have passed since.
    for report in (report for log in logs.values() for report in reports(log)):
        print(f"{report}\n")
    steps = {path.stem: judge(log, int(path.read_text())) for path, log in logs.items()}
    for name, step in steps.items():
        print(f"{name:20} {step.passed:5} passed {step.failed:5} failed {step.skipped:5} skipped")
    total = Count(*map(sum, zip(*steps.values(), strict=True))) if steps else Count(failed=1)
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
