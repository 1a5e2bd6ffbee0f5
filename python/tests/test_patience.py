"""How tests wait."""

import subprocess
import sys
import time

import patience
import pytest
from patience import Patience, await_end, await_true, run_to_end


def test_time_counts_for_less_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, least_s in ((1.0, 0.2), (0.25, 0.8)):
        monkeypatch.setattr(patience, "share_of_a_processor", lambda share=share: share)
        begun = time.monotonic()
        with pytest.raises(AssertionError, match="never"):
            await_true(lambda: False, "never", within_s=0.2)
        assert time.monotonic() - begun >= least_s


def test_a_machine_that_stood_still_counts_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "share_of_a_processor", lambda: 1.0)
    waiting = Patience(20)
    waiting.looked -= 3600
    assert not waiting.is_over()
    assert 18 < waiting.left_s <= 19


def test_a_command_that_hangs_is_killed_and_reported() -> None:
    hangs = "print('begun', flush=True); import time; time.sleep(3600)"
    with pytest.raises(AssertionError, match="hangs\nbegun"):
        run_to_end([sys.executable, "-c", hangs], 1)
    done = run_to_end([sys.executable, "-c", "print('x' * 1_000_000); exit(7)"])
    assert (done.returncode, len(done.stdout)) == (7, 1_000_001)


def test_a_process_that_does_not_end_is_reported() -> None:
    with subprocess.Popen(["sleep", "3600"]) as process:
        with pytest.raises(AssertionError, match="does not end"):
            await_end(process, 0.2)
        process.terminate()
        assert await_end(process) == -15
