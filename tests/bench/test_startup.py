"""From the command to its answer, and to its first step."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .measure import ONCE, check_limit

pytestmark = pytest.mark.bench
TASK = "+task=resnet50"


def run(folder: Path, *arguments: str, cache: Path | None = None) -> subprocess.Popen[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OMP_NUM_THREADS")}
    variables |= {"JAX_COMPILATION_CACHE_DIR": str(cache)} if cache else {}
    command = [sys.executable, "-m", "suite", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--cite"], [TASK, "--cfg", "job"]], ids=" ".join)
def test_answers_without_a_framework(arguments: list[str], tmp_path: Path, benchmark: Any) -> None:
    def call() -> None:
        process = run(tmp_path, *arguments)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0, output

    benchmark.pedantic(call, rounds=5, warmup_rounds=1)
    check_limit(ONCE or benchmark.stats.stats.min < 0.4)


def first_step(folder: Path, *arguments: str, cache: Path | None = None) -> float:
    """Seconds from the command to the first step in its log."""
    began = time.perf_counter()
    process = run(folder, TASK, "optimizer=kfac", "max_steps=20", "track=none", "run_dir=run", *arguments, cache=cache)
    log = folder / "run" / "events.jsonl"
    try:
        while process.poll() is None:
            if log.exists() and any(json.loads(line)["event"] == "step" for line in log.read_text().splitlines()):
                return time.perf_counter() - began
            time.sleep(0.02)
        raise AssertionError(process.communicate()[0])
    finally:
        process.kill()
        process.wait()


def test_first_step_in_torch(tmp_path: Path, benchmark: Any) -> None:
    seconds = benchmark.pedantic(first_step, args=(tmp_path,), rounds=1)
    check_limit(seconds < 6.0)


def test_first_step_in_jax_with_a_cold_and_a_warm_cache(tmp_path: Path, benchmark: Any, capsys: Any) -> None:
    (tmp_path / "cold").mkdir()
    (tmp_path / "warm").mkdir()
    cold = first_step(tmp_path / "cold", "backend=jax", cache=tmp_path / "cache")
    warm = benchmark.pedantic(
        first_step, args=(tmp_path / "warm", "backend=jax"), kwargs={"cache": tmp_path / "cache"}, rounds=1
    )
    benchmark.extra_info |= {"cold": cold, "warm": warm}
    with capsys.disabled():
        print(f"\nfirst step · jax · cold {cold:.1f} s, warm {warm:.1f} s")
    check_limit(cold < 20.0 and warm < 8.0)
