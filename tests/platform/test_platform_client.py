"""The platform's own client and its figures, against one that serves."""

import json
import os
import pty
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from patience import await_end
from served import COUNT, Platform, annotation, await_true

GREET = """
def main(args):
    print("called")
    return {"error": "no"} if "bad" in args else {"got": args}
"""
PREPARED_CALLS = 17


class Commands:
    """The commands, which mean one platform by its guest's key."""

    def __init__(self, platform: Platform) -> None:
        self.farfork = platform.farfork
        self.url = ["--url", f"http://{platform.address}"]
        self.whom = [*self.url, "--key-file", platform.state / "guest.key"]

    def run(self, command: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run one to its end, whatever its exit status."""
        return self.farfork.run(command, *self.whom, *arguments)

    def do(self, command: str, *arguments: object) -> str:
        """Run one that has to succeed."""
        return self.farfork.do(command, *self.whom, *arguments)

    def json(self, command: str, *arguments: object) -> Any:
        """Run one with `--json`."""
        return self.farfork.json(command, *self.whom, *arguments)

    def top(self) -> Any:
        """Return the snapshot, which needs no key."""
        return self.farfork.json("top", *self.url)


@pytest.fixture
def commands(platform: Platform) -> Commands:
    return Commands(platform)


def written(path: Path, code: str) -> Path:
    path.write_text(code)
    return path


def printed(lines: list[str]) -> list[str]:
    """Return what was printed, without when."""
    return [line.split("Z ", 1)[1] for line in lines]


def test_a_function_is_deployed_with_its_options_and_updated(
    platform: Platform, commands: Commands, tmp_path: Path
) -> None:
    source = written(tmp_path / "greet it.py", GREET)
    options = ["--memory", "128M", "--timeout", 5000, "--slo-p99-ms", 2.5, "--param", "a", "1"]
    options += ["--annotation", "about", "greetings"]
    assert commands.do("deploy", source, *options).startswith("guest/greet it 0.0.1 python:3.")
    made = platform.ask("GET", "actions/greet%20it").body
    assert made["exec"]["code"] == GREET
    assert (made["limits"]["memory"], made["limits"]["timeout"]) == (128, 5000)
    assert made["parameters"] == [{"key": "a", "value": 1}]
    assert (annotation(made, "slo-p99-ms"), annotation(made, "about")) == (2.5, "greetings")
    # What is not said stays as it is.
    reply = commands.json("deploy", source, "--slo-mean-ms", 3)
    assert (reply["version"], "code" in reply["exec"]) == ("0.0.2", False)
    made = platform.ask("GET", "actions/greet%20it").body
    said = [annotation(made, key) for key in ("slo-p99-ms", "slo-mean-ms", "about")]
    assert said == [2.5, 3, "greetings"]
    assert (made["limits"]["memory"], made["parameters"]) == (128, [{"key": "a", "value": 1}])


def test_a_call_prints_result_and_log(
    platform: Platform, commands: Commands, tmp_path: Path
) -> None:
    commands.do("deploy", written(tmp_path / "call.py", GREET))
    words = ["--param", "b", "[1]", "-p", "c", "x", "-P", written(tmp_path / "p", '{"d": null}')]
    called = commands.run("invoke", "call", *words)
    assert json.loads(called.stdout) == {"got": {"b": [1], "c": "x", "d": None}}
    assert (called.returncode, printed(called.stderr.splitlines())) == (0, ["stdout: called"])
    alone = commands.run("invoke", "/guest/call", "--result")
    assert (json.loads(alone.stdout), alone.stderr) == ({"got": {}}, "")
    whole = commands.json("invoke", "call")
    assert whole == platform.ask("GET", f"activations/{whole['activationId']}").body
    failed = commands.run("invoke", "call", "--param", "bad", "1")
    assert (failed.returncode, json.loads(failed.stdout)) == (1, {"error": "no"})
    assert "call failed: application error (activation " in failed.stderr
    accepted = commands.do("invoke", "call", "--no-wait").strip()
    await_true(lambda: platform.ask("GET", f"activations/{accepted}").status == 200, "it is made")
    reply = commands.json("invoke", "call", "--no-wait")
    assert list(reply) == ["activationId"]


HOSTILE = """
def main(args):
    print("a\\x1b[31mred\\x9b2J")
    return {"got": "\\x9b2J"}
"""


def test_a_terminal_gets_no_control_characters_of_functions(
    platform: Platform, commands: Commands, tmp_path: Path
) -> None:
    commands.do("deploy", written(tmp_path / "hostile.py", HOSTILE))
    whole = commands.json("invoke", "hostile")
    assert whole["response"]["result"] == {"got": "\x9b2J"}
    for words in (["invoke", "hostile"], ["logs", "hostile"], ["logs", whole["activationId"]]):
        shown = on_a_terminal(commands, *words)
        assert "red" in shown, shown
        assert not {"\x1b", "\x9b"} & set(shown), shown
    assert "\x1b[31mred" in commands.do("logs", "hostile"), "a pipe gets them as they are"


def on_a_terminal(commands: Commands, *words: str) -> str:
    """Return what a command prints to a terminal."""
    ours, theirs = pty.openpty()
    call = [commands.farfork.binary, words[0], *commands.whom, *words[1:]]
    with subprocess.Popen(call, stdin=theirs, stdout=theirs, stderr=theirs) as command:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert command.wait() == 0, shown
    os.close(ours)
    return shown.decode()


def test_an_archive_is_deployed_and_functions_are_listed_and_taken_away(
    commands: Commands, tmp_path: Path
) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", "import helper\ndef start(args): return helper.answer()\n")
        file.writestr("helper.py", "def answer(): return {'n': 42}\n")
    commands.do("deploy", archive, "--main", "start", "--name", "packed up")
    assert json.loads(commands.do("invoke", "packed up")) == {"n": 42}
    listed = {one["name"]: one for one in commands.json("functions")}
    assert listed["packed up"]["limits"]["memory"] == 256
    (line,) = [one for one in commands.do("functions").splitlines() if one.startswith("packed up")]
    kind = annotation(listed["packed up"], "exec")
    assert line.split()[2:] == ["0.0.1", kind, "256", "MiB", "60000", "ms"]
    assert commands.farfork.do("functions", "list", *commands.whom) == commands.do("functions")
    commands.farfork.do("functions", "rm", *commands.whom, "packed up")
    assert "packed up" not in {one["name"] for one in commands.json("functions")}
    again = commands.farfork.run("functions", "rm", *commands.whom, "packed up")
    assert (again.returncode, "cannot delete function packed up" in again.stderr) == (1, True)


def test_required_packages_are_deployed_with_a_function(commands: Commands, tmp_path: Path) -> None:
    source = tmp_path / "greeter"
    source.mkdir()
    name, about = "greeting-1.0-py3-none-any.whl", "greeting-1.0.dist-info"
    for place in (source, tmp_path):
        with zipfile.ZipFile(place / name, "w") as wheel:
            wheel.writestr("greeting.py", "def of(name): return f'Hello {name}'\n")
            described = "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"
            wheel.writestr(f"{about}/METADATA", described)
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    written(source / "requirements.txt", f"--no-index\n./{name}\n")
    code = "import greeting\ndef main(args): return {'said': greeting.of(args['name'])}\n"
    written(source / "main.py", code)
    python = ["--python", sys.executable]
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", source)
    for function, called in [(source, "greeter"), (Path(archive), "packed")]:
        commands.do("deploy", function, *python)
        answer = commands.do("invoke", called, "--param", "name", "Ada")
        assert json.loads(answer) == {"said": "Hello Ada"}
    written(source / "requirements.txt", "--no-index\nthere-is-none-of-this-name\n")
    failed = commands.run("deploy", source, *python)
    assert (failed.returncode, failed.stdout) == (1, ""), failed
    assert "cannot install the packages in requirements.txt" in failed.stderr
    assert "there-is-none-of-this-name" in failed.stderr


def test_logs_are_told_of_a_call_of_a_function_and_as_they_come(
    platform: Platform, commands: Commands, tmp_path: Path
) -> None:
    commands.do("deploy", written(tmp_path / "says.py", GREET))
    ids = [commands.json("invoke", "says")["activationId"] for _ in range(3)]
    assert printed(commands.do("logs", ids[0]).splitlines()) == ["stdout: called"]
    (one,) = commands.json("logs", ids[0])
    assert (one["activationId"], one["status"], one["name"]) == (ids[0], "success", "says")
    reply = commands.json("logs", "says", "--limit", 2)
    assert [one["activationId"] for one in reply] == ids[1:], "the latest last"
    lines = commands.do("logs", "says").splitlines()
    heads = [line for line in lines if not line.startswith("  ")]
    assert [head.split()[2] for head in heads] == ids
    assert heads[0].endswith(" ms, cold")
    assert heads[1].endswith(" ms, warm")
    assert ids[2] in commands.do("logs"), "of all functions"
    with (tmp_path / "followed").open("w+") as words:
        following = commands.farfork.popen(
            "logs", *commands.whom, "says", "--follow", "--limit", 1, words=words
        )
        try:
            said = (tmp_path / "followed").read_text
            await_true(lambda: "stdout: called" in said(), "the last one of before")
            new = [platform.good("says")["activationId"] for _ in range(2)]
            await_true(lambda: said().count("stdout: called") >= 3, "those to come")
            time.sleep(1.5)
            heads = [line for line in said().splitlines() if not line.startswith("  ")]
            assert [head.split()[2] for head in heads] == [ids[2], *new], "once each"
        finally:
            following.terminate()
            await_end(following)


def test_the_state_is_shown(platform: Platform, commands: Commands) -> None:
    platform.deploy("shown", COUNT)
    for _ in range(PREPARED_CALLS):
        platform.good("shown")

    def seen() -> Any:
        return commands.top()["functions"]["guest/shown"]

    await_true(lambda: seen()["local_bytes"] > 1 << 20, "its memory is looked at")
    found = seen()
    assert (found["calls"], found["failed"], found["idle"], found["busy"]) == (17, 0, 1, 0)
    assert (found["starts"]["cold"], found["starts"]["warm"]) == (1, 16)
    assert found["pool_bytes"] > 1 << 20, "the runtime is mapped from the pool"
    (node,) = found["nodes"]
    whole = commands.top()
    assert {name: one["is_up"] for name, one in whole["nodes"].items()} == {
        "node1": True,
        "node2": True,
    }
    assert whole["nodes"][node]["budget_bytes"] > whole["nodes"][node]["memory_bytes"] > 0
    assert whole["pool_size_bytes"] > whole["pool_used_bytes"] > 0
    for call in (["top", *commands.url, "--once"], ["top", *commands.url]):
        lines = commands.farfork.do(*call).splitlines()
        assert any(line.startswith("guest/shown ") for line in lines), "no terminal: once"
        assert any(line.startswith("node2 ") and " up " in line for line in lines)


def test_figures_tell_of_calls_starts_and_decisions(platform: Platform) -> None:
    platform.deploy("never-called", COUNT)
    platform.deploy("counted", COUNT)
    for _ in range(PREPARED_CALLS):
        platform.good("counted")
    platform.call("counted", **{"raise": True})
    platform.good("counted")
    answer = platform.raw("GET", "/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    lines = answer.body.splitlines()
    assert lines[-1] == "# EOF"
    of = 'namespace="guest",initiator="guest",action="counted"'
    for line in [
        f"openwhisk_action_coldStarts_total{{{of}}} 1",
        f"openwhisk_action_response_size_bytes_count{{{of}}} 19",
        f'openwhisk_action_status{{{of},status="success"}} 18',
        f'openwhisk_action_status{{{of},status="action_developer_error"}} 1',
        'farfork_action_starts_total{namespace="guest",action="counted",start="clone"} 1',
        'farfork_action_starts_total{namespace="guest",action="counted",start="warm"} 17',
        'farfork_node_up{node="node1"} 1',
    ]:
        assert line in lines
    samples = [line for line in lines if not line.startswith("#")]
    value = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in samples}
    restored = 'farfork_call_phase_seconds_{}{{start="clone",phase="restore"}}'
    mean_s = value[restored.format("sum")] / value[restored.format("count")]
    assert 0 < mean_s < 10, "a time in seconds"
    assert value['farfork_node_pool_read_bytes_per_second{node="node1"}'] > 1 << 20
    for phase in ("queue", "platform", "container", "restore", "init", "run"):
        assert f'farfork_call_phase_seconds_count{{start="cold",phase="{phase}"}}' in value
    assert value['farfork_decisions_total{policy="checkpoint",choice="now"}'] >= 1
    assert "never-called" not in answer.body
    platform.ask("DELETE", "actions/counted")
    await_true(lambda: 'action="counted"' not in platform.raw("GET", "/metrics").body, "it goes")


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        (["invoke", "nobody"], 1, "action 'nobody'"),
        (["invoke", "-p", "a"], 2, "--param"),
        (["invoke", "x", "-P", "/nowhere"], 1, "cannot read parameters from /nowhere"),
        (["deploy", "/nowhere/none.py"], 1, "cannot read /nowhere/none.py"),
        (["deploy", "/etc/hostname"], 2, "--kind"),
        (["deploy", "/etc/hostname", "--kind", "swift:5"], 1, "not supported by this platform"),
        (["deploy", "/etc/hostname", "--kind", "python", "--memory", "1M"], 1, "memory 1 MB below"),
        (["deploy", "/etc/hostname", "--kind", "python", "--memory", "256"], 2, "whole MiB"),
        (["deploy", "/etc/hostname", "--slo-p99-ms", "fast"], 2, "expected milliseconds"),
        (["logs", "0" * 32], 1, "does not exist"),
        (["logs", "--follow", "--json"], 2, "cannot be used with"),
        (["functions", "rm"], 2, "NAMES"),
    ],
)
def test_failures_are_explained(
    commands: Commands, call: list[str], status: int, words: str
) -> None:
    at = 2 if call[:2] == ["functions", "rm"] else 1
    done = commands.farfork.run(*call[:at], *commands.whom, *call[at:])
    assert (done.returncode, words in done.stderr) == (status, True), done
    assert done.stdout == ""


def test_a_platform_that_does_not_answer_or_know_the_key_is_told(
    platform: Platform, commands: Commands, tmp_path: Path
) -> None:
    other = written(tmp_path / "other.key", "somebody:else\n")
    broken = written(tmp_path / "broken.key", "\n")
    nobody = ["--url", "http://127.0.0.1:1"]
    for call, words in [
        (["functions", *nobody, *commands.whom[2:]], "is farfork serve running?"),
        (["top", *nobody, "--once"], "is farfork serve running?"),
        (["top", "--url", "https://127.0.0.1:1"], "only http is supported"),
        (["functions", *commands.url, "--key-file", tmp_path / "none"], "cannot read a key"),
        (["functions", *commands.url, "--key-file", broken], "invalid key"),
        (["functions", *commands.url, "--key-file", other], "use another key (--key-file)"),
        (["top", "--url", f"{commands.url[1]}/api/v1"], "does not exist"),
    ]:
        done = platform.farfork.run(*call)
        assert (done.returncode, words in done.stderr) == (1, True), done
