"""precision=bfloat16 rounds each value once: sums of gradients and of statistics are as right as in float32.

The reference is float64 at equal weights, whose matrices are rounded to bfloat16, after some steps: in the beginning,
many gradients are 0. At small batches sums have few terms, hence `FACTORS`.
"""

import functools
from collections.abc import Iterable
from typing import Any

import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import torch
from sampling import mostly_torch, sampled
from torch.utils._python_dispatch import TorchDispatchMode

from suite.contract import UserError
from suite.engine import jax_programs, jax_sums
from suite.engine.jax_step import make_objective
from suite.engine.torch_sums import reject_narrow_sums
from suite.launch.job import make_task

Arrays = dict[str, np.ndarray]
FACTORS = (1, 16)  # batches relative to the small ones
UNIT = 2.0**-9  # the largest relative error of rounding to bfloat16
# `measure_noise` says how far a gradient moves if each weight is off by ±UNIT. A pass in bfloat16 rounds, for each
# matrix, its input, its output and their gradients, and in between the results of about eight operations (activation,
# dropout, residual sum, normalisation, and their gradients). Twelve errors of UNIT / √3, the root mean square of
# roundings, have the size 2 · UNIT. A ReLU that switches in one of eight samples adds to it: measured 2.7.
WHOLE = 3.0
# One parameter may be one number of a bias, of which only some steps are noisy: measured 8.7 (of gradients that torch
# has, too). A sum in bfloat16 has 15 to 190 (BERT, CIFAR-10, FRNN).
EACH = 10.0
# Of the noise: errors of rounding have random directions, so that the gradient's length along the right one changes by
# less than their size; measured 0.28. A sum in bfloat16 is too short: 11 (FRNN), 0.8 (torch's LayerNorm of BERT).
LENGTH = 0.4
FEW = 4  # terms of a sum that is in bfloat16 in every framework: windows of a pool over one place
SGD = ("optimizer=sgd", "optimizer.lr=1.0", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0")


def make_engine(task: str, backend: str, precision: str, factor: int, form: Any, *words: str) -> Any:
    """An engine of a small task with a multiple of its batch."""
    run = small.small(task, form, *words, f"backend={backend}", f"precision={precision}")
    run = engines.change(run, {"task.batch_size": factor * run.task.plain()["batch_size"]})
    return engines.engine(run, make_task(run))


@functools.cache
def draw_weights(task: str) -> Arrays:
    """Weights after 30 steps, matrices and filters rounded to bfloat16."""
    made = make_engine(task, "torch", "float32", 1, None, "optimizer=adamw", "optimizer.lr=0.001")
    engines.advance(made, range(30))
    return {
        name: torch.from_numpy(value).bfloat16().float().numpy()
        if value.dtype.kind == "f" and value.ndim > 1
        else value
        for name, value in engines.weights(made).items()
    }


def step_once(made: Any, values: Arrays, hyper: dict[str, float]) -> Arrays:
    """Make a first step from these weights; returns what a snapshot has before it."""
    arrays, _ = made.snapshot()
    kinds = {engines.called(name): value.dtype for name, value in arrays.items()}
    engines.put(made, {name: value.astype(kinds[name]) for name, value in values.items()})
    before = {name: value.copy() for name, value in made.snapshot()[0].items()}
    batch = made.task.batch("train", 0, 30)
    made.warm(batch, range(1), hyper)
    made.step(0, batch, hyper)
    return before


def measure_gradients(task: str, backend: str, precision: str, factor: int, values: Arrays) -> Arrays:
    """Gradients by name: the changes of one step of gradient descent with a rate of 1."""
    made = make_engine(task, backend, precision, factor, None, *SGD)
    before = step_once(made, values, {"lr": 1.0})
    parameters = {name for name, spec in made.task.shapes().items() if spec.kind == "parameter"}
    after = made.snapshot()[0]
    return {
        engines.called(name): value.astype(np.float64) - after[name]
        for name, value in before.items()
        if engines.called(name) in parameters
    }


@functools.cache
def find_reference(task: str, factor: int) -> tuple[Arrays, list[Arrays]]:
    """The gradients in float64, and their changes under three draws of errors of ±UNIT of every weight."""
    values, draws = draw_weights(task), np.random.default_rng(0)
    right = measure_gradients(task, "torch", "float64", factor, values)

    def perturb() -> Arrays:
        off = {name: 1.0 + UNIT * draws.choice([-1.0, 1.0], values[name].shape) for name in right}
        wide = {name: value.astype(np.float64) for name, value in values.items()}
        return values | {name: wide[name] * off[name] for name in right if values[name].ndim > 1}

    moved = [measure_gradients(task, "torch", "float64", factor, perturb()) for _ in range(3)]
    return right, [{name: gradients[name] - right[name] for name in right} for gradients in moved]


def measure_length(arrays: Iterable[np.ndarray]) -> float:
    """Norm of all values."""
    return float(np.sqrt(sum(float((value**2).sum()) for value in arrays)))


def measure_noise(changes: list[Arrays], names: Iterable[str]) -> float:
    """Root mean square over the draws."""
    names = list(names)
    return float(np.sqrt(np.mean([measure_length(one[name] for name in names) ** 2 for one in changes])))


@pytest.mark.parametrize("task, backend, factor", sampled(sorted(small.TASKS), engines.BACKENDS, FACTORS))
def test_gradients_are_those_of_float64_but_for_single_roundings(task: str, backend: str, factor: int) -> None:
    right, changes = find_reference(task, factor)
    found = measure_gradients(task, backend, "bfloat16", factor, draw_weights(task))
    errors, whole = {name: found[name] - right[name] for name in right}, measure_length(right.values())
    noise = measure_noise(changes, right) + UNIT * whole
    assert measure_length(errors.values()) <= WHOLE * noise
    assert abs(sum(np.vdot(errors[name], right[name]) for name in right)) <= LENGTH * noise * whole
    for name, value in right.items():
        length = measure_length([value])
        if length > 1e-6 * whole:  # others are 0 but for rounding
            assert measure_length([errors[name]]) <= EACH * (measure_noise(changes, [name]) + UNIT * length), name


@pytest.mark.parametrize("backend", engines.BACKENDS)
@pytest.mark.parametrize("task", ["bert", "cifar10", "dlrm", "frnn"])
@pytest.mark.parametrize("optimizer", ["kfac", "vogn"])
@pytest.mark.sample(3)
def test_statistics_are_those_of_float64_but_for_single_roundings(optimizer: str, task: str, backend: str) -> None:
    """K-FAC's factors A and G, and VOGN's mean squares, of one batch. Products of two values have twice their error."""
    found = []
    for precision in ("float64", "bfloat16"):
        made = make_engine(task, backend, precision, FACTORS[-1], None, f"optimizer={optimizer}")
        step_once(made, draw_weights(task), {})
        arrays = made.snapshot()[0].items()
        kept = {name: value.astype(np.float64) for name, value in arrays if any(word in name for word in STATISTICS)}
        found.append(kept)
    right, changes = find_reference(task, FACTORS[-1])
    # one layer may have twice the noise of the whole
    limit = 4.0 * WHOLE * (measure_noise(changes, right) / measure_length(right.values()) + UNIT)
    whole = measure_length(found[0].values())
    assert whole > 0
    for name, value in found[0].items():
        if measure_length([value]) > 1e-12 * whole:  # others are 0 but for rounding
            assert measure_length([found[1][name] - value]) <= limit * measure_length([value]), name


STATISTICS = ("factor", "replicated", "curvature")


@pytest.mark.parametrize("task", small.TASKS)
@mostly_torch
def test_evaluation_is_in_float32(task: str, backend: str) -> None:
    outputs = []
    for precision in ("float32", "bfloat16"):
        made = make_engine(task, backend, precision, 1, None, "optimizer=sgd")
        outputs += made.evaluate([made.task.batch("valid", 0, 0)])
    assert engines.same(*outputs)


# ------------------------------------------------------------------------------------------------ the programs
FORMS = [(task, number) for task, forms in small.TASKS.items() for number in range(len(forms))]


@pytest.mark.parametrize("task, number", FORMS)
def test_no_traced_program_adds_many_terms_in_bfloat16(task: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of a step, nor the gradient of the objective that optimizers get which trace the loss."""
    sums: list[jax_sums.NarrowSum] = []
    monkeypatch.setattr(jax_programs, "check_sums", lambda program: sums.extend(jax_sums.list_narrow_sums(program)))
    monkeypatch.setattr(jax_programs.Programs, "compile", lambda self, lowered: None)
    made = make_engine(task, "jax", "bfloat16", 1, small.TASKS[task][number], "optimizer=sgd")
    made.warm(made.task.batch("train", 0, 0), range(1), {})
    held = {"buffer": made.run["buffers"], "pattern": made.run["patterns"]}
    assert made.maths.rounded
    objective = make_objective(made.maths.model, made.task, 0, 1, held, rounded=made.maths.rounded)
    differentiate = jax.grad(lambda params, context: objective.value(params, context)[0])
    sums.extend(jax_sums.list_narrow_sums(jax.make_jaxpr(differentiate)(made.run["params"], objective.context)))
    assert [one for one in sums if one.terms > FEW] == []


@pytest.mark.parametrize("task, number", FORMS)
def test_no_operator_of_torch_adds_in_bfloat16(task: str, number: int) -> None:
    made = make_engine(task, "torch", "bfloat16", 1, small.TASKS[task][number], "optimizer=sgd")
    with Gathering() as gathered:
        made.warm(made.task.batch("train", 0, 0), range(1), {})  # rejects the operators that `torch_sums` lists
    assert "mm" in gathered.called and not gathered.narrow


class Gathering(TorchDispatchMode):
    """Lists the operators that have run, and the gathers of many rows whose gradient is added up in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.narrow = set[str](), list[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().removeprefix("aten::").split(".")[0].strip("_")
        self.called.add(name)
        if name.startswith("index_put") and args[2].dtype == torch.bfloat16:
            self.narrow.append([tuple(value.shape) for value in (args[0], args[2])])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("layer", [torch.nn.LayerNorm(4), torch.nn.Embedding(9, 4).bfloat16()])
def test_layers_that_torch_adds_up_in_bfloat16_are_rejected(layer: torch.nn.Module) -> None:
    kinds = {torch.nn.LayerNorm: torch.bfloat16, torch.nn.Embedding: torch.int64}
    inputs = torch.ones((3, 4)).to(kinds[type(layer)])
    with reject_narrow_sums(torch.device("cpu"), narrow=True):
        outputs = layer(inputs).float().sum()
        with pytest.raises(UserError, match=f"{type(layer).__name__} has values in bfloat16.*set precision=float32"):
            outputs.backward()
    with reject_narrow_sums(torch.device("cpu"), narrow=False):
        layer(inputs).float().sum().backward()


@pytest.mark.quick
@pytest.mark.parametrize("look", [lambda h, ids: h[ids], lambda h, ids: h.take(ids), lambda h, ids: h[:, ids % 2]])
def test_lookups_by_index_that_torch_adds_up_in_bfloat16_are_rejected(look: Any) -> None:
    table, ids = torch.ones((2, 4), requires_grad=True), torch.arange(8) % 2
    with reject_narrow_sums(torch.device("cpu"), narrow=True):
        outputs = look(table.bfloat16(), ids).float().sum()
        with pytest.raises(UserError, match="lookup by index has values in bfloat16"):
            outputs.backward()
    with reject_narrow_sums(torch.device("cpu"), narrow=True):  # in float32 it is right
        look(table, ids).sum().backward()


def add_bias(bias: jax.Array) -> jax.Array:
    return jnp.zeros((40, 3), jnp.bfloat16) + bias


def look_up(table: jax.Array) -> jax.Array:
    return table[jnp.zeros((5, 4), jnp.int32)]


def repeat_product(weight: jax.Array) -> jax.Array:
    step = lambda x, _: (x @ jnp.diag(weight), None)  # noqa: E731
    return jax.lax.scan(step, jnp.ones((1, 3), jnp.bfloat16), None, length=20)[0]


def add_up(values: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda at: at[0] < 20, lambda at: (at[0] + 1, at[1] + values), (0, values))[1]


@pytest.mark.parametrize(
    "function, cause",
    [
        (jax.grad(lambda bias: add_bias(bias).astype(float).sum()), "reduce_sum of 40 terms"),
        (jax.grad(lambda table: look_up(table).astype(float).sum()), "scatter-add of 20 terms"),
        (jax.grad(lambda weight: repeat_product(weight).astype(float).sum()), "scan of 20.0 terms"),
        (add_up, "while of inf terms"),
        (lambda values: jax.lax.cumsum(jnp.broadcast_to(values, (30, 3))), "cumsum of 30 terms"),
        (jax.grad(lambda bias: add_bias(bias)[:8].astype(float).sum()), "reduce_sum of 40 terms"),
        (jax.grad(lambda bias: (add_bias(jnp.zeros(3)) + bias.astype(float)).sum()), None),
        (jax.grad(lambda x: (jnp.ones((40, 3), jnp.bfloat16) @ x).astype(float).sum()), None),
        (lambda values: jnp.broadcast_to(values, (40, 3)).sum(0), None),  # jax widens this one itself
    ],
)
def test_long_sums_in_bfloat16_are_rejected_with_their_place(function: Any, cause: str | None) -> None:
    program = jax.make_jaxpr(function)(jnp.ones(3, jnp.bfloat16))
    if cause is None:
        return jax_sums.check_sums(program.jaxpr)
    with pytest.raises(UserError, match=rf"test_narrow.py, line \d+ adds in bfloat16.*{cause}.*set precision=float32"):
        jax_sums.check_sums(program.jaxpr)
    return None


def test_a_model_outside_the_tree_that_hides_its_table_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    task = engines.tiny(batch_size=16)
    layers = {name: layer for name, layer in task.layers().items() if layer.kind != "embedding"}
    made = engines.engine(engines.config("sgd", "jax", precision="bfloat16"), task)
    made.warm(task.batch("train", 0, 0), range(1), {})  # as it declares it
    monkeypatch.setattr(type(task), "layers", lambda self: layers)
    made = engines.engine(engines.config("sgd", "jax", precision="bfloat16"), task)
    with pytest.raises(UserError, match=r"tinytask.*adds in bfloat16.*scatter-add of 48 terms.*declare a table"):
        made.warm(task.batch("train", 0, 0), range(1), {})
