"""OpenWhisk's own JavaScript client, from the npm registry, against a platform that serves."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest
from patience import run_to_end
from served import Platform

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "build/openwhisk/node_modules"
SUITE = Path(__file__).parent / "openwhisk/client.test.mjs"
_PATIENCE_S = 300


def test_openwhisks_own_client_works(platform: Platform, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (MODULES / "openwhisk").is_dir():
        pytest.skip("node or the client is not installed: setup/all.sh --tests installs both")
    archive = tmp_path / "action.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("__main__.py", "from inner import WHAT\ndef main(args): return WHAT\n")
        packed.writestr("inner.py", 'WHAT = {"from": "an archive"}\n')
    environment = {
        **os.environ,
        "CLIENT_MODULES": f"{MODULES}/",
        "PLATFORM": f"http://{platform.address}/api/v1/",
        "PLATFORM_KEY": (platform.state / "guest.key").read_text().strip(),
        "ARCHIVE": str(archive),
    }
    # Not that of the machine's, which is not for what is on it.
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "PROXY", "proxy"):
        environment.pop(name, None)
    call = [node, "--test", "--test-concurrency=1", str(SUITE)]
    done = run_to_end(call, _PATIENCE_S, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout, done.stdout
    assert "# skipped 0" in done.stdout, done.stdout
