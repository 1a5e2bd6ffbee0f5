"""The runtime under real checkpoints and restores: a clone's identity and answers."""

import signal
import uuid
from pathlib import Path
from typing import Any

import pytest
from bed import LOCAL, NODES, Bed, Parent
from runtimes import ROOT

from farfork.client import compare_embeddings

CLONES = 100
SIGNALLED = 128
EVERYTHING = Path(__file__).parent / "functions/everything.py"
BEFORE = ["before second", "before first"]
AFTER = ["after first", "after second"]
pytestmark = pytest.mark.needs_farfork


@pytest.fixture
def parent(bed: Bed) -> Parent:
    return bed.parent(EVERYTHING, "--warm", "{}")


def test_a_hundred_clones_draw_differently_and_ran_their_hooks_once(
    bed: Bed, parent: Parent
) -> None:
    clones = bed.clones(parent.image, parent.listen_fd, CLONES)
    answers = [clone.client.call("run") for clone in clones]
    again = [clone.client.call("run") for clone in clones]
    of_parent = parent.client.call("run")
    everyone = [*answers, *again, of_parent]
    draws = [answer["result"]["draws"] for answer in everyone]
    for source in draws[0]:
        assert len({draw[source] for draw in draws}) == 2 * CLONES + 1, source
    assert len({uuid.UUID(draw["uuid1"]).node for draw in draws}) == CLONES + 1
    assert [answer["generation"] for answer in everyone] == [1] * 2 * CLONES + [0]
    for answer in everyone:
        assert answer["result"]["events"] == BEFORE + AFTER


def test_the_vdso_is_drawn_from_where_the_kernel_has_it(parent: Parent) -> None:
    if b"__vdso_getrandom" not in vdso():
        pytest.skip("this kernel's vDSO has no getrandom (Linux 6.11 and later have it)")
    assert "vdso_getrandom" in parent.client.run()["draws"]


def vdso() -> bytes:
    lines = Path("/proc/self/maps").read_text().splitlines()
    (place,) = [line.split()[0] for line in lines if line.endswith("[vdso]")]
    start, end = (int(address, 16) for address in place.split("-"))
    with open("/proc/self/mem", "rb") as memory:
        memory.seek(start)
        return memory.read(end - start)


def test_a_clone_has_its_parents_pid_and_a_socket_of_its_own(bed: Bed, parent: Parent) -> None:
    of_parent = parent.client.status()
    first, second = (
        clone.client.status() for clone in bed.clones(parent.image, parent.listen_fd, 2)
    )
    assert first["pid"] == second["pid"] == of_parent["pid"]
    assert first["threads"] == of_parent["threads"]
    inodes = {status["identity"]["socket_ino"] for status in (first, second, of_parent)}
    assert len(inodes) == 3


def test_the_parent_goes_on_after_its_checkpoint(bed: Bed, parent: Parent) -> None:
    for _ in range(2):
        answer = parent.client.call("run")
        assert answer["generation"] == 0
        assert answer["result"]["events"] == BEFORE + AFTER
    assert parent.client.status()["pid"] == parent.runtime.process.pid
    bed.farfork.do("images", "rm", parent.image)
    assert parent.client.run()["events"] == BEFORE + AFTER


def test_a_parent_is_checkpointed_again_and_again(bed: Bed, parent: Parent) -> None:
    for number in range(3):
        listen_fd = parent.client.prepare()["listen_fd"]
        image = f"test/again-{number}"
        bed.farfork.do("checkpoint", "--pid", parent.runtime.process.pid, "--name", image)
        (clone,) = bed.clones(image, listen_fd)
        assert clone.client.call("run")["generation"] == 1


@pytest.mark.parametrize("node", [LOCAL, NODES[0]])
def test_a_clone_of_a_clone_is_one_generation_on(bed: Bed, parent: Parent, node: str) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd, node=node)
    first = clone.client.call("run")
    listen_fd = clone.client.prepare()["listen_fd"]
    bed.farfork.do("checkpoint", "--pid", clone.pid, "--name", "test/second")
    grandchildren = bed.clones("test/second", listen_fd, 2, NODES[1])
    answers = [grandchild.client.call("run") for grandchild in grandchildren]
    assert [answer["generation"] for answer in answers] == [2, 2]
    assert answers[0]["result"]["events"] == (BEFORE + AFTER) * 2
    draws = [answer["result"]["draws"] for answer in (first, *answers)]
    assert all(len({draw[source] for draw in draws}) == 3 for source in draws[0])
    assert clone.client.call("run")["generation"] == 1


def test_a_clone_is_cloned_though_its_own_image_was_removed(bed: Bed, parent: Parent) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd)
    bed.farfork.do("images", "rm", parent.image)
    listen_fd = clone.client.prepare()["listen_fd"]  # its first request: little is local yet
    bed.farfork.do("checkpoint", "--kill", "--pid", clone.pid, "--name", "test/second")
    assert bed.farfork.run("wait", clone.pid).returncode == SIGNALLED + signal.SIGKILL
    (grandchild,) = bed.clones("test/second", listen_fd)
    assert grandchild.client.call("run")["generation"] == 2
    assert "is sound" in bed.farfork.do("pool", "check")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare answers; embeddings may differ in their last digits."""
    if "embeddings" in one:
        return compare_embeddings(one["embeddings"], other["embeddings"])
    return one == other


@pytest.mark.parametrize(
    ("function", "requests"),
    [
        ("hello", [{"name": name} for name in ("Ada", "Grace", "Edsger")]),
        ("embed", [{"texts": [text]} for text in ("one", "two words", "and three words")]),
    ],
)
def test_clones_on_every_node_answer_as_a_fresh_process(
    bed: Bed, function: str, requests: list[dict[str, Any]]
) -> None:
    if function == "embed":
        pytest.importorskip("onnxruntime", reason="the sample functions' packages are missing")
    path = ROOT / "functions" / function
    parent = bed.parent(path, "--warm", '{"texts": ["warm"]}')
    fresh = bed.start(path)
    clones = [bed.clones(parent.image, parent.listen_fd, node=node)[0] for node in (LOCAL, *NODES)]
    listen_fd = clones[1].client.prepare()["listen_fd"]
    bed.farfork.do("checkpoint", "--pid", clones[1].pid, "--name", "test/second")
    clones += bed.clones("test/second", listen_fd, node=NODES[1])
    for clone in [*clones, parent]:
        for request in requests:
            assert same(clone.client.run(request), fresh.client.run(request)), (clone, request)
