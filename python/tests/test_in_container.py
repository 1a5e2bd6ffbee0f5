"""Functions of the benchmark that are programs of their own answer as others do."""

import os
import runpy
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from farfork.listener import Listener
from farfork.runtime.action import Action

PROGRAM = Path(__file__).parents[2] / "bench/programs/in_container.py"
FUNCTION = """
import os

count = 0

def main(args):
    global count
    count += 1
    print("called", count)
    return {"count": count, "n": 1 / args["n"], "name": os.environ["__OW_ACTION_NAME"]}
"""


@pytest.mark.parametrize("code", [FUNCTION, "def other(args): ...", "1 / 0"])
def test_it_answers_and_prints_as_the_action_server_does(
    code: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Servers have it for themselves elsewhere.
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def reply(server: Callable[[Listener], Action], code: str) -> list[Any]:
        value = {"name": "f", "main": "main", "code": code, "binary": False}
        init = {"value": value | {"env": {"__OW_ACTION_NAME": "/guest/f"}}}
        runs = [{"value": {"n": n}, "activation_id": "a"} for n in (4, 0, 8)]
        with closing(Listener.bind_tcp("127.0.0.1", 0)) as listener:
            action = server(listener)
            answers = [action.answer("/init", init), *(action.answer("/run", run) for run in runs)]
        # Tracebacks name the lines of each server.
        printed = capfd.readouterr()
        return [*answers, printed.out, printed.err.splitlines()[-1:]]

    program = runpy.run_path(str(PROGRAM))["_Program"]
    # A program gets no code.
    its = reply(lambda listener: program(listener, code), "")
    assert its == reply(Action, code)
    if code == FUNCTION:
        assert its[1] == (HTTPStatus.OK, {"count": 1, "n": 0.25, "name": "/guest/f"})
