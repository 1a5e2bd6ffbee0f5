"""What functions cannot do, tried by functions that mean ill."""

import base64
import io
import os
import shutil
import socket
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import node_of
from served import Platform, await_true, start_kind

# Reports its identity, and runs what its arguments say.
PROBE = r"""
import ctypes, os, signal, socket, sys, tempfile, threading, time

libc = ctypes.CDLL(None, use_errno=True)
os.environ["OF_THE_CODE"] = "kept"

def who(args):
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    names = ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs",
             "Seccomp")
    seen = {name: fields[name].split() for name in names}
    fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
           if os.path.lexists(f"/proc/self/fd/{fd}")]
    return seen | {"fds": fds, "environment": dict(os.environ), "directory": os.getcwd()}

def attempt(args):
    try:
        path, mode = args["open"]
        open(path, mode).close()
    except OSError as error:
        return {"errno": error.errno}
    return {"errno": 0}

def connect(args):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as it:
        return {"errno": it.connect_ex(args["path"])}

def call(args):
    ctypes.set_errno(0)
    answer = libc.syscall(*[ctypes.c_long(one) for one in args["call"]])
    return {"answer": answer, "errno": ctypes.get_errno()}

def scratch(args):
    before = {place: sorted(os.listdir(place)) for place in args["places"]}
    for place in args["places"]:
        with open(os.path.join(place, args["name"]), "w") as file:
            file.write("mine")
    return {"before": before, "temporary": tempfile.gettempdir()}

def change(args):
    os.environ["CHANGED"] = "x"
    os.environ["PATH"] = "/nowhere"
    os.chdir("/tmp")
    return {}

def bomb(args):
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)

def forks(args):
    threads = []
    try:
        while len(threads) < 5000:
            threads.append(threading.Thread(target=time.sleep, args=(3,)))
            threads[-1].start()
    except RuntimeError:
        pass
    return {"threads": len(threads)}

def writable(args):
    own = {"/proc", "/tmp", "/var/tmp", "/dev/shm", "/run/lock", os.getcwd()}
    found = set()
    def attempt(place):
        path = os.path.join(place, "of-a-function")
        try:
            open(path, "w").close()
        except OSError:
            return
        # A link may lead to what it has for itself.
        if os.path.realpath(place) in own:
            os.unlink(path)
        else:
            found.add(place)
    for place in args["places"]:
        attempt(place)
    for root, directories, _ in os.walk("/"):
        directories[:] = [one for one in directories if os.path.join(root, one) not in own]
        for one in directories:
            attempt(os.path.join(root, one))
    return {"found": sorted(found)}

def terminals(args):
    before, opened = sorted(os.listdir("/dev/pts")), []
    try:
        while len(opened) < 500:
            opened.append(os.open("/dev/ptmx", os.O_RDWR))
    except OSError as error:
        return {"before": before, "count": len(opened), "errno": error.errno}
    finally:
        [os.close(fd) for fd in opened]
    return {"before": before, "count": len(opened), "errno": 0}

def machine(args):
    seen = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as it:
        seen["socket"] = it.connect_ex(args["socket"])
    for name, flags in {"read": os.O_RDONLY, "write": os.O_RDWR}.items():
        try:
            os.close(os.open(args["pipe"], flags | os.O_NONBLOCK))
            seen[name] = 0
        except OSError as error:
            seen[name] = error.errno
    return seen

def buffers(args):
    # Bytes that it leaves in buffers of TCP sockets.
    outputs = []
    for _ in range(3):
        output, theirs = os.pipe()
        outputs.append(output)
        if os.fork() == 0:
            with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
                ends, sent = [], 0
                for _ in range(450):
                    ends.append(socket.create_connection(server.getsockname()))
                    ends.append(server.accept()[0])
                for _ in range(10):
                    for end in ends:
                        end.setblocking(False)
                        try:
                            while True:
                                sent += end.send(bytes(1 << 16))
                        except OSError:
                            pass
                os.write(theirs, str(sent).encode())
                time.sleep(1)
            os._exit(0)
        os.close(theirs)
    sent = sum(int(os.read(output, 100)) for output in outputs)
    [os.wait() for _ in outputs]
    return {"sent": sent}

def processes(args):
    import resource
    return {"limit": resource.getrlimit(resource.RLIMIT_NPROC)}

def unmap(args):
    libc.munmap(ctypes.c_void_p(0x4f0000000000), ctypes.c_size_t(1 << 30))
    return {}

def files(args):
    opened = []
    try:
        while len(opened) < 5000:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return {"files": len(opened), "errno": error.errno}
    finally:
        [os.close(fd) for fd in opened]

def deaf(args):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass

def chatter(args):
    while True:
        print("x" * 1000)

def fill(args):
    with open("/tmp/big", "wb") as file:
        for _ in range(args["mb"]):
            file.write(bytes(1 << 20))
    return {}

def kill(args):
    os.kill(args["pid"], signal.SIGKILL)
    return {}

def clocks(args):
    return {name: time.clock_gettime(getattr(time, name)) for name in args["names"]}

def main(args):
    time.sleep(args.get("sleep", 0))
    try:
        return globals()[args["do"]](args)
    except PermissionError as error:
        return {"errno": error.errno}
"""

EPERM, ENOENT, EACCES, ENOSPC, EROFS, ENOSYS = 1, 2, 13, 28, 30, 38
SYS = {"ptrace": 101, "setuid": 105, "unshare": 272, "mount": 165, "bpf": 321, "clone": 56}
SYS |= {"socketpair": 53, "remap_file_pages": 216}
SYS |= {"io_uring_setup": 425, "keyctl": 250, "clone3": 435, "socket": 41, "chroot": 161}
NEW_USER_NAMESPACE = 0x10000000


def probe(platform: Platform, name: str, do: str, /, **args: Any) -> Any:
    return platform.good(name, do=do, **args)["response"]["result"]


def within_limit(platform: Platform, name: str, do: str) -> Any:
    """Do it as soon as the machine is quick enough: a call's time limit counts by the clock."""
    answers = []

    def is_made() -> bool:
        answers.append(platform.call(name, do=do))
        seen = answers[-1]
        assert seen.status == 200 or "exceeded its time limits" in str(seen.body["response"]), seen
        return seen.status == 200

    await_true(is_made, f"{do} within its time limit")
    return answers[-1].body["response"]["result"]


@pytest.fixture
def warm(platform: Platform) -> str:
    """Return the name of a function that has an image."""
    name = "probe"
    if platform.ask("GET", f"actions/{name}").status == 404:
        platform.deploy(name, PROBE)
        for _ in range(17):
            probe(platform, name, "who")
    return name


def clone_of(platform: Platform, name: str, do: str, /, **args: Any) -> Any:
    """Do it in a clone: there are more calls than instances that could make them.

    Calls last until one has started. On a busy machine that takes longer than at first thought.
    """
    for sleep in (0.5, 1, 2, 4, 8):
        count = len(platform.instances()) + 1
        call = partial(platform.good, name, do=do, sleep=sleep + count / 16, **args)
        with ThreadPoolExecutor(count) as pool:
            made = [one.result() for one in [pool.submit(call) for _ in range(count)]]
        kinds = [start_kind(one) for one in made]
        if "clone" in kinds:
            return made[kinds.index("clone")]["response"]["result"]
    raise AssertionError((kinds, platform.log()))


def check_who(seen: dict[str, Any]) -> None:
    (user,) = set(seen["Uid"])
    assert int(user) >= 2_000_000_000
    assert (set(seen["Gid"]), seen["Groups"]) == ({user}, [])
    for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
        assert int(seen[name][0], 16) == 0, name
    assert (seen["NoNewPrivs"], seen["Seccomp"]) == (["1"], ["2"])
    kinds = sorted(fd.split(":")[0] for fd in seen["fds"])
    # Its input, its output, the socket it listens on, and the connection of this call.
    assert kinds == ["/dev/null", "pipe", "pipe", "socket", "socket"], seen["fds"]


def test_a_function_is_unprivileged_before_its_code_is_loaded_and_in_clones(
    platform: Platform,
) -> None:
    platform.deploy("first", PROBE)
    check_who(probe(platform, "first", "who"))


def test_a_clone_is_confined_as_its_parent_is(platform: Platform, warm: str) -> None:
    check_who(clone_of(platform, warm, "who"))
    assert clone_of(platform, warm, "call", call=[SYS["unshare"], NEW_USER_NAMESPACE]) == {
        "answer": -1,
        "errno": ENOSYS,
    }


@pytest.mark.parametrize(
    ("call", "errno"),
    [
        ([SYS["setuid"], 0], EPERM),
        ([SYS["ptrace"], 16, 1, 0, 0], ENOSYS),
        ([SYS["unshare"], NEW_USER_NAMESPACE], ENOSYS),
        ([SYS["clone"], NEW_USER_NAMESPACE | 17, 0, 0, 0, 0], ENOSYS),
        ([SYS["clone3"], 0, 0], ENOSYS),
        ([SYS["mount"], 0, 0, 0, 0, 0], ENOSYS),
        ([SYS["chroot"], 0], ENOSYS),
        ([SYS["bpf"], 0, 0, 0], ENOSYS),
        ([SYS["io_uring_setup"], 1, 0], ENOSYS),
        ([SYS["keyctl"], 0, -3, 1], ENOSYS),
        ([SYS["socket"], 40, 1, 0], ENOSYS),  # AF_VSOCK reaches the machine's host
        ([SYS["socket"], 17, 3, 0], ENOSYS),  # AF_PACKET
        ([SYS["socket"], 16, 3, 12], ENOSYS),  # netfilter's netlink
        ([SYS["socket"], 2, 3, 1], EPERM),  # raw IP
        ([SYS["socketpair"], 30, 1, 0, 0], ENOSYS),  # AF_TIPC
        ([SYS["remap_file_pages"], 0, 0, 0, 0, 0], ENOSYS),
    ],
)
def test_denied_calls_fail(platform: Platform, warm: str, call: list[int], errno: int) -> None:
    assert probe(platform, warm, "call", call=call) == {"answer": -1, "errno": errno}


def test_the_operators_files_are_out_of_reach(platform: Platform, warm: str) -> None:
    pool = Path(platform.farfork.environment["FARFORK_POOL"])
    private = [path for path in platform.state.iterdir() if path.is_file()]
    private += [pool, pool / "superblock", *(pool / "images").iterdir()]
    assert {"store.redb", "guest.key", "decisions.jsonl"} <= {path.name for path in private}
    for path in [*private, Path("/etc/shadow")]:
        if path.name in {"log", "said"}:  # the test's own
            continue
        seen = probe(platform, warm, "attempt", open=[str(path), "rb"])
        assert seen["errno"] in (EACCES, ENOENT), path
    assert probe(platform, warm, "attempt", open=["/etc/farfork-probe", "w"])["errno"] == EROFS
    sockets = [path for path in (pool.parent / "run").iterdir() if path.is_socket()]
    assert len(sockets) >= 2, "agents listen there"
    for path in sockets:
        assert probe(platform, warm, "connect", path=str(path))["errno"] == ENOENT, path
    assert probe(platform, warm, "kill", pid=1) == {"errno": EPERM}


def test_each_instance_has_its_own_scratch_directories(platform: Platform, warm: str) -> None:
    places = ["/tmp", "/var/tmp", "/dev/shm"]
    seen = probe(platform, warm, "scratch", places=places, name="of-the-parent")
    before = seen["before"]
    assert sum(map(len, before.values())) <= 1, (
        "they have what functions need: nothing, or a part of the checkout"
    )
    seen = clone_of(platform, warm, "scratch", places=places, name="of-a-clone")
    assert seen["before"] == before
    assert not [path for place in places for path in Path(place).glob("of-*")]


def test_nothing_of_the_machine_is_writable(platform: Platform, warm: str) -> None:
    places = [Path("/usr/local/farfork-probe"), Path("/run/farfork-probe")]
    try:
        for place in places:
            place.mkdir()
            place.chmod(0o1777)
        for do in (probe, clone_of):
            seen = do(platform, warm, "writable", places=[str(place) for place in places])
            assert seen == {"found": []}
        assert not [left for place in places for left in place.iterdir()]
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


def test_sockets_and_pipes_of_the_machine_are_out_of_reach(platform: Platform, warm: str) -> None:
    places = [Path("/run/farfork-probe"), Path("/var/lib/farfork-probe")]
    try:
        for place in places:
            place.mkdir()
            place.chmod(0o777)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as service:
                service.bind(str(place / "socket"))
                service.listen()
                (place / "socket").chmod(0o666)
                os.mkfifo(place / "pipe")
                (place / "pipe").chmod(0o666)
                paths = {name: str(place / name) for name in ("socket", "pipe")}
                for do in (probe, clone_of):
                    seen = do(platform, warm, "machine", **paths)
                    assert seen == {"socket": ENOENT, "read": ENOENT, "write": ENOENT}, place
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


def test_buffers_of_sockets_are_limited(platform: Platform) -> None:
    platform.deploy("buffers", PROBE, memory=128)
    # A quarter of its memory, and some KiB for each socket. Without limits it is 2.4 GB.
    assert probe(platform, "buffers", "buffers")["sent"] < 100 << 20


def test_each_instance_has_terminals_of_its_own(platform: Platform, warm: str) -> None:
    for do in (probe, clone_of):
        seen = do(platform, warm, "terminals")
        assert seen == {"before": ["ptmx"], "count": 16, "errno": ENOSPC}


def test_a_namespace_may_have_a_part_of_the_machines_processes(
    platform: Platform, warm: str
) -> None:
    machine = min(
        int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max")
    )
    for do in (probe, clone_of):
        assert do(platform, warm, "processes") == {"limit": [machine // 4] * 2}
        assert do(platform, warm, "files")["files"] < 1024


def test_a_clone_without_farforks_memory_is_not_checkpointed(platform: Platform) -> None:
    platform.deploy("unmaps", PROBE)
    probe(platform, "unmaps", "unmap")
    await_true(lambda: probe(platform, "unmaps", "who") and "not checkp" in platform.log(), "told")
    (line, *_) = [line for line in platform.log().splitlines() if "not checkpointed" in line]
    assert "has unmapped farfork's memory at 0x4f0000000000" in line, line


def test_activations_start_with_the_same_environment(platform: Platform, warm: str) -> None:
    first = probe(platform, warm, "who")
    probe(platform, warm, "change")
    again = probe(platform, warm, "who")
    (user,) = set(first["Uid"])
    directory = str(platform.state.resolve() / f"code/.empty-{user}")
    assert again["directory"] == first["directory"] == directory
    assert again["environment"].get("CHANGED") is None
    assert again["environment"]["PATH"] == first["environment"]["PATH"]
    assert again["environment"]["OF_THE_CODE"] == "kept"
    assert first["environment"]["__OW_ACTIVATION_ID"] != again["environment"]["__OW_ACTIVATION_ID"]


def test_clocks_are_those_of_the_machine_in_clones_too(platform: Platform, warm: str) -> None:
    names = ["CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME"]

    def read() -> list[float]:
        return [time.clock_gettime(getattr(time, name)) for name in names]

    for do in (probe, clone_of):
        before = read()
        seen = do(platform, warm, "clocks", names=names)
        after = read()
        for name, first, last in zip(names, before, after, strict=True):
            assert first < seen[name] < last, name


@pytest.mark.parametrize("do", ["bomb", "deaf", "chatter"])
def test_endless_calls_are_ended(platform: Platform, do: str) -> None:
    platform.deploy(f"never-{do}", PROBE, timeout=2000, logs=1)
    ended = platform.call(f"never-{do}", do=do)
    assert ended.status == 502
    # So many processes may come to want more memory than it may have, before their time is over.
    words = ["exceeded its time limits", *(["exited unexpectedly"] if do == "bomb" else [])]
    assert any(word in str(ended.body["response"]) for word in words), ended.body
    assert sum(map(len, ended.body["logs"])) < 2 << 20

    def others() -> int:
        own = node_of(platform, "node1") | node_of(platform, "node2")
        return sum(user_of(Path(f"/proc/{pid}")) >= 2_000_000_000 for pid in own)

    await_true(lambda: others() <= len(platform.instances()), "what it has begun is gone")
    check_who(within_limit(platform, f"never-{do}", "who"))
    assert others() > 0, "the processes of functions are not found"
    instances = len(platform.instances())
    await_true(lambda: others() <= instances, "the processes it has made are gone")


def test_an_answer_that_is_too_long_ends_the_instance(platform: Platform) -> None:
    code = "def main(args): return {'a': 'x' * args['bytes']}"
    platform.deploy("talker", code)
    before = {one["pid"] for one in platform.instances()}
    assert platform.call("talker", bytes=1000).status == 200
    (pid,) = {one["pid"] for one in platform.instances()} - before
    ended = platform.call("talker", bytes=2 << 20)
    assert ended.status == 502
    assert f"{1 << 20} bytes" in str(ended.body["response"]), ended.body
    await_true(lambda: not Path(f"/proc/{pid}").exists(), "its instance has ended")
    assert platform.call("talker", bytes=1000).status == 200


def user_of(path: Path) -> int:
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return 0


def test_threads_and_files_are_limited(platform: Platform) -> None:
    platform.deploy("greedy", PROBE, memory=128)
    assert 100 < probe(platform, "greedy", "forks")["threads"] < 512
    files = probe(platform, "greedy", "files")
    assert (files["errno"], 900 < files["files"] < 1024) == (24, True)


def test_files_in_memory_are_limited(platform: Platform) -> None:
    platform.deploy("greedy", PROBE, memory=128)
    probe(platform, "greedy", "fill", mb=16)
    ended = platform.call("greedy", do="fill", mb=512)
    assert ended.status == 502, ended.body
    assert not Path("/tmp/big").exists()


def test_functions_of_a_namespace_are_one_user(platform: Platform, warm: str) -> None:
    (user,) = set(probe(platform, warm, "who")["Uid"])
    platform.deploy("sibling", PROBE)
    assert set(probe(platform, "sibling", "who")["Uid"]) == {user}


def archive(**files: str) -> str:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for name, text in files.items():
            made.writestr(name.replace("__py", ".py").replace("__txt", ".txt"), text)
    return base64.b64encode(content.getvalue()).decode()


LAZY = """
def main(args):
    import time
    import beside
    time.sleep(args.get("sleep", 0))
    with open("data.txt") as data:
        text = data.read()
    return {"value": beside.VALUE, "text": text}
"""


def test_an_archives_files_are_there_for_clones_and_go_with_it(
    platform: Platform, warm: str
) -> None:
    code = archive(**{"main__py": LAZY, "beside__py": "VALUE = 7", "data__txt": "hello"})
    body = {"exec": {"kind": "python:default", "code": code, "binary": True}}
    assert platform.ask("PUT", "actions/zipped?overwrite=true", body).status == 200
    expected = {"value": 7, "text": "hello"}
    for _ in range(17):
        assert platform.good("zipped")["response"]["result"] == expected
    assert clone_of(platform, "zipped", "anything") == expected

    def folders() -> list[str]:
        return [path.name for path in (platform.state / "code").iterdir() if "zipped" in path.name]

    assert len(folders()) == 1
    (folder,) = (platform.state / "code").glob("*zipped*")
    (user,) = set(probe(platform, warm, "who")["Uid"])
    for path in (folder, folder / "data.txt"):
        assert (path.stat().st_uid, path.stat().st_gid) == (int(user), int(user))
    assert folder.stat().st_mode & 0o7777 == 0o750
    assert platform.ask("DELETE", "actions/zipped").status == 200
    await_true(lambda: folders() == [], "they go with it")
    wrong = base64.b64encode(b"PK\x03\x04 and no more of it").decode()
    body["exec"]["code"] = wrong
    platform.ask("PUT", "actions/no-zip?overwrite=true", body)
    answer = platform.call("no-zip")
    assert (answer.status, "cannot unpack" in str(answer.body)) == (502, True)
