"""Progress on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """One line per step, with its duration."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show `what` during the step."""
        if self._is_terminal:
            self._write(f"  … {what}")
        started_s = time.perf_counter()
        try:
            yield
        except BaseException:
            self._write(f"\r  ✗ {what}\n" if self._is_terminal else f"  failed: {what}\n")
            raise
        took = f"{what} ({time.perf_counter() - started_s:.1f} s)"
        self._write(f"\r  ✓ {took}\n" if self._is_terminal else f"  done: {took}\n")

    def cleaning_up(self) -> None:
        """Print that cleanup begins."""
        self._write("  cleaning up\n")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
