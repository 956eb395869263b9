"""A pipeline of two processes against one process with the same micro-batches, in jax: one thread each.

Each side trains alone, in turns, because they share the processor. Run on two idle cores:
`pytest tests/bench/test_partition_jax.py -m bench -s`.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
SCRIPT = Path(__file__).parent.parent / "jax_speed.py"
LIMIT = 0.65  # of the time of one process; 9/16 would be without costs: 8 micro-batches in 2 stages take 9 turns of 16


def seconds(world: int) -> list[float]:
    """Seconds of each step with some processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT)]
    children = [
        subprocess.Popen(
            ["taskset", "-c", str(rank), *command, str(rank), str(world), address],
            env=os.environ | flags,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        printed = [child.communicate(timeout=600)[0] for child in children]
    finally:
        for child in children:
            child.kill()  # jax processes ignore SIGTERM
    return json.loads(printed[0].splitlines()[-1])


def test_two_processes_are_faster_than_one() -> None:
    rounds = [(statistics.median(seconds(2)), statistics.median(seconds(1))) for _ in range(3)]
    ratios = [two / one for two, one in rounds]
    print(f"\ntwo processes / one: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); {rounds}")
    assert statistics.median(ratios) < LIMIT
