"""Every task in both backends, found by folder and made small (TASKS), with each of its options: held to the same
questions."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import BACKENDS, advance, change, engine, gap, weights
from small import TASKS, small

from suite import load
from suite.contract import UserError
from suite.launch.job import make_task
from suite.settings.run import Run

STEPS = 3
Metrics = Mapping[str, float | None]
CASES = [
    pytest.param(name, tuple(options), id=f"{name}-{number}", marks=pytest.mark.xdist_group(f"task-{name}"))
    for name, forms in TASKS.items()
    for number, options in enumerate(forms)
]
every_case = pytest.mark.parametrize("name, options", CASES)
FIRST = [case for case in CASES if str(case.id).endswith("-0")]
every_task = pytest.mark.parametrize("name, options", FIRST)


def config(name: str, options: tuple[str, ...], backend: str = "torch", **changes: Any) -> Run:
    composed = small(name, options, "optimizer=sgd", f"backend={backend}")
    plain = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}  # one step is the gradient
    return change(composed, {"precision": "float64", "optimizer": plain, **changes})


@functools.cache
def task_of(name: str, options: tuple[str, ...]) -> Any:
    """Return the task of one case, made once: its batches depend on nothing else, as the first test checks."""
    return make_task(config(name, options))


def made(name: str, options: tuple[str, ...], backend: str, **changes: Any) -> Any:
    settings = config(name, options, backend, **changes)
    return engine(settings, make_task(settings))


def slow_lr(name: str, options: tuple[str, ...], backend: str) -> dict[str, Any]:
    return {"optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0}}


@every_case
def test_a_batch_is_a_pure_function_and_its_shares_make_the_whole(name: str, options: tuple[str, ...]) -> None:
    task, other = task_of(name, options), make_task(config(name, options))
    for split in ("train", "valid"):
        whole = task.batch(split, 0, 1)
        task.batch(split, 0, 0)
        again = other.batch(split, 0, 1)
        size = task.batch_size if split == "train" else task.eval_batch_size
        for key, value in whole.items():
            assert len(value) == size and value.dtype in (np.float32, np.int32, np.int64, np.bool_), key
            assert np.array_equal(value, again[key]), key
        shares = [task.batch(split, 0, 1, rank, 2) for rank in range(2)]
        for key, value in whole.items():
            assert np.array_equal(np.concatenate([share[key] for share in shares]), value), key
        assert whole["weight"].dtype == np.float32 and whole["index"].dtype == np.int64


@every_case
def test_an_evaluation_pass_holds_each_sample_once(name: str, options: tuple[str, ...]) -> None:
    task = task_of(name, options)
    batches = [task.batch("valid", 0, index) for index in range(task.batches("valid"))]
    numbers = np.concatenate([batch["index"][batch["weight"] > 0] for batch in batches])
    assert len(numbers) == len(set(numbers.tolist())) == task.data.samples["valid"]


@every_case
def test_no_number_is_so_small_that_it_slows_a_processor_down(name: str, options: tuple[str, ...]) -> None:
    """One pixel in twenty was subnormal in `curves`: torch took five times as long for a step, and jax, which takes
    such numbers for zero, did not."""
    for value in task_of(name, options).batch("train", 0, 0).values():
        if value.dtype == np.float32:
            assert not ((value != 0) & (np.abs(value) < np.finfo(np.float32).tiny)).any()


@every_case
def test_initial_values_by_the_slice(name: str, options: tuple[str, ...]) -> None:
    task = task_of(name, options)
    for key, spec in task.shapes().items():
        value = task.init(0, key)
        whole = spec.kind == "pattern"
        assert value.shape == spec.shape and value.dtype in ((np.int32, np.int8) if whole else (np.float32,)), key
        assert np.array_equal(task.init(0, key, slice(1, 3)), value[1:3]), key
    covered = {parameter for layer in task.layers().values() for parameter in layer.parameters}
    assert covered <= {key for key, spec in task.shapes().items() if spec.kind == "parameter"}


@every_task
def test_loss_gradient_and_evaluation_agree(name: str, options: tuple[str, ...]) -> None:
    """In float64, to rounding."""
    agree(name, options, "float64", values=1e-10, gradient=1e-10)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name, options", [case for case in CASES if case not in FIRST])
def test_loss_gradient_and_evaluation_agree_with_options(name: str, options: tuple[str, ...]) -> None:
    agree(name, options, "float64", values=1e-10, gradient=1e-10)


@pytest.mark.sample(1)
@every_task
def test_loss_gradient_and_evaluation_agree_in_float32(name: str, options: tuple[str, ...]) -> None:
    """Outputs to 1e-5, gradients to 1e-4 of the global norm."""
    agree(name, options, "float32", values=1e-5, gradient=1e-4)


def agree(name: str, options: tuple[str, ...], precision: str, *, values: float, gradient: float) -> None:
    """Compare both backends: loss and evaluation to `values`, the gradient to a share of its global norm."""
    gradients, losses, scores = [], [], []
    for backend in BACKENDS:
        one = made(name, options, backend, precision=precision)
        before = weights(one)
        assert {key for key in before} == set(one.task.shapes())
        scores.append(next(iter(one.evaluate([one.task.batch("valid", 0, 0)]))))
        losses.append(advance(one, range(1))[0])
        after = weights(one)
        kinds = one.task.shapes()
        gradients.append({key: before[key] - after[key] for key in before if kinds[key].kind == "parameter"})
    norm = np.sqrt(sum(float((value**2).sum()) for value in gradients[0].values()))
    assert norm > 0
    assert abs(losses[0] - losses[1]) <= values * max(1.0, abs(losses[0]))
    assert gap(*gradients) <= gradient * norm
    assert scores[0].keys() == scores[1].keys()
    for key, value in scores[0].items():
        scale = max(1.0, float(np.abs(value).max()))
        assert float(np.abs(value.astype(np.float64) - scores[1][key]).max()) <= values * scale, key


def rewired(name: str, options: tuple[str, ...]) -> bool:
    return any(str(option).startswith("sparsity=dynamic") for option in options)


@pytest.mark.slow
@pytest.mark.parametrize("name, options", [case for case in CASES if rewired(*case.values)])
def test_blocks_move_alike_on_any_number_of_devices(name: str, options: tuple[str, ...]) -> None:
    """A run of four steps whose blocks move after each or after the second; the same for torch, jax and two devices."""
    ends = []
    for backend, changes in (("torch", {}), ("jax", {}), ("torch", {"accumulate": 2}), ("jax", {"world": 2})):
        one = made(name, options, backend, **slow_lr(name, options, backend), **changes)
        before = weights(one)
        advance(one, range(4))
        ends.append(weights(one))
    patterns = [key for key in before if key.endswith(".pattern")]
    assert any((before[key] != ends[0][key]).any() for key in patterns)
    for end in ends[1:]:
        assert all(np.array_equal(ends[0][key], end[key]) for key in patterns)
        assert gap(ends[0], end) <= 1e-9


@pytest.mark.sample(2)
@every_task
def test_several_updates_agree_and_do_not_depend_on_devices(name: str, options: tuple[str, ...]) -> None:
    """Torch, jax, jax on two devices, and both with two micro-batches: the same weights after STEPS updates."""
    ends = []
    for backend, changes in (("torch", {}), ("jax", {}), ("torch", {"accumulate": 2}), ("jax", {"world": 2})):
        one = made(name, options, backend, **slow_lr(name, options, backend), **changes)
        advance(one, range(STEPS))
        ends.append(weights(one))
    assert all(gap(ends[0], end) <= 1e-9 for end in ends[1:]), [gap(ends[0], end) for end in ends]


@pytest.mark.sample(4)
@every_task
@pytest.mark.parametrize("backend", BACKENDS)
def test_resumed_in_the_middle_bit_for_bit(name: str, options: tuple[str, ...], backend: str) -> None:
    settings = slow_lr(name, options, backend) | {"precision": "float32"}
    whole = made(name, options, backend, **settings)
    advance(whole, range(1))
    arrays, skeleton = whole.snapshot()
    arrays = {key: value.copy() for key, value in arrays.items()}
    advance(whole, range(1, STEPS))
    again = made(name, options, backend, **settings)
    again.restore(arrays, skeleton)
    advance(again, range(1, STEPS))
    assert gap(weights(whole), weights(again)) == 0.0


@pytest.mark.sample(3)
@every_task
def test_the_score_of_a_whole_pass_agrees(name: str, options: tuple[str, ...]) -> None:
    """As the loop takes it, generated sequences included; better values of every target's metric are reported."""
    scores = []
    for backend in BACKENDS:
        one = made(name, options, backend)
        generate = getattr(one.task, "generate", None)
        batches = (one.task.batch("valid", 0, index) for index in range(one.task.batches("valid")))
        scores.append(one.task.score(one.evaluate(batches, generate)))
        assert {target.metric for target in one.task.targets} <= set(scores[-1])
    for key, value in scores[0].items():
        assert abs(value - scores[1][key]) <= 1e-9 * max(1.0, abs(value)), key


@pytest.mark.quick
@every_case
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, about the numbers that are planted here
def test_outputs_that_are_not_finite_have_no_metric(name: str, options: tuple[str, ...]) -> None:
    """NaN, ∞ or -∞ in one sample or in all: metrics that need the output are None. In padding they change nothing."""
    one = made(name, options, "torch")
    batches = [one.task.batch("valid", 0, index) for index in range(one.task.batches("valid"))]
    parts = list(one.evaluate(batches, getattr(one.task, "generate", None)))
    clean = one.task.score(parts)
    names = [key for key, value in parts[0].items() if value.dtype.kind == "f" and key not in ("weight", *batches[0])]
    assert names and None not in clean.values()

    def planted(number: float, names: list[str], rows: Callable[[np.ndarray], np.ndarray]) -> Metrics:
        changed = []
        for part in parts:
            fresh = {key: value.copy() for key, value in part.items()}
            for key in names:
                fresh[key].reshape(len(part["weight"]), -1)[rows(part["weight"]), :1] = number
            changed.append(fresh)
        return one.task.score(changed)

    for number in (np.nan, np.inf, -np.inf):
        for rows in (lambda weight: weight > 0, lambda weight: np.arange(len(weight)) == np.flatnonzero(weight)[-1]):
            assert planted(number, names, rows) == dict.fromkeys(clean), f"{number} in {names}"
            for key in names:
                found = planted(number, [key], rows)
                assert None in found.values() and all(found[name] in (None, clean[name]) for name in clean), key
        assert planted(number, names, lambda weight: weight == 0) == clean


@pytest.mark.parametrize("name", TASKS)
def test_settings_judge_every_word(name: str) -> None:
    """No task checks its words again: an unknown one ends here, with the setting and what to choose."""
    task = small(name).task
    for field in type(task).model_fields:
        if words := type(task).choices(field):
            with pytest.raises(UserError, match=f"^task.{field}=magic: must be one of {', '.join(words)}$"):
                type(task).given(task.plain() | {field: "magic"}, "task.")


def test_every_task_has_its_card_and_both_backends() -> None:
    for name, folder in load.find_members("tasks").items():
        assert (folder / "CARD.md").exists() and load.find_backends(folder) == list(BACKENDS)
        assert (Path(folder).parents[1] / "conf" / "task" / f"{name}.yaml").exists()
