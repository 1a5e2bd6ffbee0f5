"""Sum up the steps of setup/test.sh; the last line is "N passed, N failed".

A step is NAME.log, its output, and NAME.status, its exit status. If the output counts tests, these
are added up. Otherwise the step is one test. A step that fails without a failed test, because a
test program died or did not build, counts as one failure.

Skipped tests are those that are ignored, and those that find while running that the machine lacks
something, which cargo counts as passed. The reasons are printed before the sums:

    skipped: REASON [TEST]     from a test that cargo counts as passed
    SKIPPED: REASON            from a step, for what it left out
    SKIPPED N tests: REASON    from a program of tests/, for tests it counts as ignored
    SKIPPED [N] PLACE: REASON  from pytest, for tests it counts as skipped
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

CARGO = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)
PYTEST = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
# The output of passed tests looks the same, but follows "successes:".
FAILURES = re.compile(
    r"^failures:\n(.*?)(?=^failures:$|^test result: |\Z)", re.MULTILINE | re.DOTALL
)
REPORT = re.compile(r"^---- (.+?) ----\n(.*?)(?=^---- |\Z)", re.MULTILINE | re.DOTALL)
PYTEST_FAILURES = re.compile(
    r"^=+ (?:FAILURES|ERRORS) =+\n(.*?)(?=^=+ [^=\n]+ =+$|\Z)", re.MULTILINE | re.DOTALL
)
# What follows a test's name are pytest's lines of underscores, some of them apart.
PYTEST_REPORT = re.compile(r"^_{2,} (.+?) _{2,}\n(.*?)(?=^_{2,} |\Z)", re.MULTILINE | re.DOTALL)
# Lines of pytest that say what failed and where.
WHY = re.compile(r"^(?:[>E] .*|\S+:\d+: .+)$", re.MULTILINE)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)
PASSED_OVER = re.compile(r"^skipped: (.+?)(?: \[\S+\])?$", re.MULTILINE)
LEFT_OUT = re.compile(r"^SKIPPED: (.+)$", re.MULTILINE)
COUNTED = re.compile(r"^SKIPPED (?:(\d+) tests|\[(\d+)\] \S+): (.+)$", re.MULTILINE)


# Frames of a backtrace, of which a property test has hundreds.
FRAME = re.compile(r"^ +(?:\d+: \S|at [^ ]+:\d+:\d+$)|^stack backtrace:$")
# The line before what a Rust test says of its failure.
PANICKED = re.compile(r"panicked at \S+:\d+:\d+:$")

# How long a test took: a program of tests/, and pytest's --durations.
TOOK = re.compile(r"^took: ([\d.]+) s \[(\S+)\]$", re.MULTILINE)
DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*?)$", re.MULTILINE)

REPORT_LINES = 40
SLOWEST = 20


class Count(NamedTuple):
    """Numbers of tests by result."""

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
    found.extend(Count(passed=-1, skipped=1) for _ in PASSED_OVER.findall(log))
    found.extend(Count(skipped=1) for _ in LEFT_OUT.findall(log))
    return Count(*map(sum, zip(*found, strict=True))) if found else Count()


def judge(log: str, status: int) -> Count:
    """Return what one step adds to the sum."""
    counted = count(log)
    if status != 0 and counted.failed == 0:
        return counted._replace(failed=1)
    return Count(passed=1) if status == 0 and counted == Count() else counted


def reports(log: str) -> list[str]:
    """Collect the output of failed tests, or the end of it if it is long; of pytest's, why."""
    outputs = [
        (name, [line for line in text.strip().splitlines() if not FRAME.match(line)])
        for failures in FAILURES.findall(log)
        for name, text in REPORT.findall(failures)
    ]
    outputs += [
        (name, WHY.findall(text))
        for failures in PYTEST_FAILURES.findall(log)
        for name, text in PYTEST_REPORT.findall(failures)
    ]
    return ["\n".join([f"---- {name}", *lines[-REPORT_LINES:]]) for name, lines in outputs]


def explain(log: str, status: int) -> list[str]:
    """Return why a step failed: the reports of its tests, or the end of its output."""
    if status == 0:
        return []
    return reports(log) or ["\n".join(log.strip().splitlines()[-REPORT_LINES:])]


def brief(report: str) -> str:
    """Return the first line of a report, and the one that says most."""
    first, *lines = report.splitlines() or ["no output"]
    said = [after for before, after in pairwise(lines) if PANICKED.search(before)]
    raised = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return ": ".join([first.removeprefix("---- "), *(said[-1:] or raised[:1] or lines[-1:])])


def reasons(log: str) -> Counter[str]:
    """Count skipped tests by reason."""
    found = Counter(PASSED_OVER.findall(log) + LEFT_OUT.findall(log))
    for ignored, skipped, reason in COUNTED.findall(log):
        found[reason] += int(ignored or skipped)
    return found


def slowest(logs: Iterable[str]) -> list[tuple[float, str]]:
    """Return the tests that took longest, of those that are timed, the slowest first."""
    found = [
        (float(seconds), name)
        for log in logs
        for seconds, name in TOOK.findall(log) + DURATION.findall(log)
    ]
    return sorted(found, reverse=True)[:SLOWEST]


def seconds(folder: Path, name: str) -> str:
    """Return how long a step took, and for how long it had processors, if that was kept."""
    try:
        wall = int((folder / f"{name}.seconds").read_text())
        processors = sum(map(float, (folder / f"{name}.cpu").read_text().splitlines()[-1].split()))
    except (OSError, ValueError, IndexError):
        return ""
    return f" {wall:6} s, processors {processors:6.0f} s"


def main(folder: Path) -> int:
    """Print the sum of all steps. Return 0 if nothing failed."""
    logs = {
        path: path.with_suffix(".log").read_text(errors="replace")
        for path in sorted(folder.glob("*.status"))
    }
    for reason, number in sum(map(reasons, logs.values()), Counter()).most_common():
        print(f"{number:5} skipped: {reason}")
    for duration, test in slowest(logs.values()):
        print(f"{duration:7.1f} s {test}")
    statuses = {path: int(path.read_text()) for path in logs}
    steps = {path.stem: judge(log, statuses[path]) for path, log in logs.items()}
    total = Count(*map(sum, zip(*steps.values(), strict=True))) if steps else Count(failed=1)
    for name, step in [*steps.items(), ("all", total)]:
        counts = f"{step.passed:5} passed {step.failed:5} failed {step.skipped:5} skipped"
        print(f"{name:20} {counts}{seconds(folder, name)}")
    # They were printed before, perhaps thousands of lines above. Who sees only the end sees these.
    found = [(path.stem, why) for path, log in logs.items() for why in explain(log, statuses[path])]
    for name, why in found:
        print(f"\n{name}: {why}")
    print()
    for name, why in found:
        print(f"failed: {name}: {brief(why)}")
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
