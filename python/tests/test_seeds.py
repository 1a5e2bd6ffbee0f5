"""A process that prepares itself: it and its clones know which is which."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from bed import why_not
from patience import run_to_end

from farfork.demo.command import find_binary
from farfork.seeds import Seed, SeedError, reclaim, resume

PACKAGE = Path(__file__).resolve().parents[1]
LIMIT_S = 60
needs_clones = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

PARENT = """
    import os, sys, time
    from pathlib import Path
    import farfork
    from farfork.seeds import SeedError

    out = Path(sys.argv[1])
    memory = bytearray(b"before" * 100_000)

    def told(name, text):
        (out / f"{name}.new").write_text(text)
        os.rename(out / f"{name}.new", out / name)

    seed = farfork.prepare(listen="127.0.0.1")
    if seed.is_child:
        try:
            farfork.resume(seed)
        except SeedError as error:
            told(f"child-{os.urandom(4).hex()}", f"{memory == b'before' * 100_000} {error}")
        os._exit(0)
    memory[:] = b"after!" * 100_000
    children = [farfork.resume(seed, "--no-prefetch") for _ in range(2)]
    while len(list(out.glob("child-????????"))) < 2:
        time.sleep(0.01)
    farfork.reclaim(seed, wait_s=0)
    try:
        farfork.resume(seed)
    except SeedError as error:
        told("refused", str(error))
    told("parent", f"{len(set(child.pid for child in children))} {seed!r} {seed.handle[:4]}")
"""


@pytest.fixture
def run_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a run directory; its agent ends after the test."""
    # The names of sockets may not be long.
    run = Path(tempfile.mkdtemp(prefix="ff-"))
    monkeypatch.setenv("FARFORK_RUN", str(run))
    monkeypatch.setenv("FARFORK_BIN", str(find_binary()))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    # What clones have mapped is unmounted so many seconds after them.
    monkeypatch.setenv("FARFORK_SEED_MOUNTED_S", "1")
    yield run
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        if client.connect_ex(str(run / "local.sock")) == 0:
            peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            os.kill(struct.unpack("3i", peer)[0], signal.SIGKILL)
    until = time.monotonic() + LIMIT_S
    while str(run) in Path("/proc/mounts").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    shutil.rmtree(run, ignore_errors=True)


def run_python(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has this process's pipes as standard streams only."""
    return run([sys.executable, "-c", dedent(source), *arguments])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return run_to_end(command, LIMIT_S)


@needs_clones
def test_parent_and_children_know_which_they_are(run_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    ended = run_python(PARENT, str(out))
    assert ended.returncode == 0, ended.stderr
    children = [path.read_text() for path in out.glob("child-????????")]
    assert len(children) == 2
    for child in children:
        is_as_before, reason = child.split(" ", 1)
        assert is_as_before == "True"
        assert "does not have the handle" in reason
    assert (out / "parent").read_text() == "2 Seed(is_child=False) ff1-"
    assert "seed" in (out / "refused").read_text()


@needs_clones
def test_what_cannot_be_prepared_goes_on_with_the_reason(run_directory: Path) -> None:
    ended = run_python(
        """
        import os, subprocess, farfork
        from farfork.seeds import SeedError
        child = subprocess.Popen(["sleep", "60"])
        try:
            farfork.prepare(listen="127.0.0.1")
        except SeedError as error:
            print("refused:", error)
        child.kill()
        child.wait()
        seed = farfork.prepare(listen="127.0.0.1")
        print(seed.is_child)
        farfork.reclaim(seed, wait_s=0)
        """
    )
    assert ended.returncode == 0, ended.stderr
    *reasons, last = ended.stdout.splitlines()
    assert reasons[0].startswith("refused:")
    assert "child process" in "".join(reasons)
    assert last == "False"


@needs_clones
def test_a_process_that_does_not_wait_gets_no_reply(run_directory: Path) -> None:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as sleeping:
        command = [os.environ["FARFORK_BIN"], "prepare", "--listen", "127.0.0.1"]
        command += ["--pid", str(sleeping.pid), "--reply-at", str(0x400000)]
        ended = run(command)
        sleeping.kill()
    assert ended.returncode == 1
    assert "reply" in ended.stderr


def test_errors_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "farfork"
    program.write_text("#!/bin/sh\necho farfork: no seed here >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("FARFORK_BIN", str(program))
    for call in (lambda: resume("ff1-x"), lambda: reclaim(Seed("ff1-x"))):
        with pytest.raises(SeedError, match=r"^no seed here$"):
            call()
    begun = time.monotonic()
    with pytest.raises(SeedError, match="its own seed"):
        resume(Seed(None))
    assert time.monotonic() - begun < LIMIT_S
