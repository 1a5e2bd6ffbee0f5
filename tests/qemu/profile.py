"""Checks a measured profile: its memory is where each share wants it."""

import json
import sys

profile = json.load(sys.stdin)
assert profile["modelled"] is False and "model" not in profile, profile
assert profile["machine"]["far_nodes"] == "1", profile["machine"]
for cell in profile["cells"]:
    near, far, share = cell["near_bytes"], cell["far_bytes"], cell["local_permille"]
    total = near + far
    print(f"share {share}: {near // 4096} pages near, {far // 4096} far")
    assert cell["modelled"] is False and cell["pool_bytes"] == 0 and "misses" not in cell, cell
    assert total == cell["phase_bytes"]["execution"] > 8 << 20, cell
    # What a call takes itself is near: without a share, that is all of it.
    missed, allowed = abs(near - total * share // 1000), total // (100 if share else 10)
    assert missed <= allowed, cell
assert [cell["local_permille"] for cell in profile["cells"]] == [0, 300, 800, 1000], profile
