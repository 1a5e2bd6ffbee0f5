"""Puts the program farfork into the wheel, when `setup/package.sh` builds one.

Without `FARFORK_WHEEL_PROGRAM` the wheel has the package alone, as in an editable installation.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface[Any]):
    """Adds a program, and names the platform that it runs on."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Change what is built; called by hatchling."""
        if program := os.environ.get("FARFORK_WHEEL_PROGRAM"):
            build_data["shared_scripts"][program] = "farfork"
            for library in os.environ.get("FARFORK_WHEEL_LIBRARIES", "").split(":"):
                # Where farfork.objects looks for its own.
                if library:
                    build_data["force_include"][library] = f"farfork/{os.path.basename(library)}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['FARFORK_WHEEL_PLATFORM']}"
