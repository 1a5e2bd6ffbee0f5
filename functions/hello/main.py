"""Greets: the smallest function, to see what the runtime itself costs."""

from typing import Any


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `{"greeting"}` for `{"name"}`."""
    return {"greeting": f"Hello, {args.get('name', 'world')}!"}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"name": f"visitor {index}"}
