"""Pin each setup/requirements*.in into the .lock beside it, with hashes.

Run it with the pip of Python 3.11 on x86-64 Linux, the platform the hashes are for:
    .venv/bin/python setup/lock.py
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HEADER = "# Written by setup/lock.py from {}; do not edit.\n"


def main() -> None:
    """Write the lock files, or those of the lists named on the command line."""
    names = sys.argv[1:] or ["requirements.in", "requirements-source.in", "requirements-bench.in"]
    for path in (HERE / name for name in names):
        lines = sorted(_line(package) for package in _resolve(path))
        path.with_suffix(".lock").write_text(HEADER.format(path.name) + "".join(lines))


def _resolve(requirements: Path) -> list[dict[str, Any]]:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
    kind = "--no-binary" if requirements.stem.endswith("-source") else "--only-binary"
    pip += ["--no-deps", "--ignore-installed", "--no-build-isolation"]
    pip += [kind, ":all:", "-r", str(requirements)]
    report = subprocess.run(pip, check=True, capture_output=True, text=True).stdout
    packages: list[dict[str, Any]] = json.loads(report)["install"]
    return packages


def _line(package: dict[str, Any]) -> str:
    name = package["metadata"]["name"].lower().replace("_", "-")
    digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name}=={package['metadata']['version']} \\\n    --hash=sha256:{digest}\n"


if __name__ == "__main__":
    main()
