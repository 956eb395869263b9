"""Waiting for data as a share of a step at each task's laptop configuration, and how long its sources take to make."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from suite import load
from suite.training.loop import Loader

from .measure import ONCE, check_limit
from .test_laptop import configured, in_suite, made

pytestmark = pytest.mark.bench
SHARE, MAKING = 0.05, 5.0  # of a step; the processor's seconds
STEPS, WARMUP = 1 if ONCE else 80, 5
SOURCES = {
    "autoencoder": ["curves", "faces"],
    "bert": ["hmm"],
    "caffenet": ["shapes"],
    "cifar10": ["shapes"],
    "dlrm": ["clicks"],
    "frnn": ["simulated"],
    "resnet50": ["digits", "shapes"],
    "transformer": ["grammar"],
}
MAKE = """
import sys, time
from suite import load
from suite.launch.job import make_task
from suite.settings import configure
name, *overrides = sys.argv[1:]
config = configure.resolve([f"task={name}", "optimizer=sgd", *overrides])
load.load_member(config.task.module)
began = time.process_time()
task = make_task(config)
for split in ("train", "valid"):
    task.batch(split, 0, 0)
print(time.process_time() - began)
"""


@pytest.mark.parametrize("name", load.find_members("tasks"))
def test_waiting_for_data(name: str, benchmark: Any, capsys: Any) -> None:
    """Waits between two steps are short; batches are fetched as in the training loop, with the task's `prefetch`."""
    engine, ahead = made(name, "torch"), configured(name).prefetch
    step, waits, steps = in_suite(engine), [], []
    with Loader(lambda split, index: engine.task.batch(split, 0, index), range(WARMUP + STEPS), ahead) as batches:
        began = time.perf_counter()
        for batch in batches:
            fetched = time.perf_counter()
            step(batch)
            waits.append(fetched - began)
            began = time.perf_counter()
            steps.append(began - fetched)
    wait, whole = (1e3 * statistics.median(values[WARMUP:]) for values in (waits, steps))
    benchmark.pedantic(lambda: engine.task.batch("train", 0, 0), rounds=5)
    benchmark.extra_info |= {"share": wait / whole, "wait": wait, "step": whole}
    with capsys.disabled():
        most = 1e3 * max(waits[WARMUP:])
        print(
            f"\n{name:<12} waits {wait:5.2f} ms (most {most:5.2f}) for a step of {whole:6.1f} ms: "
            f"{100 * wait / whole:.1f} % (prefetch={ahead})"
        )
    check_limit(wait / whole < SHARE)


@pytest.mark.parametrize("name, source", [(name, source) for name, found in SOURCES.items() for source in found])
def test_making_a_source(name: str, source: str, tmp_path: Path, benchmark: Any, capsys: Any) -> None:
    """From nothing, in a process of its own and without what earlier ones kept on disk."""
    chosen = {"autoencoder": f"task.variant={source}"}.get(name, f"task.data={source}")
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def call() -> float:
        done = subprocess.run(
            [sys.executable, "-c", MAKE, name, chosen], env=variables, capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    first = call()
    again = benchmark.pedantic(call, rounds=1)
    benchmark.extra_info |= {"first": first, "again": again}
    with capsys.disabled():
        print(f"\n{name} · {source} · made in {first:.1f} s, opened again in {again:.1f} s")
    check_limit(again < MAKING)
