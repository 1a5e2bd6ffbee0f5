"""Greets: the smallest function, to see what the runtime itself costs."""

from typing import Any


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `{"greeting"}` for `{"name"}`."""
    return {"greeting": f"Hello, {args.get('name', 'world')}!"}
