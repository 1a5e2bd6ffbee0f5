"""Processes with libfarfork_malloc.so: clones have heaps of their own; with a region, none."""

import hashlib
from pathlib import Path

import pytest
from bed import Bed

from farfork.demo.command import CommandError

# Objects of many sizes from before the checkpoint, which threads replace after it.
FUNCTION = """
import hashlib, json, threading

kept = {number: bytearray(str(number).encode() * (number % 3000)) for number in range(8000)}

def digest():
    whole = hashlib.sha256()
    for number in sorted(kept):
        whole.update(kept[number])
    return whole.hexdigest()

def change(first, word):
    for number in range(first, 8000, 4):
        kept[number] = bytearray(word.encode() * (number * 7 % 5000))

def main(args):
    before = digest()
    if word := args.get("word"):
        threads = [threading.Thread(target=change, args=(first, word)) for first in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    maps = open("/proc/self/maps").read()
    return {"before": before, "after": digest(), "preloaded": "libfarfork_malloc" in maps}
"""
pytestmark = pytest.mark.needs_farfork


def changed(word: str) -> str:
    """Return what the function says when all of its objects are made of a word."""
    whole = hashlib.sha256()
    for number in range(8000):
        whole.update(word.encode() * (number * 7 % 5000))
    return whole.hexdigest()


@pytest.fixture
def library(bed: Bed) -> Path:
    folder = bed.farfork.binary.parent
    places = [folder / "libfarfork_malloc.so", folder / "deps/libfarfork_malloc.so"]
    for place in places:
        if place.exists():
            return place
    pytest.skip(f"{places[0]} is missing: build farfork-malloc")


@pytest.fixture
def function(tmp_path: Path) -> Path:
    path = tmp_path / "function.py"
    path.write_text(FUNCTION)
    return path


def test_clones_go_on_with_their_own_heaps(
    bed: Bed, function: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", str(library))
        patched.setenv("PYTHONMALLOC", "malloc")
        started = bed.start(function, "--warm", "{}")
    first = started.client.run()
    assert first["preloaded"]
    whole = first["after"]
    listen_fd = started.client.prepare()["listen_fd"]
    bed.farfork.json("checkpoint", "--pid", started.process.pid, "--name", "test/malloc")
    clones = bed.clones("test/malloc", listen_fd, 3)
    last = [whole] * 3
    for word in ["a", "bc", "def"]:
        for number, clone in enumerate(clones):
            answer = clone.client.run({"word": f"{word}{number}"})
            assert answer["before"] == last[number]
            assert answer["after"] == changed(f"{word}{number}")
            last[number] = answer["after"]
    # Nothing of that reached the parent, or a later clone.
    (late,) = bed.clones("test/malloc", listen_fd)
    for client in [started.client, late.client]:
        assert client.run()["after"] == whole


def test_a_process_with_its_heap_in_a_region_is_refused(
    bed: Bed, function: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = tmp_path / "region"
    bed.farfork.do("region", "create", region, "--size", "256M")
    with monkeypatch.context() as patched:
        patched.setenv("LD_PRELOAD", str(library))
        patched.setenv("FARFORK_REGION", str(region))
        started = bed.start(function, "--warm", "{}")
    whole = started.client.run()["after"]
    started.client.prepare()
    with pytest.raises(CommandError, match="region of objects"):
        bed.farfork.json("checkpoint", "--pid", started.process.pid, "--name", "test/region")
    assert started.client.run()["after"] == whole
