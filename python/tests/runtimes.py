"""Where the repository is, and what the fixture `serve` returns."""

from collections.abc import Callable
from pathlib import Path

from farfork.client import Client

ROOT = Path(__file__).resolve().parents[2]
Serve = Callable[..., Client]
