"""Tests of how test programs run side by side."""

# ruff: noqa: D101, D102, PT009, PT027 (unittest, because it runs before there is an environment)

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path

from programs import Ended, Program, option, programs, report, run_all, run_apart, take_names
from summary import judge


def message(name: str, kind: str, *, test: bool = True, package: str = "a") -> str:
    """Return what cargo prints when it has built something."""
    return json.dumps(
        {
            "reason": "compiler-artifact",
            "manifest_path": f"/crates/{package}/Cargo.toml",
            "target": {"name": name, "kind": [kind]},
            "profile": {"test": test},
            "executable": f"/deps/{name}" if kind != "lib" or test else None,
        }
    )


class Choosing(unittest.TestCase):
    def test_programs_with_tests_are_found(self) -> None:
        built = [
            message("farfork", "bin", test=False),
            message("farfork_pool", "lib", test=False),
            message("farfork_pool", "lib"),
            message("users", "test"),
            message("it", "test", package="pool"),
            '{"reason":"build-finished","success":true}',
            "not of cargo's",
        ]
        names = [program.name for program in programs(built)]
        self.assertEqual(names, ["farfork_pool (unit tests)", "pool/it", "users"])

    def test_they_begin_by_their_names(self) -> None:
        built = [message(name, "test") for name in ("errors", "zero", "faults")]
        names = [program.name for program in programs(built)]
        self.assertEqual(names, ["errors", "faults", "zero"])


class Running(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def program(self, name: str, text: str) -> Program:
        path = self.place / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return Program(name, str(path), self.place)

    def run_them(self, *given: Program, at_once: int = 2) -> list[Ended]:
        (self.place / "logs").mkdir()
        printed = io.TextIOWrapper(io.BytesIO(), write_through=True)
        with contextlib.redirect_stdout(printed):
            ended = run_all(list(given), at_once, self.place / "logs", ["--show-output"])
            self.status = report(ended)
        self.printed = printed.buffer.getvalue().decode()  # type: ignore[attr-defined]
        return ended

    def test_output_is_printed_whole(self) -> None:
        passed = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured"
        first = self.program("first", f'echo "a $1"; sleep 0.2; echo "{passed}"')
        second = self.program("second", f'echo b; sleep 0.2; echo "{passed}"; echo c >&2')
        ended = self.run_them(first, second)
        self.assertEqual([one.status for one in ended], [0, 0])
        self.assertIn(f"\na --show-output\n{passed}\n", self.printed)
        self.assertIn(f"\nb\n{passed}\nc\n", self.printed)
        self.assertEqual(judge(self.printed, self.status), (4, 0, 2))

    def test_every_failure_counts_and_stops_no_other(self) -> None:
        broken = Program("broken", str(self.place / "nothing"), self.place)
        killed = self.program("killed", "kill -9 $$")
        failed = self.program("failed", "exit 101")
        good = self.program("good", "echo done")
        ended = {one.name: one.status for one in self.run_them(broken, killed, failed, good)}
        self.assertEqual(ended, {"broken": None, "killed": -9, "failed": 101, "good": 0})
        self.assertEqual(self.status, 1)
        self.assertIn("error: cannot start broken: ", self.printed)
        self.assertIn("error: test program failed: killed: signal 9", self.printed)
        self.assertEqual(judge(self.printed, self.status), (0, 1, 0))
        for one in ("broken", "killed", "failed"):
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(report([Ended("good", 0), Ended(one, ended[one])]), 1)

    def test_no_programs_are_a_failure(self) -> None:
        self.assertEqual(self.run_them(), [])
        self.assertEqual(self.status, 1)

    def test_so_many_run_at_a_time(self) -> None:
        # Each counts those that run, itself included.
        text = f"cd {self.place}; : > running.$$; ls -d running.* | wc -l; sleep 0.3; rm running.$$"
        given = [self.program(f"p{number}", text) for number in range(5)]
        self.run_them(*given, at_once=2)
        counts = [line for line in self.printed.splitlines() if line in set("12345")]
        self.assertEqual((len(counts), max(counts)), (5, "2"))

    def test_some_run_alone(self) -> None:
        text = f"cd {self.place}; : > running.$$; sleep 0.3; ls -d running.* | wc -l; rm running.$$"
        given = [self.program(name, f"{text}; echo {name}") for name in ("a", "b", "c", "d")]
        (self.place / "logs").mkdir()
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as printed:
            ended = run_apart(given, ["d", "b"], (2, self.place / "logs", []))
            printed.flush()
            lines = printed.buffer.getvalue().decode().splitlines()
        self.assertEqual([one.name for one in ended][:2], ["b", "d"])
        counts = {lines[at + 1]: line for at, line in enumerate(lines) if line in set("1234")}
        self.assertEqual([counts["b"], counts["d"]], ["1", "1"])

    def test_a_name_without_a_program_is_refused(self) -> None:
        given = [self.program("a", "echo a")]
        with self.assertRaisesRegex(SystemExit, "no such test programs: b"):
            run_apart(given, ["a", "b"], (2, self.place, []))

    def test_names_and_numbers_are_taken_from_the_command_line(self) -> None:
        arguments = ["--at-once", "3", "--alone", "a", "--alone", "b", "--workspace", "--", "-q"]
        self.assertEqual(option(arguments, "--at-once", "2"), "3")
        self.assertEqual(option(arguments, "--logs", "none"), "none")
        self.assertEqual(take_names(arguments), ["a", "b"])
        self.assertEqual(arguments, ["--workspace", "--", "-q"])

    def test_what_a_program_starts_with(self) -> None:
        self.run_them(self.program("one", 'echo "in $PWD of $CARGO_MANIFEST_DIR"; cat'))
        self.assertIn(f"in {self.place} of {self.place}\n", self.printed)


if __name__ == "__main__":
    sys.exit(unittest.main())
