"""A listener recognises that its socket was exchanged, and keeps others' paths."""

import os
import socket
import threading
from pathlib import Path

import pytest

from farfork import listener as module
from farfork.listener import Listener, ListenError


def exchange(listener: Listener, path: Path) -> None:
    """Put another listening socket under the same fd, as a restore does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        os.dup2(other.fileno(), listener.fd)


def test_another_socket_under_the_fd_is_noticed_until_remembered(tmp_path: Path) -> None:
    listener = Listener.bind(str(tmp_path / "a"))
    assert not listener.is_other()
    exchange(listener, tmp_path / "b")
    assert listener.is_other()
    assert listener.is_other_inode()
    listener.remember()
    assert not listener.is_other()
    assert listener.identity()["socket_path"] == str(tmp_path / "b")


def test_a_coinciding_inode_does_not_deceive(tmp_path: Path) -> None:
    listener = Listener.bind(str(tmp_path / "a"))
    exchange(listener, tmp_path / "b")
    listener._ino = os.fstat(listener.fd).st_ino
    assert listener.is_other()


def test_another_machine_with_equal_numbers_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener.bind(str(tmp_path / "a"))
    assert not listener.is_other()
    other_boot_id = tmp_path / "boot_id"
    other_boot_id.write_text("0" * 36)
    monkeypatch.setattr(module, "_BOOT_ID", str(other_boot_id))
    assert listener.is_other()


def test_closing_removes_only_ones_own_path(tmp_path: Path) -> None:
    parents, clones = tmp_path / "parent", tmp_path / "clone"
    listener = Listener.bind(str(parents))
    exchange(listener, clones)
    listener.close()
    assert parents.exists()
    assert clones.exists()

    own = Listener.bind(str(tmp_path / "own"))
    own.close()
    assert not (tmp_path / "own").exists()


def test_a_stale_path_is_taken_over_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(path)
    first = Listener.bind(path)
    first.start()
    with pytest.raises(ListenError, match=r"cannot bind .*in use; choose another --socket"):
        Listener.bind(path)


def test_a_file_in_the_way_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    with pytest.raises(ListenError, match="in use"):
        Listener.bind(str(tmp_path / "a"))
    assert (tmp_path / "a").read_text() == "precious"


def test_only_a_unix_stream_socket_is_inherited(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET) as tcp, pytest.raises(ListenError, match="not a Unix"):
        Listener.inherit(os.dup(tcp.fileno()))
    with open(tmp_path / "a", "w") as file, pytest.raises(ListenError, match="cannot use fd"):
        Listener.inherit(file.fileno())


def test_a_non_blocking_listener_waits_all_the_same(tmp_path: Path) -> None:
    listener = Listener.bind(str(tmp_path / "a"))
    listener.start()
    os.set_blocking(listener.fd, False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        late = threading.Timer(0.05, client.connect, [str(tmp_path / "a")])
        late.start()
        assert listener.accept().getblocking()
        late.join()
