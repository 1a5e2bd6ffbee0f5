"""How long a test waits before it says that something hangs. Not by the clock.

On a machine that others use all takes longer, and nothing hangs. tests/src/patience.rs counts
likewise.
"""

import http.client
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Longer where the processor is emulated.
PATIENCE_S = float(os.environ.get("FARFORK_TEST_PATIENCE_S", "60"))
# How often it is looked at how busy the machine is.
LOOK_S = 0.1
# No look counts for more: a virtual machine may stand still.
MOST_S = 1.0


def share_of_a_processor() -> float:
    """Return the part of a processor that a task gets now that wants one, by fair shares."""
    running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    # One of these reads this.
    return min(1.0, (os.cpu_count() or 1) / max(1, running - 1))


class Patience:
    """What is left of a limit. On a busy machine time counts for less."""

    def __init__(self, limit_s: float = PATIENCE_S) -> None:
        self.left_s = limit_s
        self.looked = time.monotonic()

    def is_over(self) -> bool:
        """Return whether it is. To be asked again and again while something is waited for."""
        now = time.monotonic()
        passed_s = now - self.looked
        if passed_s >= min(LOOK_S, self.left_s):
            self.left_s -= min(passed_s, MOST_S) * share_of_a_processor()
            self.looked = now
        return self.left_s <= 0


def await_true(
    condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S, every_s: float = 0.02
) -> None:
    """Wait until it holds."""
    patience = Patience(within_s)
    while not condition():
        assert not patience.is_over(), what
        time.sleep(every_s)


def await_answer(connection: http.client.HTTPConnection, within_s: float = PATIENCE_S) -> None:
    """Wait until the answer to a request comes."""

    def has_come() -> bool:
        return bool(select.select([connection.sock], [], [], LOOK_S)[0])

    await_true(has_come, "an answer", within_s, every_s=0)


def await_end(process: "subprocess.Popen[Any]", within_s: float = PATIENCE_S) -> int:
    """Wait until a process has ended. Return its status."""
    patience = Patience(within_s)
    while True:
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            assert not patience.is_over(), f"{process.args!r} does not end"


def run_to_end(
    command: list[str], within_s: float = PATIENCE_S, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a command without input. One that hangs is killed, and the test fails."""
    patience = Patience(within_s)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        while True:
            try:
                out, err = process.communicate(timeout=LOOK_S)
                return subprocess.CompletedProcess(command, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    process.kill()
                    out, err = process.communicate()
                    raise AssertionError(f"{command} hangs\n{out}{err}") from None
