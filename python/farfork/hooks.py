"""Hooks of a function around a checkpoint.

Invariants:
- before-hooks run in reverse order of registration, after-hooks in order: what
  was opened last is closed first (the order of `snapshot_restore_py`).
- A hook stays registered: it runs at every checkpoint and in every clone.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Hook = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
F = TypeVar("F", bound=Callable[..., Any])

before: list[Hook] = []
after: list[Hook] = []


class HookError(RuntimeError):
    """A hook raised; the message names the hook, the cause is chained."""


def before_checkpoint(fn: F, *args: Any, **kwargs: Any) -> F:
    """Call `fn(*args, **kwargs)` before each checkpoint; returns `fn`, so it decorates."""
    before.append((fn, args, kwargs))
    return fn


def after_restore(fn: F, *args: Any, **kwargs: Any) -> F:
    """Call `fn(*args, **kwargs)` in each clone before its first request; returns `fn`."""
    after.append((fn, args, kwargs))
    return fn


def run_before() -> None:
    """Run the before-hooks, last registered first; the first failure raises HookError."""
    for hook in reversed(before):
        _run("before-checkpoint", hook)


def run_after() -> None:
    """Run the after-hooks, first registered first; the first failure raises HookError."""
    for hook in after:
        _run("after-restore", hook)


def _run(kind: str, hook: Hook) -> None:
    fn, args, kwargs = hook
    try:
        fn(*args, **kwargs)
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise HookError(f"{kind} hook {name}: {type(error).__name__}: {error}") from error
