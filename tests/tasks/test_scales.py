"""Each task starts to train at gpu and paper scale: its recipe, a shrunk network, data of the real format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
import pytest
import scales

from suite import load
from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings import configure, rates, recipes

TASKS = sorted(scales.SHRUNK)
BEYOND = 2.0  # standard errors of the difference between two means of EACH losses
EACH = 12  # losses; of DLRM at paper scale, three passes over its rows
SLOW = {"autoencoder", "cifar10", "dlrm", "frnn", "transformer"}  # at paper scale: as at gpu scale, or longer
CASES = [
    pytest.param(task, scale, marks=[pytest.mark.slow] if task in SLOW and scale == "paper" else [])
    for task in TASKS
    for scale in scales.SCALES
]
Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return a function that gives the directory of a task's data, written once."""
    known: dict[str, Path] = {}

    def directory(task: str) -> Path:
        if task not in known:
            known[task] = scales.write(task, tmp_path_factory.mktemp(task) / "data")
        return known[task]

    return directory


def losses(config: dict[str, Any], steps: int) -> list[float]:
    """Return the training loss of each of the first updates, at the scheduled rates."""
    task = make_task(config)
    engine = engines.engine(config, task)
    hyper = rates.Scheduled(config.max_steps, config.schedule, config.optimizer)
    engine.warm(task.batch("train", 0, 0), range(steps), hyper[0])
    if engine.plan.warm_start:
        engine.prepare(task.batch("train", 0, index) for index in range(engine.plan.warm_start))
    return engine.losses([engine.step(step, task.batch("train", 0, step), hyper[step]) for step in range(steps)])


def falls(values: list[float]) -> bool:
    """Return whether the last losses lie below the first ones by more than their noise."""
    first, last = np.array(values[:EACH]), np.array(values[-EACH:])
    error = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / EACH)
    return bool(np.isfinite(values).all() and first.mean() - last.mean() > BEYOND * error)


@pytest.mark.slow
@pytest.mark.parametrize("task, scale", CASES)
def test_the_loss_falls_in_fifty_steps(task: str, scale: str, written: Written) -> None:
    config = scales.settings(task, scale, written(task))
    assert config.tuning.origin not in (recipes.UNTUNED, recipes.DEFAULTS), "only sizes were typed"
    values = losses(config, scales.STEPS)
    assert falls(values), values


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", scales.SCALES)
def test_the_loss_falls_in_fifty_steps_of_jax(task: str, scale: str, written: Written) -> None:
    assert falls(losses(scales.settings(task, scale, written(task), "backend=jax"), scales.STEPS))


@pytest.mark.slow
def test_the_whole_caffenet_survives_its_first_updates(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW at 0.01 after 10 steps, which every scale once composed, multiplies its loss by a hundred in one update."""
    monkeypatch.setitem(scales.SHRUNK, "caffenet", ["batch_size=8", "eval_batch_size=8"])
    old = ["optimizer=adamw", "recipe=null", "optimizer.lr=0.01", "schedule.warmup=10"]
    before, after = losses(scales.settings("caffenet", "gpu", written("caffenet"), *old), 2)
    assert after > 50 * before
    values = losses(scales.settings("caffenet", "gpu", written("caffenet")), 3)
    assert max(values) < 1.1 * values[0]


def test_what_shrinks_and_what_stays(written: Written) -> None:
    """SGD's rate follows the batch; a long warm-up is compressed with its run; all else is the recipe's."""
    whole = configure.resolve(["task=resnet50", "scale=paper"])
    small = scales.settings("resnet50", "paper", written("resnet50"))
    share = small.task.batch_size / 8192
    assert small.optimizer.plain() == whole.optimizer.plain() | {"lr": pytest.approx(3.2 * share)}
    assert small.max_steps == 50 and small.schedule.warmup == round(782 * 50 / 14_076)
    large = scales.settings("dlrm", "gpu", written("dlrm"))
    assert (large.optimizer.lr, large.task.batch_size, large.max_steps) == (0.1, 128, 306_969)


@pytest.mark.slow
@pytest.mark.parametrize("scale", scales.SCALES)
@pytest.mark.parametrize("task", TASKS)
def test_three_updates_of_every_optimizer_are_finite(task: str, scale: str, written: Written) -> None:
    """Published recipe or `untuned`; what cannot be combined is rejected with a sentence."""
    further = ["task.placement=replicated", "task.batch_size=256"]  # most optimizers need DLRM's tables in one piece
    further = further if task == "dlrm" else []
    tried = 0
    for optimizer in load.find_members("optimizers"):
        try:
            config = scales.settings(task, scale, written(task), f"optimizer={optimizer}", *further)
            values = losses(config, 3)
        except UserError as error:
            assert "nterpolation" not in str(error)
            continue
        assert np.isfinite(values).all(), (optimizer, values)
        if config.tuning.origin == recipes.UNTUNED:  # MLPerf's AdaGrad, from sums of 0, leaps once and comes back
            assert max(values) < 3 * values[0], (optimizer, values)
        tried += 1
    assert tried >= 10


@pytest.mark.sample(5)
@pytest.mark.parametrize("optimizer", sorted(load.find_members("optimizers")))
def test_an_untuned_rate_lies_in_the_optimizers_range(optimizer: str) -> None:
    for task, scale in (("bert", "gpu"), ("frnn", "paper")):
        words = [f"task={task}", f"scale={scale}", f"optimizer={optimizer}"]
        run = configure.resolve_training(words)
        low, high, _ = configure.compose_nodes(words)["optimizer"]["search"]["lr"]
        if run.tuning.source == recipes.UNTUNED:
            assert low == run.optimizer.options()["lr"] < high and 0 < run.schedule.warmup < 1
