"""A runtime as its clients see it: answers, errors, and that bad peers do no harm."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import run_to_end
from runtimes import ROOT, Serve

from farfork.client import CallError, Client, NoAnswerError

Write = Callable[[str], Path]

COUNTING = """
    calls = []
    def main(args):
        calls.append(args)
        return {"calls": calls}
"""
FAILING = """
    import sys
    def main(args):
        if args["how"] == "exit":
            sys.exit(3)
        if args["how"] == "nan":
            return {"n": float("nan")}
        if args["how"] == "set":
            return {"s": {1}}
        raise KeyError("missing")
"""


def test_a_call_is_answered_with_its_measurements(serve: Serve) -> None:
    client = serve(ROOT / "functions/hello")
    answer = client.call("run", args={"name": "Ada"})
    assert answer["result"] == {"greeting": "Hello, Ada!"}
    assert answer["generation"] == 0
    assert answer["pid"] == client.status()["pid"]
    assert 0 < answer["run_us"] < 1e6


def test_warming_calls_the_function_before_clients_come(
    serve: Serve, write_function: Write, tmp_path: Path
) -> None:
    (tmp_path / "warm.json").write_text('{"a": 1}')
    client = serve(
        write_function(COUNTING), "--warm", f"@{tmp_path / 'warm.json'}", "--warm-count", "2"
    )
    assert client.run({}) == {"calls": [{"a": 1}, {"a": 1}, {}]}


def test_status_describes_the_process(serve: Serve) -> None:
    client = serve(ROOT / "functions/hello")
    status = client.status()
    with open(f"/proc/{status['pid']}/stat") as stat:
        assert status["threads"] == int(stat.read().rsplit(")")[1].split()[17]) == 1
    assert 5e6 < status["rss_bytes"] < 1e8
    target = os.readlink(f"/proc/{status['pid']}/fd/{status['listen_fd']}")
    assert target == f"socket:[{status['identity']['socket_ino']}]"


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("raise", "KeyError: 'missing'"),
        ("exit", "SystemExit: 3"),
        ("nan", "the result is not JSON: Out of range float"),
        ("set", "the result is not JSON: Object of type set"),
    ],
)
def test_a_failing_function_fails_only_its_call(
    serve: Serve, write_function: Write, how: str, error: str
) -> None:
    client = serve(write_function(FAILING))
    for _ in range(2):
        with pytest.raises(CallError, match=error) as failure:
            client.run({"how": how})
    assert ("function.py" in (failure.value.trace or "")) == (how in {"raise", "exit"})


def test_several_clients_are_served_at_once(serve: Serve) -> None:
    first = serve(ROOT / "functions/hello")
    first.run()
    with Client(first._path) as second, Client(first._path) as third:
        for client in (second, first, third, second):
            assert client.run()["greeting"] == "Hello, world!"


def test_many_requests_may_be_under_way_on_a_connection(serve: Serve) -> None:
    with connected(serve(ROOT / "functions/hello")) as raw, raw.makefile("rb") as answers:
        requests = [json.dumps({"id": n, "op": "run", "args": {}}) for n in range(500)]
        raw.sendall("\n".join([*requests, ""]).encode())
        assert [json.loads(answers.readline())["id"] for _ in requests] == list(range(500))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"nonsense\n", "send one JSON object per line"),
        (b'{"id": 1}\n', "unknown operation None; use one of run, prepare, status, stop"),
        (b'{"id": 1, "op": ["run"]}\n', "unknown operation"),
        (b'{"id": 1, "op": "run", "args": [1]}\n', "args is not a JSON object"),
    ],
)
def test_a_bad_request_is_refused_and_the_connection_lives(
    serve: Serve, line: bytes, error: str
) -> None:
    with connected(serve(ROOT / "functions/hello")) as raw, raw.makefile("rb") as answers:
        for _ in range(2):
            raw.sendall(line)
            answer = json.loads(answers.readline())
            assert not answer["ok"]
            assert error in answer["error"]


def test_a_client_that_disconnects_in_a_request_does_no_harm(serve: Serve) -> None:
    client = serve(ROOT / "functions/hello")
    for rest in (b"", b'{"op": "run"', b'{"op": "run", "args": {}}\n' * 2000):
        with connected(client) as raw:
            raw.sendall(rest)
    assert client.run()["greeting"] == "Hello, world!"


def test_requests_after_a_prepare_are_dropped(serve: Serve) -> None:
    client = serve(ROOT / "functions/hello")
    with connected(client) as raw, raw.makefile("rb") as answers:
        raw.sendall(b'{"op": "prepare"}\n' + b'{"op": "run", "args": {}}\n' * 3)
        assert json.loads(answers.readline())["ok"]
        assert answers.readline() == b""
    client.close()
    assert client.run()["greeting"] == "Hello, world!"


def test_a_prepare_drops_requests_that_wait_on_other_connections(serve: Serve) -> None:
    client = serve(ROOT / "functions/hello")
    pid = client.status()["pid"]
    with connected(client) as first, connected(client) as second:
        for raw in (first, second):  # both must be accepted, and polled in one round
            raw.sendall(b'{"op": "status"}\n')
            assert raw.recv(1 << 16)
        os.kill(pid, signal.SIGSTOP)
        first.sendall(b'{"op": "prepare"}\n')
        second.sendall(b'{"op": "prepare"}\n')
        os.kill(pid, signal.SIGCONT)
        assert sorted([received(first), received(second)]) == [False, True]
    client.close()
    assert client.status()["prepared"]


def test_stop_ends_the_process_and_removes_its_path(serve: Serve) -> None:
    client = serve(ROOT / "functions/hello")
    pid = client.status()["pid"]
    client.stop()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    impatient = Client(client._path, connect_timeout_s=0.05)
    with pytest.raises(NoAnswerError, match=r"cannot connect to .*start its runtime"):
        impatient.run()


def test_a_call_has_a_time_limit(serve: Serve, write_function: Write) -> None:
    client = serve(write_function("import time\ndef main(a): time.sleep(a['s']); return a"))
    client.run({"s": 0})
    client._timeout_s = 0.05
    with pytest.raises(NoAnswerError, match="timed out"):
        client.run({"s": 0.3})
    client._timeout_s = 10
    assert client.run({"s": 0}) == {"s": 0}  # not the late answer


def test_an_inherited_socket_is_served(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inherited:
        inherited.bind(path)
        fd = inherited.fileno()
        command = [sys.executable, "-m", "farfork.runtime", str(ROOT / "functions/hello")]
        process = subprocess.Popen([*command, "--listen-fd", str(fd)], pass_fds=[fd])
    client = Client(path, connect_timeout_s=20)
    assert client.status()["listen_fd"] == fd
    client.stop()
    assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("source", "options", "status", "reason"),
    [
        ("import nowhere", [], 1, "No module named 'nowhere'"),
        ("", [], 1, "neither main"),
        ("def main(a): return a['x']", ["--warm", "{}"], 1, "KeyError"),
        ("def main(a): return a", ["--warm", "["], 2, "invalid JSON"),
        ("def main(a): return a", ["--warm", "[1]"], 2, "not a JSON object"),
    ],
)
def test_failed_starts_are_explained(
    write_function: Write, tmp_path: Path, source: str, options: list[str], status: int, reason: str
) -> None:
    command = [sys.executable, "-m", "farfork.runtime", str(write_function(source))]
    command += ["--socket", str(tmp_path / "s"), *options]
    run = run_to_end(command)
    assert (run.returncode, reason in run.stderr) == (status, True), run.stderr


def connected(client: Client) -> socket.socket:
    """Return a raw connection to the runtime that `client` talks to."""
    client.connect()
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(10)
    raw.connect(client._path)
    return raw


def received(raw: socket.socket) -> bool:
    """Return whether an answer comes before the connection ends."""
    try:
        return bool(raw.recv(1 << 16))
    except ConnectionResetError:
        return False
