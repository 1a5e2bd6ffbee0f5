"""Ctrl-C and SIGTERM: the first one begins the cleaning up, nothing stops it."""

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def raise_once() -> None:
    """Let the first signal raise KeyboardInterrupt, and ignore those after it."""
    for number in _SIGNALS:
        signal.signal(number, _raise)


def ignore() -> None:
    """Ignore all of them from now on."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise(_signal: int, _frame: FrameType | None) -> None:
    ignore()
    raise KeyboardInterrupt
