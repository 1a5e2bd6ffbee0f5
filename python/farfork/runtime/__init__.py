"""The function runtime: `python -m farfork.runtime FUNCTION --socket PATH`."""

from farfork.identity import renew
from farfork.runtime.server import Runtime

__all__ = ["Runtime", "renew"]
