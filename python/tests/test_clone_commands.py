"""What `restore`, `ps`, `wait` and `kill` say and end with."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from bed import LOCAL, NODES, Bed, Parent

from farfork.client import Client, NoAnswerError

EVERYTHING = Path(__file__).parent / "functions/everything.py"
USAGE = 2
SIGNALLED = 128
pytestmark = pytest.mark.needs_farfork


@pytest.fixture
def parent(bed: Bed) -> Parent:
    return bed.parent(EVERYTHING)


@pytest.fixture(params=[LOCAL, NODES[0]])
def node(request: pytest.FixtureRequest) -> str:
    """Return a node in the namespaces of the caller, and one in its own."""
    return request.param


def end_by_exit(client: Client, status: int) -> None:
    with pytest.raises(NoAnswerError):
        client.run({"exit": status})


@pytest.mark.parametrize("status", [0, 7, 255])
def test_wait_ends_as_the_clone_did(bed: Bed, parent: Parent, node: str, status: int) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd, node=node)
    end_by_exit(clone.client, status)
    for _ in range(2):  # the dead are remembered
        assert bed.farfork.run("wait", clone.pid, "--node", node).returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_kill_ends_the_clone_it_names_and_no_other(
    bed: Bed, parent: Parent, node: str, number: int
) -> None:
    doomed, other = bed.clones(parent.image, parent.listen_fd, 2, node)
    bed.farfork.do("kill", doomed.pid, "--signal", int(number), "--node", node)
    assert bed.farfork.run("wait", doomed.pid, "--node", node).returncode == SIGNALLED + number
    assert [line["pid"] for line in bed.farfork.json("ps", "--node", node)] == [other.pid]
    assert other.client.call("run")["generation"] == 1


def test_wait_waits(bed: Bed, parent: Parent, node: str) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd, node=node)
    call = [str(bed.farfork.binary), "wait", str(clone.pid), "--node", node]
    with subprocess.Popen(call, env=bed.farfork.environment) as waiting:
        time.sleep(0.2)
        assert waiting.poll() is None
        end_by_exit(clone.client, 3)
        assert waiting.wait(10) == 3


def test_ps_agrees_with_restore(bed: Bed, parent: Parent) -> None:
    clones = [
        clone
        for node in (LOCAL, *NODES)
        for clone in bed.clones(parent.image, parent.listen_fd, 2, node)
    ]
    for clone in clones:
        clone.client.run()
    shown = bed.farfork.json("ps")
    assert [(line["node"], line["pid"]) for line in shown] == sorted(
        (clone.node, clone.pid) for clone in clones
    )
    for line in shown:
        assert line["image"] == parent.image
        assert line["tiering"] == "mow"
        assert line["cid"] == clones[0].said["cid"]
        assert 0 < line["local_bytes"] < line["pool_bytes"]
        assert line["vmas"] > 0
        assert line["faults"]["minor"] > 0
        # The pid is one of this namespace: its /proc shows the function.
        assert b"farfork.runtime" in Path(f"/proc/{line['pid']}/cmdline").read_bytes()


def test_restore_prints_its_documented_fields(bed: Bed, parent: Parent, node: str) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd, node=node)
    assert set(clone.said) >= {
        "pid", "cid", "restore_us", "phases_us", "vmas", "pool_bytes", "local_bytes",
    }  # fmt: skip
    assert 0 < clone.said["restore_us"] < 1e6
    assert sum(clone.said["phases_us"].values()) == pytest.approx(clone.said["restore_us"])


def test_a_foreground_restore_ends_with_its_clones_status(
    bed: Bed, parent: Parent, node: str
) -> None:
    path, call = bed.restore_call(parent.image, parent.listen_fd, "--node", node)
    with bed.foreground(call) as restore:
        client = bed.client(path.replace("%i", "0"))
        assert client.call("run")["generation"] == 1
        assert restore.poll() is None
        end_by_exit(client, 9)
        assert restore.wait(10) == 9


def test_a_foreground_restore_that_is_killed_takes_its_clones_along(
    bed: Bed, parent: Parent, node: str
) -> None:
    options = ("--node", node, "--count", 2)
    path, call = bed.restore_call(parent.image, parent.listen_fd, *options)
    with bed.foreground(call) as restore:
        for index in "01":
            assert bed.client(path.replace("%i", index)).call("run")["generation"] == 1
        pids = [line["pid"] for line in bed.farfork.json("ps", "--node", node)]
        assert len(pids) == 2
        restore.kill()
    for pid in pids:
        ended = bed.farfork.run("wait", pid, "--node", node)
        assert ended.returncode == SIGNALLED + signal.SIGKILL
    assert bed.farfork.json("ps", "--node", node) == []


def test_a_detached_clone_outlives_its_restore(bed: Bed, parent: Parent, node: str) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd, node=node)
    time.sleep(1.5)  # longer than an agent takes to see that a caller has gone
    assert clone.client.call("run")["generation"] == 1


def test_stopping_a_clone_is_a_success(bed: Bed, parent: Parent, node: str) -> None:
    (clone,) = bed.clones(parent.image, parent.listen_fd, node=node)
    clone.client.stop()
    assert bed.farfork.run("wait", clone.pid, "--node", node).returncode == 0


def test_calls_that_cannot_be_done_say_why(bed: Bed, parent: Parent) -> None:
    for arguments, status, words in [
        (["restore", "test/nothing"], 1, "there is no image test/nothing"),
        (["restore", parent.image], 1, f"fd {parent.listen_fd} "),
        (["restore", "--pid-mode", "same", "--count", 2, parent.image], USAGE, "--pid-mode same"),
        (["restore"], USAGE, "<IMAGE>"),
        (["wait", os.getpid()], 1, str(os.getpid())),
        (["kill", os.getpid()], 1, str(os.getpid())),
        (["checkpoint", "--pid", 2**22 + 1, "--name", "test/none"], 1, str(2**22 + 1)),
    ]:
        done = bed.farfork.run(*arguments)
        assert (done.returncode, done.stdout) == (status, ""), arguments
        assert words in done.stderr, done.stderr
