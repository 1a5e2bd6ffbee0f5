"""Starts platforms, and ends them after the test."""

from collections.abc import Iterator

import pytest
from bed import pooled, why_not
from served import POOL_SIZE, Platform, open_place, serving

from farfork.demo.command import Farfork


@pytest.fixture(scope="module")
def farfork() -> Iterator[Farfork]:
    """Return the binary, on a pool of its own."""
    if reason := why_not():
        pytest.skip(reason)
    with open_place() as place, pooled(place, POOL_SIZE) as farfork:
        yield farfork


@pytest.fixture(scope="module")
def platform(farfork: Farfork) -> Iterator[Platform]:
    """Return a platform that serves."""
    with open_place() as place, serving(farfork, place / "state") as platform:
        yield platform
