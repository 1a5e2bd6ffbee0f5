"""Buffers are declared hot where they lie, and stay there."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bed import Bed
from runtimes import Serve

import farfork
from farfork import hot

DECLARING = """
    import farfork
    data = bytearray(100_000)
    farfork.mark_hot(data)

    def main(args):
        return {}
"""

PAGES = 1000
SUMMING = f"""
    import farfork
    data = bytearray(b"x" * ({PAGES} << 12))
    farfork.mark_hot(data)

    def main(args):
        return {{"sum": sum(data[::4096])}}
"""


@pytest.fixture(autouse=True)
def _nothing_declared() -> Iterator[None]:
    hot._views.clear()
    yield
    hot._views.clear()


def test_a_range_is_where_the_bytes_are() -> None:
    data = bytearray(b"x" * 50_000)
    at = ctypes.addressof(ctypes.c_char.from_buffer(data))
    farfork.mark_hot(data)
    assert farfork.hot_ranges() == [f"{at:x}-{at + 50_000:x}"]


def test_neighbours_are_one_and_read_only_buffers_will_do() -> None:
    data = bytes(30_000)
    view = memoryview(data)
    for part in [view[10_000:20_000], view[20_000:], view[15_000:16_000], view[:0]]:
        farfork.mark_hot(part)
    (reply,) = farfork.hot_ranges()
    start, end = (int(edge, 16) for edge in reply.split("-"))
    assert end - start == 20_000


def test_declared_buffers_cannot_move() -> None:
    data = bytearray(1000)
    farfork.mark_hot(data)
    with pytest.raises(BufferError):
        data.extend(bytes(1000))


def test_invalid_buffers_are_refused() -> None:
    with pytest.raises(TypeError):
        farfork.mark_hot("text")
    with pytest.raises(BufferError):
        farfork.mark_hot(memoryview(bytes(100))[::2])
    assert farfork.hot_ranges() == []


def test_prepare_returns_declared_ranges(
    serve: Serve, write_function: Callable[[str], Path]
) -> None:
    client = serve(write_function(DECLARING))
    (reply,) = client.prepare()["hot"]
    start, end = (int(edge, 16) for edge in reply.split("-"))
    assert end - start == 100_000


@pytest.mark.needs_farfork
def test_declared_pages_become_local_in_batches(
    bed: Bed, write_function: Callable[[str], Path]
) -> None:
    parent = bed.parent(write_function(SUMMING))
    bed.farfork.do("hot", "set", parent.image, *parent.client.prepare()["hot"])
    faults = {}
    for tiering in ("hybrid", "moa"):
        options = ("--detach", "--tiering", tiering)
        path, call = bed.restore_call(parent.image, parent.listen_fd, *options)
        (said,) = bed.farfork.json(*call)
        client = bed.client(path.replace("%i", "0"))
        assert client.run()["sum"] == PAGES * ord("x")
        (shown,) = [line for line in bed.farfork.json("ps") if line["pid"] == said["pid"]]
        assert shown["local_bytes"] > PAGES << 12
        faults[tiering] = shown["faults"]["minor"]
    assert faults["hybrid"] + PAGES * 3 // 4 < faults["moa"]
