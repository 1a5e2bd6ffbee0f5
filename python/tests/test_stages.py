"""Stages of a call: their times, and what a profiler hears of them."""

import socket
import threading
import time

import pytest

import farfork


def test_stages_are_timed_and_summed() -> None:
    stages = farfork.Stages()
    with stages("download"):
        time.sleep(0.01)
    for _ in range(2):
        with stages("processing"):
            time.sleep(0.005)
    assert list(stages.us()) == ["download", "processing"]
    assert stages.us()["download"] >= 10_000
    assert stages.us()["processing"] >= 10_000


def test_a_stage_that_fails_ends() -> None:
    stages = farfork.Stages()
    with pytest.raises(KeyError), stages("processing"):
        raise KeyError
    assert list(stages.us()) == ["processing"]


def test_names_are_words() -> None:
    with pytest.raises(ValueError, match="invalid name of a stage"), farfork.Stages()("a b"):
        pass


def test_a_profiler_hears_of_start_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, function = socket.socketpair()
    monkeypatch.setenv("FARFORK_STAGE_FD", str(function.fileno()))
    heard = []

    def answer() -> None:
        for _ in range(2):
            heard.append(mine.recv(100))
            mine.send(b"\n")

    listener = threading.Thread(target=answer)
    listener.start()
    with farfork.Stages()("upload"):
        pass
    listener.join(5)
    assert heard == [b"begin upload\n", b"end upload\n"]


def test_threads_report_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, function = socket.socketpair()
    mine.settimeout(5)
    monkeypatch.setenv("FARFORK_STAGE_FD", str(function.fileno()))
    stages = farfork.Stages()

    def stage(name: str) -> None:
        with stages(name):
            pass

    threads = [threading.Thread(target=stage, args=(name,)) for name in ("download", "upload")]
    for thread in threads:
        thread.start()
    for _ in range(4):
        # While one waits for its answer, no other has written.
        time.sleep(0.02)
        assert mine.recv(100).count(b"\n") == 1
        mine.send(b"\n")
    for thread in threads:
        thread.join(5)
    assert sorted(stages.us()) == ["download", "upload"]
