"""A runtime whose listening socket is exchanged under it in accept() becomes a clone.

The function under test exchanges the socket in a signal handler: the signal interrupts
accept(), which then goes on with what is under the fd now, as in a restored process.
"""

import os
import signal
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import await_true
from runtimes import Serve

from farfork.client import CallError, Client

CLONABLE = """
    import gc, os, random, signal, socket, sys
    import farfork
    events = []

    def become_clone(number, frame):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.bind(os.path.join(os.path.dirname(__file__), f"clone-{len(events)}.sock"))
            other.listen()
            os.dup2(other.fileno(), 3)
        random.seed(1)

    signal.signal(signal.SIGUSR1, become_clone)
    farfork.before_checkpoint(events.append, "before")

    @farfork.after_restore
    def after():
        events.append("after")
        if os.path.exists(os.path.join(os.path.dirname(__file__), "fail")):
            raise OSError("database is gone")

    def main(args):
        state = {"modules": len(sys.modules), "frozen": gc.get_freeze_count()}
        return {"events": events, "draw": random.random(), **state}
"""
UNRENEWED_DRAW = 0.13436424411240122  # what random.seed(1) is followed by


@dataclass
class Clonable:
    """A runtime that can be made its own clone."""

    folder: Path
    client: Client

    def become_clone(self, events: int) -> Client:
        """Exchange the socket; `events` hooks have run so far."""
        pid = self.client.status()["pid"]
        self.client.close()
        self.wait_for_accept(pid)
        os.kill(pid, signal.SIGUSR1)
        return Client(str(self.folder / f"clone-{events}.sock"))

    def wait_for_accept(self, pid: int) -> None:
        """Wait until the process sits in accept4 (system call 288)."""
        call = Path(f"/proc/{pid}/syscall")
        await_true(lambda: call.read_text().startswith("288 0x3 "), "it accepts", every_s=0.001)


@pytest.fixture
def clonable(serve: Serve, write_function: Callable[[str], Path], tmp_path: Path) -> Clonable:
    return Clonable(tmp_path, serve(write_function(CLONABLE)))


def test_a_clone_renews_itself_once_before_its_first_request(clonable: Clonable) -> None:
    parent = clonable.client.run()
    clonable.client.prepare()
    clone = clonable.become_clone(events=1)
    first, second = clone.call("run"), clone.call("run")
    assert (first["generation"], second["generation"]) == (1, 1)
    assert first["result"]["events"] == second["result"]["events"] == ["before", "after"]
    assert first["result"]["draw"] != UNRENEWED_DRAW
    assert first["result"]["frozen"] > parent["frozen"] == 0
    assert first["result"]["modules"] == parent["modules"]  # nothing was imported late


def test_a_clone_of_a_clone_is_one_generation_on(clonable: Clonable) -> None:
    clonable.client.prepare()
    clone = clonable.become_clone(events=1)
    clone.prepare()
    grandchild = Clonable(clonable.folder, clone).become_clone(events=3)
    answer = grandchild.call("run")
    assert answer["generation"] == 2
    assert answer["result"]["events"] == ["before", "after", "before", "after"]


def test_a_clone_shows_its_own_identity(clonable: Clonable) -> None:
    parent = clonable.client.status()
    clone = clonable.become_clone(events=0).status()
    assert clone["generation"] == 1
    assert clone["pid"] == parent["pid"]
    assert clone["identity"]["socket_path"] != parent["identity"]["socket_path"]
    assert clone["identity"]["socket_ino"] != parent["identity"]["socket_ino"]


def test_a_socket_exchanged_under_an_open_connection_is_noticed(clonable: Clonable) -> None:
    os.kill(clonable.client.status()["pid"], signal.SIGUSR1)
    assert clonable.client.call("run")["generation"] == 1


def test_the_parent_goes_on_with_its_hooks_undone(clonable: Clonable) -> None:
    clonable.client.prepare()
    for _ in range(2):
        answer = clonable.client.call("run")
        assert answer["generation"] == 0
        assert answer["result"]["events"] == ["before", "after"]


def test_prepare_ends_all_connections_and_waits_in_accept(clonable: Clonable) -> None:
    with Client(clonable.client._path) as other:
        status = other.status()
        assert clonable.client.prepare()["listen_fd"] == status["listen_fd"]
    clonable.wait_for_accept(status["pid"])
    fds = os.listdir(f"/proc/{status['pid']}/fd")
    targets = [os.readlink(f"/proc/{status['pid']}/fd/{fd}") for fd in fds]
    assert [t for t in targets if t.startswith("socket:")] == [
        f"socket:[{status['identity']['socket_ino']}]"
    ]


def test_a_clone_whose_hook_fails_serves_nothing(clonable: Clonable) -> None:
    clonable.client.prepare()
    (clonable.folder / "fail").touch()
    clone = clonable.become_clone(events=1)
    for _ in range(2):
        with pytest.raises(CallError, match="after-restore hook after: OSError: database is gone"):
            clone.run()
    assert clone.status()["generation"] == 1


@pytest.mark.parametrize("prepared", [False, True])
def test_an_unpacked_zip_outlives_its_process_once_there_may_be_clones(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    with zipfile.ZipFile(tmp_path / "function.zip", "w") as archive:
        archive.writestr("main.py", "def main(args): return {'file': __file__}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    client = serve(tmp_path / "function.zip")
    file, pid = Path(client.run()["file"]), client.status()["pid"]
    assert file.is_relative_to(tmp_path)
    if prepared:
        client.prepare()
    client.stop()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert file.exists() == prepared


def test_a_failing_before_hook_fails_prepare_and_not_the_process(
    serve: Serve, write_function: Callable[[str], Path]
) -> None:
    client = serve(
        write_function("""
            import farfork
            @farfork.before_checkpoint
            def close():
                raise OSError("busy")
            def main(args): return {}
        """)
    )
    with pytest.raises(CallError, match="before-checkpoint hook close: OSError: busy"):
        client.prepare()
    assert client.status()["prepared"] is False
    assert client.run() == {}


PRINTING = """
    import os, sys
    sys.stdout = open(os.path.join(os.path.dirname(__file__), "log"), "w")
    import farfork
    farfork.before_checkpoint(print, "closing")
    def main(args):
        print("failing")
        raise ValueError
"""


def test_buffered_output_is_not_repeated_by_clones(
    serve: Serve, write_function: Callable[[str], Path], tmp_path: Path
) -> None:
    serve(write_function(PRINTING)).prepare()
    assert (tmp_path / "log").read_text() == "closing\n"


def test_output_of_a_call_precedes_its_answer(
    serve: Serve, write_function: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(CallError):
        serve(write_function(PRINTING)).run()
    assert (tmp_path / "log").read_text() == "failing\n"
