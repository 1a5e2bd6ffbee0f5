"""Functions in Node.js and of any program, as clients of `farfork serve` see them."""

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from kinds import (
    CALLS_BEFORE_IMAGE,
    PROBE_JS,
    SERVER_PY,
    archive,
    clones_of,
    deploy,
    encoded,
    printed,
    result,
)
from served import POOL_SIZE, Platform, annotation, await_true, open_place, serving

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def check_confined(status: str) -> None:
    """Check what /proc/self/status says of a function."""
    fields = {key: value.split() for key, value in re.findall(r"(\w+):(.*)", status)}
    (user,) = set(fields["Uid"])
    assert int(user) >= 2_000_000_000
    assert (set(fields["Gid"]), fields["Groups"]) == ({user}, [])
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name][0], 16) == 0, name
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == (["1"], ["2"])


def has_image(platform: Platform, name: str) -> bool:
    images = platform.farfork.json("images", "list")
    return f"guest/{name}" in {image["name"].split(":")[0] for image in images}


def warm(platform: Platform, name: str, /, **args: Any) -> None:
    """Call it until it has an image."""
    for _ in range(CALLS_BEFORE_IMAGE):
        platform.good(name, **args)
    await_true(lambda: has_image(platform, name), f"{name} is checkpointed: {platform.log()}")


@pytest.fixture
def probe(platform: Platform) -> str:
    """Return the name of a function in Node.js that is there."""
    if platform.ask("GET", "actions/probe").status == 404:
        assert deploy(platform, "probe", PROBE_JS).status == 200
    return "probe"


@needs_node
def test_a_function_in_nodejs_is_called_cold_and_warm(platform: Platform) -> None:
    made = deploy(platform, "hello", PROBE_JS)
    assert (made.status, made.body["exec"]["kind"][:7]) == (200, "nodejs:")
    first = platform.good("hello", do="greet", name="Ada")
    assert annotation(first, "startKind") == "cold"
    assert annotation(first, "initTime") > 0
    assert printed(first) == ["stdout: loaded"]
    expected = {"greeting": "Hello, Ada!", "count": 1, "activation": first["activationId"]}
    assert first["response"]["result"] == expected
    second = platform.good("hello", do="print", lines=3000)
    assert (annotation(second, "startKind"), annotation(second, "initTime")) == ("warm", None)
    lines = printed(second)
    assert "stderr: err" in lines
    assert [line for line in lines if line.startswith("stdout")] == [
        "stdout: out",
        "stdout: " + "x" * 99,
        *(f"stdout: line {at}" for at in range(3000)),
    ]
    assert second["response"]["result"]["count"] == 2


@needs_node
def test_clones_of_nodejs_go_on_where_it_was_and_draw_for_themselves(platform: Platform) -> None:
    deploy(platform, "draws", PROBE_JS)
    # What is cached is there before the checkpoint.
    parent = result(platform, "draws", do="draw")
    warm(platform, "draws", do="draw")
    made = [one["response"]["result"] for one in clones_of(platform, "draws", do="draw")]
    assert {one["count"] for one in made} == {CALLS_BEFORE_IMAGE}, "the image is of the 16th call"
    drawn = [parent, result(platform, "draws", do="draw"), *made]
    for what in ("random", "int", "uuid", "bytes", "values", "web", "key"):
        assert len({one[what] for one in drawn}) == len(drawn), what
    assert all(0 <= one["random"] < 1 for one in drawn)
    later = [one["response"]["result"] for one in clones_of(platform, "draws", do="drawLater")]
    for what in ("bytes", "key"):
        assert len({one[what] for one in later}) == len(later), what


@needs_node
def test_a_function_in_nodejs_and_its_clones_are_unprivileged(
    platform: Platform, probe: str
) -> None:
    seen = result(platform, probe, do="who")
    check_confined(seen["status"])
    # Its input, its output, the socket it listens on and the connection; and Node.js's own.
    kinds = {one.split(":")[0] for one in seen["descriptors"]}
    assert kinds <= {"/dev/null", "pipe", "socket", "anon_inode"}, seen["descriptors"]
    assert sum(one.startswith("socket:") for one in seen["descriptors"]) == 2
    assert seen["collector"] == "undefined"
    assert set(seen["environment"]) - {"LANG", "LC_ALL", "TRACEPARENT", "TRACESTATE"} == {
        "PATH",
        "HOME",
        *(f"__OW_{name}" for name in ("ACTION_NAME", "ACTION_VERSION", "NAMESPACE", "DEADLINE")),
        *(f"__OW_{name}" for name in ("ACTIVATION_ID", "TRACEPARENT", "TRACESTATE")),
    }
    for path in (platform.state / "guest.key", platform.state / "store.redb", "/etc/shadow"):
        assert result(platform, probe, do="read", path=str(path))["code"] == "EACCES", path
    warm(platform, probe, do="greet")
    for clone in clones_of(platform, probe, do="who"):
        check_confined(clone["response"]["result"]["status"])


@needs_node
def test_activations_in_nodejs_start_with_the_same_environment(
    platform: Platform, probe: str
) -> None:
    first = result(platform, probe, do="who")
    result(platform, probe, do="change")
    again = result(platform, probe, do="who")
    assert "/code/.empty-" in first["directory"]
    assert again["directory"] == first["directory"]
    assert "CHANGED" not in again["environment"]
    assert again["environment"]["PATH"] == first["environment"]["PATH"]
    assert again["activation"] != first["activation"]


@needs_node
@pytest.mark.parametrize(
    ("do", "status", "words", "log"),
    [
        (
            "throw",
            "action developer error",
            "An error has occurred: TypeError: no such",
            "TypeError",
        ),
        ("null", "action developer error", "did not return a dictionary or array, but null", ""),
        ("text", "action developer error", "dictionary or array, but a string", ""),
        ("circle", "action developer error", "result is not JSON", ""),
        ("reject", "application error", "{'code': 7}", ""),
        ("rejectError", "application error", "'message': 'too far'", "RangeError: too far"),
        ("rejectNothing", "application error", "{}", ""),
        ("exit", "action developer error", "exited unexpectedly", "status 3"),
        ("late", "action developer error", "exited unexpectedly", "thrown later"),
    ],
)
def test_errors_of_a_function_in_nodejs_are_reported(
    platform: Platform, do: str, status: str, words: str, log: str
) -> None:
    deploy(platform, "plain", PROBE_JS, main="plain")
    failed = platform.call("plain", do=do).body
    assert failed["response"]["status"] == status, failed
    assert words in str(failed["response"]["result"]["error"]), failed
    assert "stack" not in str(failed["response"]["result"])
    assert log in str(failed["logs"]), failed
    assert "may be incomplete" not in str(failed["logs"]), "its end was printed"
    # What is nothing is an empty result.
    assert platform.good("plain", do="nothing")["response"]["result"] == {}


@needs_node
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("function main( {", "SyntaxError"),
        ("throw new RangeError('at once')", "RangeError: at once"),
        ("exports.other = 1", "no function main"),
        ("import { none } from 'nowhere'; export const main = none;", "nowhere"),
        (archive({"other.js": "exports.main = () => ({})"}), "neither index.js at its top"),
        (archive({"package.json": '{"main": "a.js"}', "a.js": "x ="}), "SyntaxError"),
    ],
)
def test_code_in_javascript_that_does_not_load_is_told(
    platform: Platform, code: str, words: str
) -> None:
    deploy(platform, "broken", code)
    failed = platform.call("broken")
    assert failed.status == 502
    error = failed.body["response"]["result"]["error"]
    assert (error.startswith("The action failed to initialize: "), words in error) == (True, True)
    assert "may be incomplete" not in str(failed.body["logs"])


BESIDE = "export const VALUE = await Promise.resolve(7);"
MODULE = """
import { readFileSync } from "node:fs";
import { VALUE } from "./beside.mjs";
export async function main({ sleep = 0 }) {
  await new Promise((done) => setTimeout(done, 1000 * sleep));
  const later = await import("./later.mjs");
  return { value: VALUE, later: later.LATER, text: readFileSync("data.txt", "utf8") };
}
"""


@needs_node
@pytest.mark.parametrize(
    ("code", "main"),
    [
        ("exports.main = (args) => ({ n: args.n });", None),
        ("module.exports = async (args) => ({ n: args.n });", None),
        ("const other = (args) => ({ n: args.n }); // the end", "other"),
        ("exports.a = { b: (args) => ({ n: args.n }) };", "a.b"),
        ("import fs from 'node:fs'; export function main({ n }) { return { n }; }", None),
        ("const { n } = await Promise.resolve({ n: 4 }); export default () => ({ n });", None),
        (archive({"index.js": "exports.main = ({ n }) => ({ n });"}), None),
        (
            archive({"package.json": '{"main": "lib/a.js"}', "lib/a.js": "exports.go = (a) => a"}),
            "go",
        ),
    ],
)
def test_code_in_javascript_comes_in_many_forms(
    platform: Platform, code: str, main: str | None
) -> None:
    deploy(platform, "form", code, **({"main": main} if main else {}))
    assert result(platform, "form", n=4) == {"n": 4}


@needs_node
def test_an_archive_of_es_modules_is_there_for_clones(platform: Platform) -> None:
    files = {"package.json": '{"type": "module", "main": "app.js"}', "app.js": MODULE}
    files |= {"beside.mjs": BESIDE, "later.mjs": "export const LATER = 8;", "data.txt": "hello"}
    deploy(platform, "modules", archive(files))
    warm(platform, "modules")
    expected = {"value": 7, "later": 8, "text": "hello"}
    for clone in clones_of(platform, "modules"):
        assert clone["response"]["result"] == expected


@needs_node
def test_a_function_in_nodejs_that_never_ends_is_ended(platform: Platform) -> None:
    deploy(platform, "loops", PROBE_JS, timeout=2000)
    answer = platform.call("loops", do="loop")
    assert answer.status == 502
    assert "exceeded its time limits of 2000 milliseconds" in str(answer.body["response"])
    assert result(platform, "loops", do="greet")["count"] == 1
    deploy(platform, "fills", PROBE_JS, memory=128)
    assert platform.call("fills", do="fill", mb=512).status == 502
    assert result(platform, "fills", do="greet")["count"] == 1


@needs_node
def test_an_update_may_change_the_kind(platform: Platform) -> None:
    deploy(platform, "changes", PROBE_JS)
    warm(platform, "changes", do="greet")
    deploy(platform, "changes", "def main(args): return {'in': 'Python'}", kind="python:default")
    assert result(platform, "changes") == {"in": "Python"}
    deploy(platform, "changes", PROBE_JS)
    assert result(platform, "changes", do="greet")["count"] == 1
    await_true(lambda: not has_image(platform, "changes"), "the image of before is gone")


def test_runtimes_that_are_there_are_listed(platform: Platform) -> None:
    listed = json.loads(platform.raw("GET", "/api/v1").body)["runtimes"]
    assert listed["blackbox"][0]["kind"] == "blackbox"
    node = shutil.which("node")
    if node is not None:
        reply = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
        major = reply.stdout.strip().removeprefix("v").split(".")[0]
        assert listed["nodejs"][0]["kind"] == f"nodejs:{major}"


def test_without_nodejs_none_is_offered() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with open_place() as place, pooled(place, POOL_SIZE) as farfork:
        (place / "bin").mkdir()
        path = [str(place / "bin")]
        # All but node.
        for directory in os.environ["PATH"].split(":"):
            if not (Path(directory) / "node").exists():
                path.append(directory)
                continue
            for program in Path(directory).iterdir():
                if program.name != "node" and not (place / "bin" / program.name).exists():
                    (place / "bin" / program.name).symlink_to(program)
        farfork.environment["PATH"] = ":".join(path)
        with serving(farfork, place / "state", "--nodes", "1") as platform:
            listed = json.loads(platform.raw("GET", "/api/v1").body)["runtimes"]
            assert set(listed) == {"python", "blackbox"}
            refused = deploy(platform, "none", PROBE_JS)
            assert (refused.status, "not supported by this platform" in str(refused.body)) == (
                400,
                True,
            )


def compiled(place: Path) -> bytes:
    """Return a program without libraries that serves."""
    source = Path(__file__).parent / "functions/server.c"
    call = ["cc", "-O1", "-static", "-o", str(place / "server"), str(source)]
    subprocess.run(call, check=True)
    return (place / "server").read_bytes()


def test_a_program_of_any_language_is_called_checkpointed_and_cloned(
    platform: Platform, tmp_path: Path
) -> None:
    made = deploy(platform, "counts", encoded(compiled(tmp_path)), kind="blackbox")
    assert (made.status, made.body["exec"]["kind"]) == (200, "blackbox")
    first = platform.good("counts")
    assert (annotation(first, "startKind"), annotation(first, "initTime") is None) == (
        "cold",
        False,
    )
    assert first["response"]["result"]["count"] == 1
    assert first["response"]["result"]["uid"] >= 2_000_000_000
    second = platform.good("counts")
    assert (annotation(second, "startKind"), annotation(second, "initTime")) == ("warm", None)
    warm(platform, "counts")
    clones = clones_of(platform, "counts")
    assert {one["response"]["result"]["count"] for one in clones} == {CALLS_BEFORE_IMAGE}


def test_a_script_is_served_confined_and_is_told_no_more_than_others(platform: Platform) -> None:
    deploy(platform, "script", SERVER_PY, kind="blackbox")
    activation = platform.good("script", name="Ada")
    seen = activation["response"]["result"]
    check_confined(seen["status"])
    assert printed(activation) == ["stdout: called Ada"], "no end is expected of it"
    assert list(seen["init"]) == ["value"], "it is OpenWhisk's call"
    assert set(seen["init"]["value"]) == {"name", "main", "code", "binary", "env"}
    assert set(seen["environment"]) - {"LANG", "LC_ALL", "LC_CTYPE"} == {"PATH", "HOME"}
    assert seen["files"] == ["exec"]
    warm(platform, "script")
    clones = clones_of(platform, "script", name="Bob")
    assert {one["response"]["result"]["count"] for one in clones} == {CALLS_BEFORE_IMAGE}
    assert [printed(one) for one in clones] == [["stdout: called Bob"]] * len(clones)
    for one in clones:
        check_confined(one["response"]["result"]["status"])


def test_a_program_with_children_goes_on_without_an_image(platform: Platform) -> None:
    parent = SERVER_PY.replace("#!/usr/bin/python3\n", "")
    files = {"exec": "#!/bin/sh\npython3 server.py\n", "server.py": parent}
    deploy(platform, "family", archive(files), kind="blackbox")
    for count in range(CALLS_BEFORE_IMAGE + 1):
        activation = platform.good("family")
        assert annotation(activation, "startKind") == ("warm" if count else "cold")
        assert activation["response"]["result"]["count"] == count + 1
    reply = [line for line in platform.log().splitlines() if "guest/family" in line]
    assert any("not checkpointed" in line for line in reply), reply
    assert not has_image(platform, "family")


def test_an_archive_brings_its_program_and_files(platform: Platform) -> None:
    files = {"exec": SERVER_PY, "data/beside.txt": "x"}
    deploy(platform, "archive", archive(files), kind="blackbox")
    seen = result(platform, "archive", name="Ada")
    assert (seen["files"], seen["name"]) == (["data", "exec"], "Ada")
    deploy(platform, "archive", archive(files | {"more": ""}), kind="blackbox")
    assert result(platform, "archive")["files"] == ["data", "exec", "more"], "an update starts over"


GARBLED = (
    SERVER_PY.split("class Calls", maxsplit=1)[0]
    + """
import socket
with socket.create_server(("127.0.0.1", 8080)) as server:
    while True:
        one, _ = server.accept()
        one.recv(65536)
        one.sendall(b"220 it is mail that is spoken here\\r\\n")
        one.close()
"""
)


@pytest.mark.parametrize(
    ("code", "words", "log"),
    [
        ("#!/bin/sh\necho bad luck >&2\nexit 7\n", "exited unexpectedly", ["bad luck", "status 7"]),
        ("#!/bin/sh\necho waiting\nexec sleep 60\n", "did not listen on port 8080", ["waiting"]),
        (GARBLED, "did not answer /init by HTTP", []),
        ("#!/nowhere/interpreter\n", "the file or its interpreter does not exist", []),
        (encoded(b"\x7fELF and no more"), "neither an ELF program nor a script", []),
        (archive({"bin/exec": "#!/bin/sh\n"}), "no file exec at its top", []),
        (SERVER_PY.replace('"/init"', '"/begin"'), "none", []),
        (
            SERVER_PY.replace("dumps(document)", "dumps(1)"),
            "did not return a dictionary or array",
            [],
        ),
    ],
)
def test_errors_of_a_program_are_reported(
    platform: Platform, code: str, words: str, log: list[str]
) -> None:
    assert deploy(platform, "wrong", code, kind="blackbox", timeout=4000).status == 200
    failed = platform.call("wrong")
    assert (failed.status, words in str(failed.body["response"])) == (502, True), failed
    for line in log:
        assert line in str(failed.body["logs"]), failed
    assert failed.body["response"]["status"] == "action developer error"
    # Only that function is wrong.
    assert deploy(platform, "wrong", SERVER_PY, kind="blackbox").status == 200
    assert result(platform, "wrong", name="Ada")["name"] == "Ada"


@pytest.mark.parametrize("code", ["print(1)", encoded("neither"), encoded(b"\x1f\x8b\x08\x00 tar")])
def test_an_invalid_program_is_refused_at_once(platform: Platform, code: str) -> None:
    refused = deploy(platform, "none", code, kind="blackbox")
    assert (refused.status, "begins with #!" in str(refused.body)) == (400, True), refused


def test_functions_of_all_kinds_are_deployed_by_the_platforms_own_client(
    platform: Platform, tmp_path: Path
) -> None:
    key = platform.state / "guest.key"
    whom = ["--url", f"http://{platform.address}", "--key-file", key]
    (tmp_path / "typed").write_text(SERVER_PY)
    (tmp_path / "built").write_bytes(compiled(tmp_path))
    files = [
        (tmp_path / "typed", ["--kind", "blackbox"], "blackbox"),
        (tmp_path / "built", ["--kind", "blackbox"], "blackbox"),
    ]
    if shutil.which("node") is not None:
        (tmp_path / "alone.js").write_text("function main(args) { return { n: args.n }; }")
        (tmp_path / "module.mjs").write_text("export const main = ({ n }) => ({ n });")
        with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
            packed.writestr("index.js", "exports.main = ({ n }) => ({ n });")
        names = ("alone.js", "module.mjs", "packed.zip")
        files += [(tmp_path / name, [], "nodejs:") for name in names]
    for file, options, kind in files:
        said = platform.farfork.do("deploy", *whom, file, *options)
        assert said.startswith(f"guest/{file.stem} 0.0.1 {kind}"), said
        called = platform.farfork.do("invoke", *whom, file.stem, "--param", "n", "4", "--result")
        expected = {"nodejs:": {"n": 4}, "blackbox": {"count": 1}}[kind]
        assert expected.items() <= json.loads(called).items()
