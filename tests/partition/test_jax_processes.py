"""A pipeline of several processes has the bits of the same stages in one process; a lost process is named."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import conftest
import pytest
from ranks import launch

SCRIPT = conftest.TESTS / "jax_ranks.py"
KEPT, AGAIN = False, True
TWO = {
    "tied": ["tied", 2, 2, KEPT, "1f1b"],
    "all at once": ["tied", 2, 2, AGAIN, "gpipe"],
    "skipping": ["skipping", 2, 2, KEPT, "1f1b"],
    "dropout": ["dropout", 2, 2, KEPT, "1f1b"],
    "two pipelines": ["forked", 1, 2, KEPT, "1f1b"],
}
THREE = {
    "bert": ["bert", 3, 3, KEPT, "1f1b"],
    "skipping": ["skipping", 3, 3, AGAIN, "1f1b"],
    "uneven": ["tied", 2, 3, KEPT, "1f1b"],
    "at once": ["residual", 3, 3, KEPT, "gpipe"],
}


@pytest.mark.parametrize("world, cases", [(2, TWO), (3, THREE)], ids=["two", "three"])
def test_processes_have_the_bits_of_one(world: int, cases: dict[str, Any], tmp_path: Path) -> None:
    launch(SCRIPT, "jax", world, str(tmp_path), json.dumps(cases), deadline=480)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world)]
    for title in cases:
        assert len({rank[title]["loss"] for rank in ranks}) == 1
        assert [rank[title]["different"] for rank in ranks] == [[]] * world, title
        owned = {path for rank in ranks for path in rank[title]["paths"]}
        assert sorted(owned) == ranks[0][title]["all"]


def test_all_processes_use_the_plan_of_the_first(tmp_path: Path) -> None:
    """Operations are measured, so that each process would make another plan."""
    launch(SCRIPT, "jax", 2, str(tmp_path), "partition", deadline=240)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second and "stages=3: there are 2 devices" in first["error"]


def test_a_killed_stage_is_named_by_the_others(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(SCRIPT), "jax"]
    children = [
        subprocess.Popen([*command, str(rank), "3", address, str(tmp_path), "dies"], env=variables) for rank in range(3)
    ]
    until = time.monotonic() + 240
    try:
        assert [child.wait(max(1.0, until - time.monotonic())) for child in children] == [0, -9, 0]
    finally:
        for child in children:
            child.kill()  # jax processes ignore SIGTERM
    for rank in (0, 2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said["error"].startswith("lost rank 1 (stage 1, replica 0, pipeline 0) while exchanging")
        assert said["seconds"] < 60
