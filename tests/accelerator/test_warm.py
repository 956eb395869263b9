"""No program is compiled while the clock runs: not one that occurs late, and none of an operation beside the programs.

What is compiled in a pause, as for the first evaluation, is not billed.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import engines
import jax
import pytest
import small
import torch
from torch._dynamo.utils import counters

from suite.contract import Finished
from suite.counters.jax import COMPILED, compilations
from suite.settings.run import Run
from suite.training.clock import Clock
from suite.training.loop import train

LATE = {"max_steps": 8, "eval_every": 3, "log_every": 2, "schedule": {"shape": "cosine", "warmup": 2}}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name in engines.INSIDE if name != "external"
} | {
    "kfac from a warm start": ("kfac", {"hyper": {"warm_start": 2}}),
    "kfac with sampled labels": ("kfac", {"hyper": {"fisher": "sampled"}}),
    "stale kfac": ("kfac", {"hyper": {"stale": True, "factor_interval": 1, "inverse_interval": 1}}),
    "vogn with two draws": ("vogn", {"hyper": {"draws": 2}}),
    "kfac on two ranks": ("kfac", {"world": 2}),
    "shampoo on two ranks": ("shampoo", {"world": 2}),
    "stale gradients": ("sgd", {"world": 2, "comm": engines.comm(schedule="stale")}),
}
FORMS = ["bert-5", "bert-6", "transformer-1", "dlrm-2", "frnn-0"]  # moving blocks, a search, tables by rows, a carry


@pytest.fixture
def billed(monkeypatch: pytest.MonkeyPatch, idle: None) -> Callable[..., tuple[int, int]]:
    """Train a run; returns how many programs were compiled before the clock started, and while it ran."""
    count: Callable[[], int] = lambda: compilations[COMPILED] + counters["stats"]["unique_graphs"]  # noqa: E731
    start, paused = Clock.start, Clock.paused
    marks: list[int] = []  # counts where the clock started or went on, and where it stopped, in turn; it stops last

    def start_counted(clock: Clock) -> None:
        start(clock)
        marks.append(count())

    @contextlib.contextmanager
    def pause_counted(clock: Clock, cause: str) -> Iterator[None]:
        marks.append(count())
        with paused(clock, cause):
            yield
        marks.append(count())

    def run_counted(run: Run) -> tuple[int, int]:
        jax.clear_caches()
        torch.compiler.reset()
        counters.clear()
        began, task = count(), small.make_small(run)
        *_, last = train(task, engines.engine(run, task), run)
        assert isinstance(last, Finished) and last.outcome["kind"] == "exhausted"
        return marks[0] - began, sum(stopped - went for went, stopped in zip(marks[::2], marks[1::2], strict=False))

    monkeypatch.setattr(Clock, "start", start_counted)
    monkeypatch.setattr(Clock, "paused", pause_counted)
    return run_counted


@pytest.mark.sample(8, keep=("kfac from", "stale kfac", "vogn with", "kfac on", "[shampoo]"))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_in_jax(name: str, billed: Callable[..., tuple[int, int]]) -> None:
    optimizer, changes = OPTIMIZERS[name]
    hyper = {"lr": 0.01, **changes.get("hyper", {})}
    before, running = billed(
        engines.config(optimizer, "jax", precision="float32", **LATE, **changes | {"hyper": hyper})
    )
    assert before and not running


@pytest.mark.sample(2, keep=("bert-6",))
@pytest.mark.parametrize("form", FORMS)
def test_tasks_in_jax(form: str, billed: Callable[..., tuple[int, int]]) -> None:
    task, _, number = form.partition("-")
    overrides = ["optimizer=sgd", "backend=jax", "save=none", "max_steps=4", "eval_every=2"]
    before, running = billed(small.small(task, small.TASKS[task][int(number)], *overrides))
    assert before and not running
