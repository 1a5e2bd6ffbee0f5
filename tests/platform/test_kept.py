"""What a function keeps from its load that clones would not have."""

import ctypes
import shutil
import socket
import time
from pathlib import Path

import pytest
from served import Platform, await_true, deciding

from farfork.runtime import kept

FILE = """
open("/tmp/model", "w").write("weights")
def main(args):
    return {"model": open("/tmp/model").read()}
"""
BESIDE = """
open("model", "w").write("weights")
def main(args):
    return {"model": open("model").read()}
"""
CONNECTION = """
import socket
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
def main(args):
    near.send(b"hi")
    return {"got": far.recv(9).decode()}
"""
NODE = """
const fs = require("fs");
fs.writeFileSync("/tmp/model", "weights");
function main() { return { model: fs.readFileSync("/tmp/model", "utf8") }; }
"""
NODE_BESIDE = NODE.replace("/tmp/model", "model")
LEAVING = """
def main(args):
    open("/tmp/left", "w").write("x")
    open("left", "w").write("x")
    return {}
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> kept.Kept:
    """Return what looked before a load."""
    (tmp_path / "before").touch()
    monkeypatch.setattr(kept, "SCRATCH", (tmp_path,))
    begun = kept.Kept()
    begun.begin()
    return begun


def test_files_of_the_load_are_kept(begun: kept.Kept, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("weights")
    begun.end()
    (tmp_path / "of-a-call").touch()
    reason = begun.reason()
    assert str(model) in (reason or "")
    assert "of-a-call" not in (reason or "")
    model.unlink()
    assert begun.reason() is None


def test_files_of_the_load_in_the_working_directory_are_kept(tmp_path: Path) -> None:
    # Its own file system, so that the number of its files is that of the test.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(tmp_path), b"tmpfs", 0, None) != 0:
        pytest.skip("mounting needs root")
    try:
        (tmp_path / "deep").mkdir()
        (tmp_path / "before").touch()
        time.sleep(0.02)  # a tick of the kernel's, in which times of files are
        begun = kept.Kept()
        begun.begin(tmp_path)
        (tmp_path / "left").touch()
        (tmp_path / "left").unlink()
        begun.end()
        assert begun.reason() is None
        begun.begin(tmp_path)
        model = tmp_path / "deep/model"
        model.touch()
        begun.end()
        (tmp_path / "of-a-call").touch()
        assert str(model) in (begun.reason() or "")
        assert "before" not in (begun.reason() or "")
        assert "of-a-call" not in (begun.reason() or "")
        model.unlink()
        assert begun.reason() is None
        time.sleep(0.02)
        begun.begin(tmp_path)
        (tmp_path / "cache").mkdir()
        begun.end()
        assert str(tmp_path / "cache") in (begun.reason() or ""), "clones would not have it"
        begun.begin(tmp_path)
        (tmp_path / "before").unlink()
        begun.end()
        assert str(tmp_path) in (begun.reason() or ""), "clones would have it again"
    finally:
        libc.umount2(bytes(tmp_path), 2)


def test_nothing_is_looked_for_outside_of_the_platform() -> None:
    assert kept.Kept().reason() is None


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_to_itself_is_seen(begun: kept.Kept, family: socket.AddressFamily) -> None:
    begun.end()
    dual = family == socket.AF_INET6
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as server:
        with socket.create_connection(("127.0.0.1", server.getsockname()[1])):
            assert begun.reason() is None  # not accepted yet
            with server.accept()[0]:
                assert "TCP connection to itself" in (begun.reason() or "")
        assert begun.reason() is None


def calls(platform: Platform, name: str, code: str, kind: str = "python:default") -> None:
    body = {"exec": {"kind": kind, "code": code}}
    assert platform.ask("PUT", f"actions/{name}", body).status == 200
    for _ in range(3):
        platform.good(name)


def test_what_clones_would_lack_keeps_a_function_cold() -> None:
    with deciding({"checkpoint": {"policy": "after-calls", "calls": 2}}) as platform:

        def has(text: str) -> bool:
            return text in platform.log()

        def has_image() -> bool:
            images = platform.farfork.json("images", "list")
            return "guest/leaving" in {image["name"].split(":")[0] for image in images}

        calls(platform, "files", FILE)
        await_true(lambda: has("keeps files from its load"), "the reason is in the log")
        assert not has("/code/.empty-")
        calls(platform, "beside", BESIDE)
        await_true(lambda: has("/code/.empty-"), "the reason is in the log")
        calls(platform, "connection", CONNECTION)
        await_true(lambda: has("keeps a TCP connection to itself"), "the reason is in the log")
        calls(platform, "leaving", LEAVING)
        await_true(has_image, "what calls leave is no reason")


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
@pytest.mark.parametrize("code", [NODE, NODE_BESIDE])
def test_functions_of_node_are_looked_at_likewise(code: str) -> None:
    with deciding({"checkpoint": {"policy": "after-calls", "calls": 2}}) as platform:
        calls(platform, "node", code, "nodejs:default")
        await_true(
            lambda: "keeps files from its load" in platform.log(), "the reason is in the log"
        )
