"""A step of each laptop model by the engine against the same model written plainly; see plain/.

That it is the same model is asserted first: as many parameters, and the same losses from the same weights.
"""

import importlib
import statistics
import time
from typing import Any

import engines
import numpy as np
import pytest

from suite import load
from suite.launch.job import make_task
from suite.settings import configure

from .measure import check_limit, interleaved, ratio

pytestmark = pytest.mark.bench
LIMIT = 1.15
ROUNDS, WARMUP = 60, 3
LR = 0.01
CLOSE = 1e-4  # losses agree to this share
# Without what a plain model does in its own way: (overrides of the task, arguments of the plain model).
ALIKE: dict[str, tuple[list[str], dict[str, Any]]] = {
    "caffenet": (["task.dropout=0"], {"dropout": 0.0}),  # draws of its framework
    "cifar10": (["task.bn_group=64"], {}),  # statistics over the whole batch
    "resnet50": (["task.bn_group=64"], {}),
}


def configured(name: str, *overrides: str) -> dict[str, Any]:
    """A task as shipped at laptop scale, with gradient descent."""
    settings = configure.resolve([f"task={name}", "optimizer=sgd", "recipe=null", *overrides])
    plain = {"lr": LR, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False}
    return engines.change(settings, {"optimizer": plain})


def made(name: str, backend: str, *overrides: str) -> Any:
    settings = configured(name, f"backend={backend}", *overrides)
    return engines.engine(settings, make_task(settings))


def in_plain(engine: Any, name: str, backend: str, **options: Any) -> Any:
    """Return the plain model's step, from the engine's initial weights."""
    plain = importlib.import_module(f".plain.{backend}", __package__)
    shapes = engine.task.shapes()
    values = {n: plain.asarray(engine.task.init(0, n)) for n, spec in shapes.items() if spec.kind == "parameter"}
    model = importlib.import_module(f".plain.{name}.{backend}", __package__).make(values, **options)
    assert plain.parameters(model) == engine.facts()["parameters"]
    return plain.step(model, LR)


def in_suite(engine: Any) -> Any:
    numbers = iter(range(10**9))

    def call(batch: dict[str, np.ndarray]) -> float:
        loss = engine.losses([engine.step(next(numbers), batch, {})])[0]
        engine.synchronize()
        return loss

    return call


@pytest.mark.parametrize("name", load.find_members("tasks"))
@pytest.mark.parametrize("backend", load.BACKENDS)
def test_step_against_plain(name: str, backend: str, benchmark: Any, capsys: Any) -> None:
    overrides, options = ALIKE.get(name, ([], {}))
    alike = made(name, backend, *overrides)
    pair = in_suite(alike), in_plain(alike, name, backend, **options)
    batches = (alike.task.batch("train", 0, index) for index in (0, 1, 2, 0))
    losses = np.array([[call(batch) for call in pair] for batch in batches])
    assert np.allclose(*losses.T, rtol=CLOSE) and (losses[3] < (1 - 10 * CLOSE) * losses[0]).all(), losses

    engine = made(name, backend)
    steps = {"ours": in_suite(engine), "plain": in_plain(engine, name, backend)}
    batch = engine.task.batch("train", 0, 0)
    candidates = {name: (lambda call=call: call(batch)) for name, call in steps.items()}
    seconds = interleaved(candidates, ROUNDS, WARMUP, clock=time.process_time)
    benchmark.pedantic(candidates["ours"], rounds=5)
    found = ratio(seconds, "ours", "plain")
    middle = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    benchmark.extra_info |= {"ratio": found, "milliseconds": middle}
    with capsys.disabled():
        print(
            f"\n{name:<12} {backend:<6} ours {middle['ours']:6.1f} ms  plain {middle['plain']:6.1f} ms  "
            f"ratio {found['median']:.3f} (rounds {found['least']:.3f} to {found['most']:.3f})"
        )
    check_limit(found["median"] <= LIMIT)
