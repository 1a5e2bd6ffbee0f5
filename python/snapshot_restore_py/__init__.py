"""The hook names that AWS documents for Lambda SnapStart, served by farfork.

A function written for SnapStart runs here unchanged. Both registrars work as
plain calls and as decorators, and hand `func` back. Before-hooks run in reverse
order of registration, after-hooks in order.
"""

from farfork.hooks import Hook, after, after_restore, before, before_checkpoint

__all__ = ["register_after_restore", "register_before_snapshot"]

register_before_snapshot = before_checkpoint
register_after_restore = after_restore


def get_before_snapshot() -> list[Hook]:
    """Return the registered before-hooks as `(func, args, kwargs)`, in order of registration."""
    return before


def get_after_restore() -> list[Hook]:
    """Return the registered after-hooks as `(func, args, kwargs)`, in order of registration."""
    return after
