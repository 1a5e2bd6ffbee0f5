"""Tests of the summary at the end of `make test`."""

# ruff: noqa: D101, D102, PT009 (unittest, because it runs before there is an environment)

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from summary import Count, count, explain, judge, main, reasons, reports, seconds, slowest

# Output of passed tests by cargo, and by a program of tests/.
SHOWN = """
successes:

---- a stdout ----
skipped: needs root

---- b stdout ----
200 steps


successes:
    a
    b

skipped: no place: /x [ghosts::b]
"""
CARGO = "test result: ok. {} passed; {} failed; 1 ignored; 0 measured; 0 filtered out\n"


class Counting(unittest.TestCase):
    def test_cargo_reports_once_per_test_program(self) -> None:
        log = CARGO.format(3, 0) + "noise 5 passed\n" + CARGO.format(2, 1)
        self.assertEqual(count(log), Count(passed=5, failed=1, skipped=2))

    def test_pytest_counts_errors_as_failures(self) -> None:
        for text in ("{} in 1.20s", "===== {} in 1.20s ====="):
            log = text.format("1 failed, 12 passed, 2 skipped, 3 errors") + "\n"
            self.assertEqual(count(log), Count(passed=12, failed=4, skipped=2))

    def test_unittest_names_only_what_did_not_pass(self) -> None:
        self.assertEqual(count("Ran 4 tests in 0.1s\n\nOK\n"), Count(passed=4))
        log = "Ran 6 tests in 0.1s\n\nFAILED (failures=1, errors=2, skipped=1)\n"
        self.assertEqual(count(log), Count(passed=2, failed=3, skipped=1))

    def test_a_test_that_skips_itself_has_not_passed(self) -> None:
        self.assertEqual(count(SHOWN + CARGO.format(3, 0)), Count(passed=1, skipped=3))

    def test_a_step_may_leave_something_out(self) -> None:
        self.assertEqual(judge("SKIPPED: tests in QEMU: no kernel\n", 0), Count(skipped=1))

    def test_ignored_tests_are_not_counted_twice(self) -> None:
        log = "SKIPPED 4 tests: no runc\nSKIPPED [2] tests/test_a.py:9: no node\n"
        self.assertEqual(count(log + CARGO.format(1, 0)), Count(passed=1, skipped=1))


class Times(unittest.TestCase):
    def test_the_slowest_come_first_whoever_timed_them(self) -> None:
        cargo = "took: 3.5 s [clone_twice::tls]\ntook: 12.0 s [plain::tls]\n"
        pytest = (
            "8.25s call     python/tests/test_a.py::test_b[c d]\n0.10s setup    python/x.py::y\n"
        )
        self.assertEqual(
            slowest([cargo, pytest])[:3],
            [
                (12.0, "plain::tls"),
                (8.25, "python/tests/test_a.py::test_b[c d]"),
                (3.5, "clone_twice::tls"),
            ],
        )

    def test_a_step_without_times_has_none(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            self.assertEqual(seconds(folder, "a"), "")
            (folder / "a.seconds").write_text("70\n")
            (folder / "a.cpu").write_text("100.25 19.75\n")
            self.assertEqual(seconds(folder, "a"), "     70 s, processors    120 s")


class Judging(unittest.TestCase):
    def test_a_step_without_tests_is_one_test(self) -> None:
        self.assertEqual(judge("all formatted\n", 0), Count(passed=1))
        self.assertEqual(judge("a line too long\n", 1), Count(failed=1))

    def test_a_test_program_that_died_is_a_failure(self) -> None:
        self.assertEqual(judge(CARGO.format(3, 0), 101), Count(passed=3, failed=1, skipped=1))

    def test_failed_tests_are_not_counted_twice(self) -> None:
        self.assertEqual(judge(CARGO.format(3, 2), 101), Count(passed=3, failed=2, skipped=1))


class Reasons(unittest.TestCase):
    def test_each_reason_is_listed_once_with_its_number(self) -> None:
        log = "SKIPPED 4 tests: no runc\nSKIPPED: no runc\nSKIPPED [2] tests/test_a.py:9: no node\n"
        expected = {"no runc": 5, "no node": 2, "needs root": 1, "no place: /x": 1}
        self.assertEqual(reasons(log + SHOWN), expected)


class Reports(unittest.TestCase):
    def test_output_of_failed_tests_is_repeated(self) -> None:
        log = "failures:\n\n---- a::b ----\nsaw 1\n\n---- c ----\nsaw 2\n\n\nfailures:\n    a::b\n"
        self.assertEqual(reports(log + CARGO.format(0, 2)), ["---- a::b\nsaw 1", "---- c\nsaw 2"])
        self.assertEqual(reports(CARGO.format(3, 0)), [])

    def test_output_of_passed_tests_is_not(self) -> None:
        failures = "failures:\n\n---- c stdout ----\nsaw 2\n\n\nfailures:\n    c\n\n"
        log = SHOWN + failures + CARGO.format(2, 1)
        self.assertEqual(reports(log + SHOWN + CARGO.format(2, 0)), ["---- c stdout\nsaw 2"])

    def test_frames_of_backtraces_are_left_out(self) -> None:
        trace = "stack backtrace:\n   0: rust_begin_unwind\n             at /a/panicking.rs:689:5\n"
        log = f"failures:\n\n---- c stdout ----\nsaw 2\n{trace}note: short\n\n"
        expected = ["---- c stdout\nsaw 2\nnote: short"]
        self.assertEqual(reports(log + CARGO.format(2, 1)), expected)

    def test_of_pytest_it_is_shown_why(self) -> None:
        log = (
            "=========== FAILURES ===========\n_______ test_a[x] _______\n\n    a = 1\n"
            ">       assert a == 2\nE       assert 1 == 2\n\ntests/test_a.py:3: AssertionError\n"
            "----- Captured stdout call -----\nthousands of lines\n"
            "_ _ _ _ _ _\nE       its cause\n______ test_b ______\nE       also\n"
            "=========== slowest 2 durations ===========\n1.0s call     test_c\nE       no more\n"
        )
        expected = [
            ">       assert a == 2",
            "E       assert 1 == 2",
            "tests/test_a.py:3: AssertionError",
            "E       its cause",
        ]
        first = "\n".join(["---- test_a[x]", *expected])
        self.assertEqual(reports(log), [first, "---- test_b\nE       also"])

    def test_a_step_that_fails_without_a_report_shows_its_end(self) -> None:
        self.assertEqual(explain("compiling\nerror: no such name\n", 1)[0][-12:], "no such name")
        self.assertEqual(explain("all formatted\n", 0), [])


class Totals(unittest.TestCase):
    def total(self, **steps: tuple[str, int]) -> tuple[int, str]:
        with (
            tempfile.TemporaryDirectory() as name,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            for step, (log, status) in steps.items():
                Path(name, f"{step}.log").write_text(log)
                Path(name, f"{step}.status").write_text(f"{status}\n")
            status, lines = main(Path(name)), out.getvalue().splitlines()
            self.lines = lines[:-1]
            return status, lines[-1]

    def test_everything_adds_up(self) -> None:
        steps = {"format": ("", 0), "cargo": (CARGO.format(5, 0), 0)}
        self.assertEqual(self.total(**steps), (0, "6 passed, 0 failed"))

    def test_reasons_are_sorted_by_number(self) -> None:
        steps = {"cargo": (SHOWN + CARGO.format(5, 0), 0), "pytest": ("SKIPPED: no place: /x\n", 0)}
        self.assertEqual(self.total(**steps), (0, "3 passed, 0 failed"))
        self.assertEqual(
            self.lines[:2], ["    2 skipped: no place: /x", "    1 skipped: needs root"]
        )
        self.assertEqual(
            self.lines[-2].split(), ["all", "3", "passed", "0", "failed", "4", "skipped"]
        )

    def test_one_failed_step_fails_the_whole(self) -> None:
        steps = {"format": ("", 1), "cargo": (CARGO.format(5, 0), 0)}
        self.assertEqual(self.total(**steps), (1, "5 passed, 1 failed"))
        self.assertEqual(self.lines[-1], "failed: format: no output")

    def test_what_failed_stands_at_the_end(self) -> None:
        steps = {"clippy": ("error: unused\n", 1), "cargo": (CARGO.format(5, 0), 0)}
        self.assertEqual(self.total(**steps), (1, "5 passed, 1 failed"))
        self.assertEqual(
            self.lines[-3:],
            ["clippy: error: unused", "", "failed: clippy: error: unused"],
        )

    def test_each_failure_has_a_line_below_all_reports(self) -> None:
        said = "ran 3\nthread 'a' panicked at b.rs:6:1:\nbad\nmore\n"
        rust = f"failures:\n\n---- a::b stdout ----\n{said}\n"
        pytest = (
            "=== FAILURES ===\n___ test_a ___\n>   assert a\nE   assert 1 == 2\nE   of it\n"
            "=== 1 failed in 2.00s ===\n"
        )
        self.total(cargo=(rust + CARGO.format(3, 1), 101), pytest=(pytest, 1))
        expected = ["failed: cargo: a::b stdout: bad", "failed: pytest: test_a: assert 1 == 2"]
        self.assertEqual(self.lines[-2:], expected)

    def test_no_steps_are_a_failure(self) -> None:
        self.assertEqual(self.total(), (1, "0 passed, 1 failed"))


if __name__ == "__main__":
    unittest.main()
