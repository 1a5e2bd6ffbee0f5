"""The demonstration sees a wrong answer, says so, and leaves nothing behind."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from bed import why_not
from patience import run_to_end

from farfork.demo import __main__ as demo
from farfork.demo import command, platform, play, table, traffic
from farfork.demo.forked import Child

ANSWER = {"embeddings": [[0.5, 0.25]], "tokens": 3, "model": "m"}


def seen(**changed: Any) -> play.Measured:
    """Return what one clone, one child and one cold start would leave."""
    clone = play.Clone("node1", 7, 0.5, 5.0, {**ANSWER, **changed}, 1, 3_000_000, 130_000_000)
    child = Child(3.0, 16.0, 3_100_000, ANSWER)
    return play.Measured(3, 300, 310, 131_000_000, 4, [child], [clone], 240_000_000)


def test_right_answers_make_a_table_of_three_rows() -> None:
    measured = seen()
    play.check_all(measured, [ANSWER])
    assert measured.wrong == []
    lines = table.for_people(measured).splitlines()
    assert [line[:10] for line in lines[1:4]] == ["cold start", "local fork", "clone     "]
    assert "62 times sooner" in table.meaning(measured)
    assert json.loads(json.dumps(table.for_programs(measured)))["rows"][2]["start_ms"] == 0.5


@pytest.mark.parametrize("changed", [{"embeddings": [[0.5, 0.26]]}, {"tokens": 4}])
def test_a_wrong_answer_is_noted_and_ends_with_status_1(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = seen(**changed)
    play.check_all(measured, [ANSWER])
    monkeypatch.setattr(demo, "play", lambda _progress: measured)
    monkeypatch.setattr(demo.os, "geteuid", lambda: 0)
    assert demo.main([]) == 1
    said = capsys.readouterr()
    assert "are invalid" in said.out
    assert "clone 7 on node1 answered" in said.err


def test_a_binary_that_is_not_there_is_missed_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARFORK_BIN", str(tmp_path / "farfork"))
    with pytest.raises(command.MissingError, match="run cargo build"):
        command.find_binary()


@pytest.mark.needs_farfork
def test_the_whole_demonstration_passes_and_cleans_up() -> None:
    if reason := why_not():
        pytest.skip(reason)
    pytest.importorskip("onnxruntime", reason="the sample functions' packages are missing")
    call = [sys.executable, "-m", "farfork.demo", "--json"]
    # Names of sockets are short, and pytest's directories are not.
    with tempfile.TemporaryDirectory() as place:
        environment = {**command.os.environ, "TMPDIR": place}
        done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert list(Path(place).iterdir()) == []
    document = json.loads(done.stdout)
    assert document["wrong"] == []
    assert [row["case"] for row in document["rows"]] == ["cold start", "local fork", "clone"]
    assert [clone["node"] for clone in document["clones"]] == ["node1"] * 4 + ["node2"] * 4
    assert place not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize(("wrong", "status"), [([], 0), (["hello answered 502"], 1)])
def test_calls_of_the_platform_are_tabled_and_wrong_ones_end_with_status_1(
    wrong: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = [traffic.Call("hello", "clone", took_ms) for took_ms in (2.0, 9.0, 4.0)]
    seen = traffic.Seen([*calls, traffic.Call("hello", "warm", 1.0)], wrong)
    monkeypatch.setattr(platform, "show", lambda _progress, _seconds: seen)
    monkeypatch.setattr(platform, "hidden_from_functions", lambda _needed: None)
    monkeypatch.setattr(platform.os, "geteuid", lambda: 0)
    assert platform.main([]) == status
    said = capsys.readouterr()
    rows = [line.split() for line in said.out.splitlines()]
    assert ["clone", "3", "4.0", "9.0"] in rows
    assert ("hello answered 502" in said.err) == bool(wrong)


def test_directories_hidden_from_functions_are_found(tmp_path: Path) -> None:
    inner = tmp_path / "hidden/inner"
    inner.mkdir(parents=True)
    seen = platform.hidden_from_functions([Path("/usr/bin")])
    assert seen is None
    inner.parent.chmod(0o700)
    assert platform.hidden_from_functions([Path("/usr/bin"), inner]) == inner.parent


@pytest.mark.needs_farfork
def test_the_platform_with_sample_functions_is_shown_and_leaves_nothing() -> None:
    if reason := why_not():
        pytest.skip(reason)
    pytest.importorskip("pycountry", reason="the sample functions' packages are missing")
    before = set(Path("/run").glob("farfork-demo-*"))
    call = [sys.executable, "-m", "farfork.demo.platform", "--seconds", "5"]
    done = run_to_end(call, 180)
    assert done.returncode == 0, done.stderr
    if "skipped" in done.stderr:
        pytest.skip(done.stderr)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert (rows["cold"][0], int(rows["clone"][0]) > 0) == ("4", True), done.stdout
    assert set(Path("/run").glob("farfork-demo-*")) == before
