"""Functions that pass objects through a region: cold, cloned, killed, and refused."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from processes import containers
from served import POOL_SIZE, Platform, await_true, open_place, serving, start_kind

from farfork import hooks, objects
from farfork.demo.command import Farfork

SIZE = "16M"
# A user id that no namespace has.
STRANGER = 54321
# After so many calls an instance is checkpointed.
CALLS = 2
# A list of three objects, of which the root is sent: each has a reference and a number.
SEND = """
import ctypes, os
from farfork import objects

region = objects.attach()
mailbox = region.mailbox("lists", 8)

def node(number):
    made = region.library.ff_alloc_refs(region.handle, 16, 1)
    ctypes.c_uint64.from_address(made + 8).value = number
    return made

def main(args):
    root = last = node(args["first"])
    for number in range(args["first"] + 1, args["first"] + 3):
        new = node(number)
        assert region.library.ff_link(region.handle, root, last, 0, new) == 0, region.fail("link")
        last = new
    if args.get("dies"):
        kept = [region.library.ff_alloc(region.handle, 50_000) for _ in range(9)]
        os.kill(os.getpid(), 9)
    sent = region.library.ff_send(region.opened("lists", 8), root, 0)
    assert sent == 0, region.fail("send")
    region.mailbox("words", 8).send(b"hello %d" % args["first"], 0)
    return {"region": os.environ["FARFORK_REGION"]}
"""
RECEIVE = """
import ctypes, os
from farfork import objects

region = objects.attach()

def main(args):
    if "grow" in args:
        try:
            os.ftruncate(3, args["grow"])
        except OSError as error:
            return {"refused": error.strerror}
        return {"refused": None}
    at = region.library.ff_recv(region.opened("lists", 8), 0)
    if at is None:
        raise region.fail("receive")
    root, numbers = at, []
    while at:
        reference, number = (ctypes.c_uint64 * 2).from_address(at)
        numbers.append(number)
        at = region.library.ff_deref(region.handle, reference) if reference else None
    region.library.ff_free(region.handle, root)
    return {"numbers": numbers, "words": region.mailbox("words", 8).receive(0).decode()}
"""
LOOKS = """
import os
def main(args):
    return {"region": os.environ.get("FARFORK_REGION"),
            "links": [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
                      if os.path.exists("/proc/self/fd/" + fd)]}
"""

# Opens its region in each call, so that it can be checkpointed.
PROGRAM = r"""#!@PYTHON@
import http.server, json, os, sys
sys.path[:0] = @PATH@
os.environ["FARFORK_LIBRARY"] = @LIBRARY@
from farfork import objects

class Calls(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {}
        if self.path == "/run":
            region = objects.attach()
            box = region.mailbox("program", 4)
            box.send(body["value"]["word"].encode(), 0)
            answer = {"word": box.receive(0).decode(), "path": region.path}
            region.close()
        content = json.dumps(answer).encode()
        self.send_response(404 if self.path == "/prepare" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words):
        pass

http.server.HTTPServer(("127.0.0.1", 8080), Calls).serve_forever()
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    if reason := why_not():
        pytest.skip(reason)
    with open_place() as place, pooled(place, POOL_SIZE) as farfork:
        library = farfork.binary.parent / "libfarfork.so"
        if not library.exists():
            pytest.skip(f"{library} is missing: build farfork-objects")
        # Functions see this directory of /run.
        (place / "state").mkdir()
        readable = place / "state" / library.name
        readable.write_bytes(library.read_bytes())
        farfork.environment["FARFORK_LIBRARY"] = str(readable)
        policies = place / "policies"
        policies.write_text(json.dumps({"checkpoint": {"policy": "after-calls", "calls": CALLS}}))
        options = ("--nodes", "1", "--policies", str(policies))
        with serving(farfork, place / "state", *options) as platform:
            # The platform has made it the operator's alone.
            readable.chmod(0o755)
            region(farfork, "create", "guest/points", "--size", SIZE)
            yield platform
        pool = farfork.environment["FARFORK_POOL"]
        region(farfork, "destroy", "guest/points")
        assert farfork.do("pool", "check", pool) == "the pool is sound\n"
        assert containers(farfork) == set()


def region(farfork: Farfork, *arguments: str) -> str:
    """Run a subcommand of `farfork region` on the pool."""
    return farfork.do("region", *arguments, "--pool", farfork.environment["FARFORK_POOL"])


def deploy(
    platform: Platform, name: str, code: str, of: str = "points", kind: str = "python:default"
) -> None:
    """Deploy a function with a region."""
    body = {
        "exec": {"kind": kind, "code": code},
        "annotations": [{"key": "region", "value": of}],
    }
    answer = platform.ask("PUT", f"actions/{name}?overwrite=true", body)
    assert answer.status == 200, answer


def result(activation: Any) -> Any:
    return activation["response"]["result"]


def objects_owned(platform: Platform) -> int:
    """Return how many objects clients own; dead ones are recovered before."""
    text = region(platform.farfork, "check", "guest/points")
    assert "0 lost, 0 double, 0 foreign" in text, text
    (line,) = [line for line in text.splitlines() if " objects owned" in line]
    return int(line.split()[0])


def test_a_structure_goes_from_one_function_to_another(platform: Platform) -> None:
    deploy(platform, "send", SEND)
    deploy(platform, "receive", RECEIVE)
    kinds = set()
    for turn in range(7):
        if turn == CALLS + 2:
            # New instances come as clones: there is an image by now.
            end_instances(platform)
        sent, got = again(platform, "send", first=10 * turn), again(platform, "receive")
        kinds |= {start_kind(sent), start_kind(got)}
        numbers = [10 * turn + more for more in range(3)]
        assert result(sent) == {"region": "/proc/self/fd/3"}
        assert result(got) == {"numbers": numbers, "words": f"hello {10 * turn}"}
    assert kinds == {"cold", "warm", "clone"}, platform.log()
    assert objects_owned(platform) == 0


def test_a_program_of_another_kind_has_its_region_in_clones_too(platform: Platform) -> None:
    library = platform.farfork.environment["FARFORK_LIBRARY"]
    package = str(Path(objects.__file__).parents[1])
    code = PROGRAM.replace("@PYTHON@", os.path.realpath(sys.executable))
    code = code.replace("@PATH@", repr([package])).replace("@LIBRARY@", repr(library))
    deploy(platform, "program", code, kind="blackbox")
    kinds = set()
    for turn in range(CALLS + 3):
        if turn == CALLS + 2:
            end_instances(platform)
        made = again(platform, "program", word=str(turn))
        kinds.add(start_kind(made))
        assert result(made) == {"word": str(turn), "path": "/proc/self/fd/3"}
    assert kinds == {"cold", "warm", "clone"}, platform.log()


def end_instances(platform: Platform) -> None:
    """Kill all instances, and wait until they have ended."""
    pids = {one["pid"] for one in platform.instances()}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await_true(lambda: not pids & {one["pid"] for one in platform.instances()}, "they end")


def again(platform: Platform, name: str, **args: Any) -> Any:
    """Call a function once more if its instance had been killed before the call came."""
    answer = platform.call(name, **args)
    return answer.body if answer.status == 200 else platform.good(name, **args)


def test_a_killed_instance_leaks_nothing(platform: Platform) -> None:
    deploy(platform, "send", SEND)
    # Recovers instances that tests before have ended.
    assert objects_owned(platform) == 0
    answer = platform.call("send", first=1, dies=True)
    assert answer.status == 502, answer
    text = region(platform.farfork, "check", "guest/points")
    assert "1 dead clients recovered" in text, text
    assert objects_owned(platform) == 0
    text = region(platform.farfork, "info", "guest/points")
    assert " 0 of them in mailboxes" in text, text


def test_an_instance_cannot_make_its_region_larger(platform: Platform) -> None:
    deploy(platform, "receive", RECEIVE)
    assert result(platform.good("receive", grow=17 << 20)) == {"refused": "File too large"}
    size = Path(region_path(platform)).stat().st_size
    assert size == 16 << 20


def region_path(platform: Platform) -> str:
    pool = Path(platform.farfork.environment["FARFORK_POOL"])
    return str(pool / "users" / "guest" / "regions" / "points")


def test_functions_without_a_region_have_none(platform: Platform) -> None:
    platform.deploy("looks", LOOKS)
    seen = result(platform.good("looks"))
    assert seen["region"] is None
    assert seen["links"].count("/dev/null") == 1, "the place of a region is closed"
    assert not any("regions" in link for link in seen["links"]), seen


def test_a_namespace_reaches_its_own_regions_alone(platform: Platform) -> None:
    farfork = platform.farfork
    region(farfork, "create", "other/secret", "--size", SIZE)
    try:
        deploy(platform, "looks", LOOKS, of="secret")
        answer = platform.call("looks")
        assert answer.status == 502, answer
        words = result(answer.body)["error"]
        assert "cannot have its region secret: it does not exist" in words, words
        assert "farfork region create guest/secret" in words, words
        body = {
            "exec": {"kind": "python:default", "code": LOOKS},
            "annotations": [{"key": "region", "value": "../other/secret"}],
        }
        assert platform.ask("PUT", "actions/looks?overwrite=true", body).status == 400
        # One that another user's processes own is not taken over.
        path = Path(region_path(platform))
        owner = path.stat().st_uid
        os.chown(path, STRANGER, -1)
        try:
            deploy(platform, "looks", LOOKS)
            answer = platform.call("looks")
            assert answer.status == 502, answer
            assert f"user id {STRANGER}" in result(answer.body)["error"], answer
            assert path.stat().st_uid == STRANGER
        finally:
            os.chown(path, owner, -1)
    finally:
        region(farfork, "destroy", "other/secret")


def test_bytes_go_between_two_clients_and_around_a_checkpoint(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARFORK_LIBRARY", platform.farfork.environment["FARFORK_LIBRARY"])
    monkeypatch.setattr(hooks, "before", [(objects.pause_all, (), {})])
    monkeypatch.setattr(hooks, "after", [(objects.resume_all, (), {})])
    path = str(tmp_path / "region")
    platform.farfork.do("region", "create", path, "--size", SIZE)
    one, other = objects.attach(path), objects.attach(path)
    for data in (b"", b"x" * 100_000):
        one.mailbox("words").send(data)
        assert other.mailbox("words").receive() == data
    with pytest.raises(objects.ObjectsError, match="mailbox words: the mailbox is empty"):
        other.mailbox("words").receive(timeout_s=0)
    for number in range(64):
        one.mailbox("words").send(b"%d" % number, timeout_s=0)
    with pytest.raises(objects.ObjectsError, match="full"):
        one.mailbox("words").send(b"more", timeout_s=0)
    other.close()
    hooks.run_before()
    with pytest.raises(ValueError, match="is closed"):
        one.mailbox("words").send(b"", timeout_s=0)
    assert "0 objects owned, 64 in mailboxes" in platform.farfork.do("region", "check", path)
    hooks.run_after()
    assert one.mailbox("words").receive() == b"0"
    with pytest.raises(ValueError, match="is closed"):
        other.mailbox("words").receive(0)
    one.close()
    with pytest.raises(objects.ObjectsError, match="attach to /nowhere"):
        objects.attach("/nowhere")
