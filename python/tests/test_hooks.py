"""The hooks' conventions are those of AWS's snapshot_restore_py."""

from collections.abc import Iterator

import pytest

import farfork
import snapshot_restore_py as aws
from farfork import hooks


@pytest.fixture(autouse=True)
def _no_hooks() -> Iterator[None]:
    yield
    hooks.before.clear()
    hooks.after.clear()


def test_order_is_reversed_before_and_kept_after() -> None:
    ran: list[str] = []
    farfork.before_checkpoint(ran.append, "b1")
    aws.register_before_snapshot(ran.append, "b2")
    farfork.after_restore(ran.append, "a1")
    aws.register_after_restore(ran.append, "a2")
    hooks.run_before()
    hooks.run_after()
    assert ran == ["b2", "b1", "a1", "a2"]


def test_registrars_decorate_and_pass_arguments() -> None:
    got: list[tuple[object, ...]] = []

    @aws.register_after_restore
    def plain() -> None:
        got.append(())

    def with_arguments(a: int, *, b: int) -> None:
        got.append((a, b))

    assert aws.register_after_restore(with_arguments, 1, b=2) is with_arguments
    hooks.run_after()
    assert callable(plain)
    assert got == [(), (1, 2)]
    assert aws.get_after_restore() == [(plain, (), {}), (with_arguments, (1,), {"b": 2})]
    assert aws.get_before_snapshot() == []


def test_a_failing_hook_is_named_and_ends_the_run() -> None:
    ran: list[str] = []

    def close_database() -> None:
        raise ValueError("no database")

    farfork.before_checkpoint(ran.append, "first registered, never reached")
    farfork.before_checkpoint(close_database)
    with pytest.raises(
        hooks.HookError, match=r"before-checkpoint hook .*close_database: ValueError"
    ):
        hooks.run_before()
    assert ran == []
