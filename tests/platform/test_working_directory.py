"""What functions write to their working directories, and to scratch directories."""

import errno
import shutil
import tempfile
import venv
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from bed import pooled, why_not
from kinds import CALLS_BEFORE_IMAGE, archive, clones_of, deploy, result
from served import POOL_SIZE, Platform, await_true, deciding, serving, start_kind

import farfork as package

SOON = {"checkpoint": {"policy": "after-calls", "calls": 3}}
MIB = 1 << 20

# Changes files of its archive, if it has one, and makes others.
PROBE = """
import mmap, os, time

HELD, MAPPED = [], []
if os.path.exists("held.txt"):
    HELD.append(open("held.txt"))
    MAPPED.append(mmap.mmap(HELD[0].fileno(), 0, access=mmap.ACCESS_READ))

def look(args):
    walk = [os.path.join(at, name) for at, _, names in os.walk(".") for name in names]
    files = {os.path.relpath(path): open(path).read() for path in walk if path[-3:] != ".py"}
    return {"files": files, "directory": os.getcwd(),
            "held": [[file.seek(0), file.read()][1] for file in HELD],
            "mapped": [one[:].decode() for one in MAPPED]}

def write(args):
    os.makedirs("deep/er", exist_ok=True)
    for name in ("data.txt", "deep/er/new.txt"):
        with open(name, "w") as file:
            file.write(args["text"])
    if os.path.exists("sub/gone.txt"):
        os.remove("sub/gone.txt")
        os.rename("sub/old.txt", "sub/renamed.txt")
        os.chmod("sub/renamed.txt", 0o600)
    return look(args)

def keep(args):
    HELD.append(open("kept.txt", "w"))
    return {}

def drop(args):
    while HELD:
        HELD.pop().close()
    return {}

def fill(args):
    written = 0
    try:
        with open("large", "wb", buffering=0) as file:
            while written < args["mb"] << 20:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        return {"errno": error.errno, "written": written}
    return {"errno": 0, "written": written}

def empty(args):
    os.remove("large")
    return {}

def main(args):
    time.sleep(args.get("sleep", 0))
    return globals()[args["do"]](args)
"""
FILES = {"data.txt": "old", "held.txt": "held", "sub/gone.txt": "x", "sub/old.txt": "y"}
WRITTEN = {"data.txt": "new", "held.txt": "held", "deep/er/new.txt": "new", "sub/renamed.txt": "y"}

PROBE_JS = """
const fs = require("fs");
exports.main = async ({ text, sleep = 0 }) => {
  await new Promise((done) => setTimeout(done, 1000 * sleep));
  const names = ["data.txt", "new.txt"];
  if (text) names.forEach((name) => fs.writeFileSync(name, text));
  return { files: names.filter(fs.existsSync).map((name) => fs.readFileSync(name, "utf8")) };
};
"""
PROGRAM = r"""#!/usr/bin/python3
import http.server, json, os, time

class Calls(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        args = body["value"] if self.path == "/run" else {}
        time.sleep(args.get("sleep", 0))
        if "text" in args:
            for name in ("data.txt", "new.txt"):
                open(name, "w").write(args["text"])
        names = [name for name in ("data.txt", "new.txt") if os.path.exists(name)]
        content = json.dumps({"files": [open(name).read() for name in names]}).encode()
        self.send_response(404 if self.path == "/prepare" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

http.server.HTTPServer(("127.0.0.1", 8080), Calls).serve_forever()
"""


def folder(platform: Platform, name: str) -> Path:
    """Return where the node has the files of a function's archive."""
    (found,) = (platform.state / "code").glob(f"*_{name}:*")
    return found.resolve()


def content(directory: Path) -> dict[str, str]:
    """Return the files of a directory that are not code."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".py"]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def layers(pids: Iterable[int | str]) -> set[str]:
    """Return the layers that these processes have, by the numbers of their devices."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        except OSError:
            continue
        found |= {line.split()[2] for line in lines if " overlay farfork-layer " in line}
    return found


def pids(platform: Platform) -> set[int]:
    """Return the instances."""
    return {one["pid"] for one in platform.instances()}


def charged(pid: int) -> int:
    """Return the bytes that are charged to the cgroup of a process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            usage = Path(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")
            return int(usage.read_text())
        if number == "0" and Path(f"/sys/fs/cgroup{path}/memory.current").exists():
            return int(Path(f"/sys/fs/cgroup{path}/memory.current").read_text())
    raise AssertionError(f"no memory is counted for {pid}")


def test_an_instance_writes_for_itself_alone(platform: Platform) -> None:
    deploy(platform, "alone", archive({"main.py": PROBE, **FILES}), kind="python:default")
    seen = result(platform, "alone", do="look")
    assert (seen["files"], seen["directory"]) == (FILES, str(folder(platform, "alone")))
    assert result(platform, "alone", do="write", text="new")["files"] == WRITTEN
    assert result(platform, "alone", do="look")["files"] == WRITTEN, "it is the same instance"
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(platform.good, "alone", do="look", sleep=2) for _ in range(2)]
        made = [call.result() for call in calls]
    found = {start_kind(one): one["response"]["result"]["files"] for one in made}
    assert found == {"warm": WRITTEN, "cold": FILES}
    assert content(folder(platform, "alone")) == FILES


@pytest.mark.parametrize("files", [FILES, {}], ids=["archive", "text"])
def test_clones_begin_with_the_files_of_the_archive(files: dict[str, str]) -> None:
    with deciding(SOON) as platform:
        code = archive({"main.py": PROBE, **files}) if files else PROBE
        deploy(platform, "cloned", code, kind="python:default")
        for _ in range(4):
            seen = result(platform, "cloned", do="write", text="new")
        assert seen["files"] == (
            WRITTEN if files else {"data.txt": "new", "deep/er/new.txt": "new"}
        )
        await_true(lambda: has_image(platform, "cloned"), "it is checkpointed")
        for clone in clones_of(platform, "cloned", do="look"):
            seen = clone["response"]["result"]
            assert seen["files"] == files
            # Open since the load, and mapped.
            assert seen["held"] == seen["mapped"] == (["held"] if files else [])
        for clone in clones_of(platform, "cloned", do="write", text="its own"):
            written = clone["response"]["result"]["files"]
            assert written["data.txt"] == written["deep/er/new.txt"] == "its own"
        (directory,) = [Path(seen["directory"])]
        assert content(directory) == files, "the node has what it had"
        instances = pids(platform)
        own = layers(instances)
        assert len(own) == len(instances) > 2
        platform.end()
        everywhere = [path.name for path in Path("/proc").glob("[0-9]*")]
        await_true(lambda: not own & layers(everywhere), "they are gone with the instances")


def has_image(platform: Platform, name: str) -> bool:
    return f"guest/{name}:" in str(platform.farfork.json("images", "list"))


@pytest.mark.parametrize("kind", ["nodejs:default", "blackbox"])
def test_other_kinds_write_likewise(platform: Platform, kind: str) -> None:
    if kind.startswith("node") and shutil.which("node") is None:
        pytest.skip("node is not installed")
    name = f"other-{kind[:4]}"
    files = {"index.js": PROBE_JS, "exec": PROGRAM, "data.txt": "old"}
    deploy(platform, name, archive(files), kind=kind)
    assert result(platform, name) == {"files": ["old"]}
    for _ in range(CALLS_BEFORE_IMAGE):
        assert result(platform, name, text="new") == {"files": ["new", "new"]}
    await_true(lambda: has_image(platform, name), f"it is checkpointed: {platform.log()}")
    for clone in clones_of(platform, name):
        assert clone["response"]["result"] == {"files": ["old"]}
    assert (folder(platform, name) / "data.txt").read_text() == "old"


def test_an_open_file_of_an_instances_own_keeps_it_from_its_checkpoint() -> None:
    with deciding(SOON) as platform:
        deploy(platform, "keeps", PROBE, kind="python:default")
        for _ in range(4):
            platform.good("keeps", do="keep")
        await_true(lambda: "is not as the node has it" in platform.log(), "the log has the reason")
        assert "/kept.txt" in platform.log()
        assert not has_image(platform, "keeps")
        for _ in range(8):
            platform.good("keeps", do="drop")
        await_true(lambda: has_image(platform, "keeps"), "it is checkpointed when it is closed")


def test_what_an_instance_writes_is_limited_and_counts_as_its_memory(platform: Platform) -> None:
    before = pids(platform)
    deploy(platform, "fills", PROBE, kind="python:default", memory=128)
    platform.good("fills", do="drop")
    (pid,) = pids(platform) - before
    empty = charged(pid)
    filled = result(platform, "fills", do="fill", mb=127)
    # Half of its memory, a part of which is for directories.
    assert filled["errno"] == errno.ENOSPC
    assert 60 * MIB < filled["written"] <= 64 * MIB
    assert charged(pid) - empty > 56 * MIB
    platform.good("fills", do="empty")
    await_true(lambda: charged(pid) - empty < 16 * MIB, "it is given back")
    assert pids(platform) - before == {pid}, "it goes on"


WATCHING = """
import ctypes, os, struct

libc = ctypes.CDLL(None, use_errno=True)
WATCH = libc.inotify_init1(os.O_NONBLOCK)
for place in (b".", b"data.txt", b"sub"):
    assert libc.inotify_add_watch(WATCH, place, 0x102) > 0  # modified, or made in it

def main(args):
    for place in ("data.txt", "sub/new.txt"):
        with open(place, "w") as file:
            file.write(args["text"])
    events, seen = os.read(WATCH, 4096), []
    while events:
        number, mask, _, length = struct.unpack_from("iIII", events)
        seen.append([number, mask, events[16 : 16 + length].rstrip(bytes(1)).decode()])
        events = events[16 + length :]
    os.remove("sub/new.txt")
    return {"events": seen}
"""


def test_watches_of_the_working_directory_are_carried(platform: Platform) -> None:
    files = {"main.py": WATCHING, "data.txt": "old", "sub/old.txt": "x"}
    deploy(platform, "watching", archive(files), kind="python:default")
    seen = result(platform, "watching", text="new")
    for _ in range(CALLS_BEFORE_IMAGE):
        result(platform, "watching", text="new")
    await_true(lambda: has_image(platform, "watching"), f"it is checkpointed: {platform.log()}")
    for clone in clones_of(platform, "watching", text="its own"):
        assert clone["response"]["result"] == seen
    assert [event[2] for event in seen["events"]].count("data.txt") > 0


SCRATCH = """
import os, sys, tempfile, time

def main(args):
    time.sleep(args.get("sleep", 0))
    seen = {"python": sys.executable, "package": sys.modules["farfork"].__file__}
    seen["before"] = {place: sorted(os.listdir(place)) for place in args["places"]}
    for place in args["places"]:
        with tempfile.NamedTemporaryFile(dir=place, prefix="of-a-function") as file:
            file.write(b"x")
        open(os.path.join(place, "of-a-function"), "w").close()
    try:
        open(seen["package"], "a").close()
        seen["errno"] = 0
    except OSError as error:
        seen["errno"] = error.errno
    return seen
"""
PLACES = ["/tmp", "/var/tmp", "/dev/shm"]


@contextmanager
def open_directory(above: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="farfork-serve-", dir=above) as place:
        Path(place).chmod(0o711)
        yield Path(place)


@pytest.mark.parametrize("above", PLACES)
def test_functions_have_scratch_directories_though_farfork_lies_in_one(above: str) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with open_directory(above) as place, pooled(place, POOL_SIZE) as farfork:
        venv.create(place / "venv", symlinks=True)
        (packages,) = (place / "venv/lib").glob("python*/site-packages")
        shutil.copytree(Path(package.__file__).parent, packages / "farfork")
        # That it cannot be written is not a matter of its mode.
        (packages / "farfork/__init__.py").chmod(0o666)
        python = str(place / "venv/bin/python")
        farfork.environment.pop("PYTHONPATH", None)
        with serving(farfork, place / "state", "--nodes", "1", python=python) as platform:
            deploy(platform, "scratch", SCRATCH, kind="python:default")
            seen = result(platform, "scratch", places=PLACES)
            assert seen["python"] == python
            assert Path(seen["package"]).is_relative_to(packages)
            assert seen["errno"] == errno.EROFS
            needed = {above: [place.name]}
            assert seen["before"] == {one: needed.get(one, []) for one in PLACES}
            for _ in range(CALLS_BEFORE_IMAGE):
                platform.good("scratch", places=PLACES)
            await_true(lambda: has_image(platform, "scratch"), "it is checkpointed")
            for clone in clones_of(platform, "scratch", places=PLACES):
                assert clone["response"]["result"] == seen
            assert not [path for one in PLACES for path in Path(one).glob("of-a-function*")]


def test_a_scratch_directory_that_python_needs_is_seen_through_a_layer() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with open_directory("/run") as place, pooled(place, POOL_SIZE) as farfork:
        above = farfork.environment.get("PYTHONPATH", "")
        farfork.environment["PYTHONPATH"] = f"{above}:/var/tmp".removeprefix(":")
        with (
            tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="of-the-node") as of_node,
            serving(farfork, place / "state", "--nodes", "1") as platform,
        ):
            deploy(platform, "scratch", SCRATCH, kind="python:default")
            seen = result(platform, "scratch", places=PLACES)
            assert Path(of_node.name).name in seen["before"]["/var/tmp"]
            assert "share a directory with the node" in platform.log()
            assert not list(Path("/var/tmp").glob("of-a-function*"))
