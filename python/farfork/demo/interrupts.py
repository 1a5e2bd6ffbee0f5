"""Ctrl-C and SIGTERM: the first one begins the cleanup, which later ones do not interrupt."""

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def raise_once() -> None:
    """Raise KeyboardInterrupt at the first signal, and ignore later ones."""
    for number in _SIGNALS:
        signal.signal(number, _raise)


def ignore() -> None:
    """Ignore both signals from now on."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise(_signal: int, _frame: FrameType | None) -> None:
    ignore()
    raise KeyboardInterrupt
