"""Loads a function: a Python file, a zip, or a folder.

It defines `main(args: dict)`, which returns a dict or a list (OpenWhisk's convention), or
`handler(event, context)` (AWS Lambda's). In a zip or folder it is in `__main__.py`, `main.py`
or `handler.py`, the first that exists, with its own modules beside it. Packages may lie in
`virtualenv`, a virtual environment of the same version of Python, as for OpenWhisk.

A zip is unpacked into a temporary folder of this machine. Clones on other machines lack
that folder: what they need from it must be imported or read before the checkpoint.
"""

import atexit
import importlib.util
import linecache
import os
import shutil
import site
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from farfork import spawn

ENTRY_FILES = ("__main__.py", "main.py", "handler.py")


class LoadError(RuntimeError):
    """A function could not be loaded; the message names it and a remedy."""


@dataclass(slots=True)
class Context:
    """The context of `handler`, with AWS Lambda's names."""

    function_name: str
    aws_request_id: str


@dataclass(slots=True)
class Function:
    """A loaded function: `call(args, request_id)` returns its JSON value."""

    name: str
    call: Callable[[dict[str, Any], Any], Any]


def load(path: str | Path, main: str | None = None, name: str | None = None) -> Function:
    """Import the function at `path`, named `main` there if given.

    `name` defaults to the file's name. Raises LoadError, or what its import raises.
    """
    source = Path(path).resolve()
    name = name or source.stem
    file = _entry_file(source)
    _use_virtualenv(file.parent)
    sys.path.insert(0, str(file.parent))
    module = _import_file(_module_name(name), file)
    spawn.send(spawn.Source(load_again, (module.__name__, str(file), None)))
    return _wrap(name, module, str(source), main)


def load_text(name: str, text: str, main: str | None = None) -> Function:
    """Execute a module's text and return its function; raises as `load` does.

    No file is written, so clones need none. Tracebacks still show its lines.
    """
    shown = f"<{name}>"
    module = _execute(_module_name(name), shown, text)
    spawn.send(spawn.Source(load_again, (module.__name__, shown, text)))
    return _wrap(name, module, shown, main)


def load_again(name: str, file: str, text: str | None) -> None:
    """Load the module of a function in a worker of multiprocessing that its process starts."""
    if name in sys.modules:
        return
    if text is not None:
        _execute(name, file, text)
        return
    sys.path.insert(0, str(Path(file).parent))
    _import_file(name, Path(file))


def _execute(name: str, shown: str, text: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = shown
    # Without a modification time, linecache never looks for a file.
    linecache.cache[shown] = len(text), None, text.splitlines(keepends=True), shown
    sys.modules[module.__name__] = module
    exec(compile(text, shown, "exec"), module.__dict__)
    return module


def keep_files() -> None:
    """Keep an unpacked zip when this process exits, because its clones read it, too."""
    atexit.unregister(_remove_unpacked)


def _remove_unpacked(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _entry_file(source: Path) -> Path:
    if not source.exists():
        raise LoadError(f"cannot load {source}: no such file; give a .py file, a zip or a folder")
    if source.is_dir():
        return _entry_in(source, source)
    if zipfile.is_zipfile(source):
        return _entry_in(_unpack(source), source)
    if source.suffix != ".py":
        raise LoadError(
            f"cannot load {source}: it is neither a .py file, a zip nor a folder; give one of these"
        )
    return source


def _entry_in(folder: Path, source: Path) -> Path:
    for name in ENTRY_FILES:
        if (folder / name).is_file():
            return folder / name
    raise LoadError(f"cannot load {source}: it has no {', '.join(ENTRY_FILES)}; add one of these")


def _unpack(source: Path) -> Path:
    # Not zipimport: functions read data files and native modules next to their code.
    folder = tempfile.mkdtemp(prefix="farfork-function-")
    atexit.register(_remove_unpacked, folder)
    with zipfile.ZipFile(source) as archive:
        archive.extractall(folder)
    return Path(folder)


def _use_virtualenv(folder: Path) -> None:
    """Let packages of a virtual environment in the folder come before this Python's own."""
    environment = folder / "virtualenv"
    if not environment.is_dir():
        return
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    if not packages.is_dir():
        found = ", ".join(path.name for path in sorted(environment.glob("lib/python*"))) or "none"
        raise LoadError(
            f"cannot use virtualenv: it has packages for {found}, and this is {version}; "
            "make it with this version"
        )
    known = len(sys.path)
    site.addsitedir(str(packages))
    sys.path[:] = sys.path[known:] + sys.path[:known]
    os.environ["VIRTUAL_ENV"] = str(environment)
    os.environ["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _module_name(name: str) -> str:
    # A function named "random" must not shadow the library's module.
    return f"farfork_function_{name.replace('-', '_')}"


def _import_file(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LoadError(f"cannot load {file}: Python cannot import it; give it the suffix .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _wrap(name: str, module: ModuleType, source: str, main: str | None) -> Function:
    if callable(entry := getattr(module, main or "main", None)):
        return Function(name, _openwhisk_call(entry))
    if main is not None:
        raise LoadError(f"cannot load {source}: it has no {main}(args); define it, or name another")
    if callable(handler := getattr(module, "handler", None)):
        return Function(name, _lambda_call(handler, name))
    raise LoadError(
        f"cannot load {source}: it has neither main(args) nor handler(event, context); define one"
    )


def _openwhisk_call(main: Callable[..., Any]) -> Callable[[dict[str, Any], Any], Any]:
    def call(args: dict[str, Any], _request_id: Any) -> dict[str, Any] | list[Any]:
        result = main(args)
        if not isinstance(result, dict | list):
            raise TypeError(f"main returned {type(result).__name__}; return a dict or a list")
        return result

    return call


def _lambda_call(handler: Callable[..., Any], name: str) -> Callable[[dict[str, Any], Any], Any]:
    def call(args: dict[str, Any], request_id: Any) -> Any:
        return handler(args, Context(name, str(request_id)))

    return call
