"""Functions come as a file, a zip or a folder, in OpenWhisk's or AWS's convention."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from farfork.loader import LoadError, load

MAIN = "import helper\ndef main(args):\n    return {'n': helper.double(args['n'])}\n"
HELPER = "def double(n):\n    return 2 * n\n"
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys  # noqa: PLC0415

    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "helper", raising=False)


@pytest.mark.parametrize("entry", ["__main__.py", "main.py", "handler.py"])
def test_a_folder_with_its_own_module(tmp_path: Path, entry: str) -> None:
    (tmp_path / entry).write_text(MAIN)
    (tmp_path / "helper.py").write_text(HELPER)
    assert load(tmp_path).call({"n": 21}, None) == {"n": 42}


def test_a_zip_is_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "double-it.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", MAIN)
        archive.writestr("helper.py", HELPER)
    function = load(path)
    assert (function.name, function.call({"n": 21}, None)) == ("double-it", {"n": 42})


def test_a_handler_gets_a_context(write_function: Write) -> None:
    path = write_function("""
        def handler(event, context):
            return [event["n"], context.function_name, context.aws_request_id]
    """)
    assert load(path).call({"n": 1}, 7) == [1, "function", "7"]


def test_main_must_return_a_dict(write_function: Write) -> None:
    function = load(write_function("def main(args): return 5"))
    with pytest.raises(TypeError, match="main returned int; return a dict or a list"):
        function.call({}, None)


def test_a_function_named_like_a_library_module_does_not_hide_it(tmp_path: Path) -> None:
    folder = tmp_path / "random"
    folder.mkdir()
    (folder / "main.py").write_text(
        "import random\ndef main(a): return {'n': random.randint(1, 1)}"
    )
    assert load(folder).call({}, None) == {"n": 1}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.py", None, "no such file"),
        ("notes.txt", "hello", "neither a .py file, a zip nor a folder"),
        ("empty.py", "", "neither main"),
    ],
)
def test_an_invalid_function_is_refused(
    tmp_path: Path, name: str, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(LoadError, match=reason):
        load(tmp_path / name)


def test_a_folder_without_an_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"it has no __main__\.py, main\.py, handler\.py"):
        load(tmp_path)
