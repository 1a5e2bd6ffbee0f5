"""OpenWhisk's action protocol as a gateway sees it, up to clones of a running action."""

import base64
import http.client
import io
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bed import Bed
from patience import await_true

from farfork.runtime.action import END_OF_ACTIVATION, MAX_BODY_BYTES

HELLO = """
import os
count = 0

def main(args):
    global count
    count += 1
    print("called", count)
    return {"greeting": f"Hello, {args.get('name', 'world')}!", "count": count,
            "activation": os.environ.get("__OW_ACTIVATION_ID"), "mode": os.environ.get("MODE")}
"""
HOOKED = """
import farfork
seen = []
farfork.before_checkpoint(lambda: seen.append("before"))
farfork.after_restore(lambda: seen.append("after"))
farfork.mark_hot(bytearray(8192))
def main(args):
    return {"seen": seen}
"""
CALL = """
import http.client, sys, time
_, path, body = sys.argv
for _ in range(1000):
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
    try:
        connection.connect()
        break
    except ConnectionRefusedError:  # it has just been started
        time.sleep(0.02)
connection.request("POST", path, body)
print(connection.getresponse().read().decode())
"""


class Server:
    """A process that serves an action, and a connection to it."""

    def __init__(self, out: Path) -> None:
        self.port = free_port()
        self._out = out
        call = [sys.executable, "-m", "farfork.runtime.action", "--port", str(self.port)]
        with open(out / "stdout", "wb") as stdout, open(out / "stderr", "wb") as stderr:
            # As a container starts it, where output to a pipe is buffered.
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
            self.process = subprocess.Popen(
                call, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
            )
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        await_port(self.port)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Send a call; returns the answer's status and body."""
        self._connection.request("POST", path, json.dumps(body))
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def init(self, code: str, **more: Any) -> tuple[int, Any]:
        """Send the action's code."""
        return self.post("/init", {"value": {"name": "test", "code": code, **more}})

    def run(self, args: Any, **more: Any) -> tuple[int, Any]:
        """Call the action."""
        return self.post("/run", {"value": args, **more})

    def raw(self, request: bytes, *, is_all: bool = True) -> bytes:
        """Send bytes on a connection of their own, and its end; returns all that comes back."""
        self._connection.close()
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as raw:
            raw.sendall(request)
            if is_all:
                raw.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: raw.recv(65536), b""))

    def printed(self, stream: str) -> list[str]:
        """Return the lines of a stream."""
        return (self._out / stream).read_text().splitlines()

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int) -> None:
    def listens() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return False
        return True

    await_true(listens, f"port {port}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    yield started
    started.end()


def test_an_action_is_initialised_once_and_called_many_times(server: Server) -> None:
    assert server.init(HELLO, env={"MODE": "fast", "LIMITS": {"a": 1}}) == (200, {"ok": True})
    for count in (1, 2, 3):
        status, result = server.run({"name": "Ada"}, activation_id=f"id{count}")
        assert status == 200
        assert result == {
            "greeting": "Hello, Ada!",
            "count": count,
            "activation": f"id{count}",
            "mode": "fast",
        }
    status, answer = server.init(HELLO)
    assert (status, answer["error"]) == (403, "Cannot initialize the action more than once.")


def test_the_log_of_each_activation_is_ended_on_both_streams(server: Server) -> None:
    server.init(HELLO)
    for count in (1, 2):
        server.run({})
        # All of it is there when the answer is.
        assert server.printed("stdout")[-2:] == [f"called {count}", END_OF_ACTIVATION]
        assert server.printed("stderr") == [END_OF_ACTIVATION] * count


def test_a_call_before_the_code_is_refused(server: Server) -> None:
    status, answer = server.run({})
    assert status == 403
    assert "/init" in answer["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise KeyError('missing')", 502, "KeyError: 'missing'"),
        ("import sys; sys.exit(3)", 502, "SystemExit: 3"),
        ("return (1,)", 502, "main returned tuple"),
        ("return {'n': float('nan')}", 502, "not JSON"),
        ("return {'s': {1}}", 502, "not JSON"),
        ("return {'error': 'of its own'}", 200, "of its own"),
    ],
)
def test_errors_of_the_function_do_not_end_the_server(
    server: Server, body: str, status: int, words: str
) -> None:
    server.init(f"def main(args):\n    {body}\n")
    for count in (1, 2):
        seen, answer = server.run({})
        assert seen == status
        assert words in answer["error"]
        assert server.printed("stderr").count(END_OF_ACTIVATION) == count
    # A traceback shows the line, although no file exists.
    assert any(body in line for line in server.printed("stderr")) == (
        "raise" in body or "exit" in body
    )


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        ({"code": "def main(args: return"}, 502, "SyntaxError"),
        ({"code": "import nothing_like_it"}, 502, "ModuleNotFoundError"),
        ({"code": "x = 1"}, 502, "neither main"),
        ({"code": "def main(a): pass", "main": "other"}, 502, "no other(args)"),
        ({"code": ""}, 400, "no code"),
        ({"code": "!", "binary": True}, 400, "base64"),
        ({"code": base64.b64encode(b"no zip").decode(), "binary": True}, 502, "LoadError"),
        ({"code": "x", "env": {"A": "\0"}}, 400, "environment"),
        ({"code": "x", "env": 7}, 400, "env is not a JSON object"),
    ],
)
def test_code_that_does_not_load_is_reported(
    server: Server, value: Any, status: int, words: str
) -> None:
    seen, answer = server.post("/init", {"value": value})
    assert (seen, words in answer["error"]) == (status, True), answer
    assert server.init(HELLO)[0] == 200


def test_a_zip_brings_its_modules_and_main_may_have_another_name(server: Server) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", "import helper\ndef start(args): return helper.double(args)\n")
        file.writestr("helper.py", "def double(args): return {'n': args['n'] * 2}\n")
    code = base64.b64encode(archive.getvalue()).decode()
    assert server.init(code, binary=True, main="start")[0] == 200
    assert server.run({"n": 21}) == (200, {"n": 42})


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /run HTTP/1.1\r\n\r\n", 411),
        (b"POST /run HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 411),
        (b"POST /run HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"POST /run HTTP/1.1\r\nContent-Length: 5\r\n\r\n[1,2]", 400),
        (b"POST /run HTTP/1.1\r\nContent-Length: 3\r\n\r\n{1}", 400),
        (b"POST /run HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", 400),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
        (b"GET /run HTTP/1.1\r\n\r\n", 501),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_an_invalid_request_is_answered_and_does_no_harm(
    server: Server, request_: bytes, status: int
) -> None:
    answer = server.raw(request_)
    assert str(status).encode() in answer.splitlines()[0] or status == 400, answer
    assert server.init(HELLO)[0] == 200


def test_bytes_after_an_incomplete_request_are_not_a_request(server: Server) -> None:
    smuggled = b"POST /init HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    answer = server.raw(b"POST /run HTTP/1.1\r\nContent-Length: x\r\n\r\n" + smuggled)
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_client_that_disconnects_halfway_does_no_harm(server: Server) -> None:
    server.raw(b"POST /init HTTP/1.1\r\nContent-Le")
    server.init(HELLO)
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        # Its end is a reset.
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.sendall(b"POST /run HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
    server._connection.close()
    assert server.run({})[0] == 200


LAUNCHED = """
import http.server, os, socket, sys
ignored = [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")]
listening = socket.socket()  # without SO_REUSEADDR, as a simple program does
listening.bind(("127.0.0.1", int(sys.argv[1])))
listening.listen()
print(sys.argv[2:], dict(os.environ), os.getcwd(), os.listdir("/proc/self/fd"), flush=True)
"""


def launch(server: Server, program: str, *arguments: str, **more: Any) -> None:
    body = {"program": program, "arguments": arguments, "folder": "/", "environment": {}}
    server.post("/launch", body | more)


def test_a_launched_program_has_its_place_and_nothing_else(server: Server) -> None:
    # Read by a shell, before Python ignores some signals itself.
    tell = 'grep SigIgn /proc/self/status; exec "$0" -c "$@"'
    arguments = ["-c", tell, sys.executable, LAUNCHED, str(server.port), "a b", ""]
    environment = {"PATH": "/usr/bin:/bin", "A": "b"}
    with pytest.raises(ConnectionResetError):
        launch(server, "/bin/sh", *arguments, environment=environment, folder="/usr")
    server.process.wait(20)
    ignored, reply = server.printed("stdout")
    # Two signals are the C library's own, and left as the tests' own parents have them.
    assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0
    words = reply.split(" {", 1)
    assert words[0] == "['a b', '']"
    assert "'A': 'b'" in words[1]
    assert "PYTHONPATH" not in words[1]
    assert reply.endswith("} /usr ['0', '1', '2', '3', '4']"), (
        "its own socket, and what it lists by"
    )
    assert server.process.returncode == 0, server.printed("stderr")


def test_a_file_that_becomes_too_large_is_an_error_of_a_program(
    server: Server, tmp_path: Path
) -> None:
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    environment = {"PATH": "/usr/bin:/bin"}
    arguments = ["-c", 'truncate -s 2M "$0"; echo "status $?"', str(tmp_path / "file")]
    with pytest.raises(ConnectionResetError):
        launch(server, "/bin/sh", *arguments, environment=environment)
    server.process.wait(20)
    assert server.printed("stdout") == ["status 1"], server.printed("stderr")


@pytest.mark.parametrize(
    ("program", "content", "words"),
    [
        ("none", None, "the file or its interpreter does not exist"),
        ("interpreter", "#!/nowhere/sh", "the file or its interpreter does not exist"),
        ("nothing", "", "it is neither an ELF program nor a script"),
        ("closed", "#!/bin/sh", "it is not executable"),
    ],
)
def test_a_failed_launch_is_reported_and_ends_the_server(
    server: Server, tmp_path: Path, program: str, content: str | None, words: str
) -> None:
    path = tmp_path / program
    if content is not None:
        path.write_text(content)
        path.chmod(0o644 if program == "closed" else 0o755)
    body = {"program": str(path), "folder": "/"}
    status, reply = server.post("/launch", body)
    assert status == 502
    assert reply["error"].startswith(f"cannot execute {path}: ")
    assert words in reply["error"]
    assert server.process.wait(20) == 0, server.printed("stderr")


def test_a_wrong_launch_is_answered_and_none_follows_code(server: Server) -> None:
    assert server.init(HELLO)[0] == 200
    status, reply = server.post("/launch", {"program": "/bin/true", "folder": "/"})
    assert (status, "more than once" in reply["error"]) == (403, True)
    assert server.post("/run", {"value": {}})[0] == 200


@pytest.mark.parametrize(
    "wrong", [{"program": 7}, {"folder": None}, {"arguments": "a"}, {"environment": []}]
)
def test_a_launch_of_no_program_is_wrong(server: Server, wrong: dict[str, Any]) -> None:
    status, reply = server.post("/launch", {"program": "/bin/true", "folder": "/"} | wrong)
    assert (status, "no" in reply["error"]) == (400, True)


def test_a_prepared_process_waits_without_a_connection(server: Server) -> None:
    server.init(HOOKED)
    assert server.run({}) == (200, {"seen": []})
    request = b"POST /prepare HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    said = server.raw(request, is_all=False)  # the server ends the connection
    assert said.startswith(b"HTTP/1.1 200 ")
    (hot,) = json.loads(said.split(b"\r\n\r\n")[1])["hot"]
    start, end = (int(address, 16) for address in hot.split("-"))
    assert end - start == 8192
    # Its end comes last: nothing but the listening socket is left.
    connections = f"/proc/{server.process.pid}/fd"
    sockets = [link for link in map(read_link, Path(connections).iterdir()) if "socket:" in link]
    assert len(sockets) == 1
    assert server.run({}) == (200, {"seen": ["before", "after"]})


def read_link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


@pytest.fixture
def parent(bed: Bed) -> Iterator[int]:
    """Serve an action in a network namespace that has nothing but itself; yields its pid."""
    # The bed first: it skips with the reason.
    action = f"{sys.executable} -m farfork.runtime.action"
    process = subprocess.Popen(
        ["unshare", "--net", "--", "sh", "-c", f"ip link set lo up && exec {action}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # A connector that entered its network earlier would enter this one.
    while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        assert process.poll() is None
        time.sleep(0.01)
    yield process.pid
    process.kill()
    process.wait()


def call_in_network_of(pid: int, path: str, body: Any) -> Any:
    """Call the action that listens in the network of a process."""
    enter = ["nsenter", "--target", str(pid), "--net", "--"]
    call = [sys.executable, "-c", CALL, path, json.dumps(body)]
    done = subprocess.run([*enter, *call], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_clones_of_an_action_answer_in_networks_of_their_own(bed: Bed, parent: int) -> None:
    def call(pid: int, name: str) -> Any:
        return call_in_network_of(pid, "/run", {"value": {"name": name}})

    call_in_network_of(parent, "/init", {"value": {"code": HELLO}})
    assert call(parent, "before")["count"] == 1
    call_in_network_of(parent, "/prepare", {})
    bed.farfork.json("checkpoint", "--pid", parent, "--name", "test/action")
    clones = []
    for _ in range(2):
        ghost = bed.farfork.json("ghost", "start", "--user", "test")["id"]
        (said,) = bed.farfork.json("restore", "--ghost", ghost, "--detach", "test/action")
        clones.append(said["pid"])
    expected = [(clones[0], 2), (clones[1], 2), (clones[0], 3), (parent, 2), (clones[1], 3)]
    for pid, count in expected:
        answer = call(pid, f"{pid}")
        assert (answer["greeting"], answer["count"]) == (f"Hello, {pid}!", count)
