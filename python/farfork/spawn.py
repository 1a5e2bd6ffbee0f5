"""Workers of multiprocessing that find a function's module.

With the start methods `spawn` and `forkserver`, a worker is a new Python, which imports the
modules of what it is sent. A function's module is not on any path: its name keeps it from hiding
a library's, and its text may be in no file. So what multiprocessing sends first has the
function's source with it. The worker does not need the server's own main module, and skips it.
"""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_SPAWN = "multiprocessing.spawn"


Parts = tuple[str, str, str | None]


class Source:
    """A module's name, file and text, with which `load` is called where this is unpickled."""

    def __init__(self, load: Callable[[str, str, str | None], None], parts: Parts) -> None:
        self._load, self._parts = load, parts

    def __reduce__(self) -> tuple[Callable[[str, str, str | None], None], Parts]:
        return self._load, self._parts


def send(source: Source) -> None:
    """Let workers that start from now on load the function at `source`."""
    # multiprocessing may be imported already, or later, or never.
    if (spawn := sys.modules.get(_SPAWN)) is not None:
        _change(spawn, source)
    else:
        sys.meta_path.insert(0, _Finder(source))


class _Finder(MetaPathFinder):
    """Changes multiprocessing's module when it is imported."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _SPAWN:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _change(module, self._source)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change(spawn: Any, source: Source) -> None:
    usual = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = usual(name)
        data.pop("init_main_from_name", None)
        # Unpickled before the worker looks for anything.
        return {**data, "farfork_function": source}

    spawn.get_preparation_data = get_preparation_data
