"""kfac-jax in the suite's engine: its factors and directions against K-FAC's specification; what is said without it.

It is on no index in a version that runs here: KFAC_JAX_PATH names a checkout of google-deepmind/kfac-jax, which wants
`pip install distrax immutabledict`.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import OUTSIDE
from engines import advance, change, config, engine, gap, tiny, weights
from small import small

from suite import load
from suite.contract import UserError
from suite.launch.job import make_task
from suite.optimizers.kfac import Settings, reference
from suite.settings.run import Run

Tree = dict[str, np.ndarray]
CHECKOUT = os.environ.get("KFAC_JAX_PATH")
present = pytest.mark.skipif(
    not CHECKOUT and importlib.util.find_spec("kfac_jax") is None,
    reason="KFAC_JAX_PATH=a checkout of google-deepmind/kfac-jax",
)
MODULE = "suite.optimizers.external.kfac_jax"
HYPER: dict[str, Any] = {"lr": 0.05, "damping": 0.3, "inverse_interval": 2}
PLAIN: dict[str, Any] = {"lr": 1.0, "momentum": 0.0, "damping": 0.1, "weight_decay": 0.0, "inverse_interval": 1}


def settings(hyper: dict[str, Any] = HYPER, **changes: Any) -> Run:
    return change(config("sgd", "jax", **changes), {"optimizer": {"module": MODULE, "path": CHECKOUT, **hyper}})


def built(chosen: Run, task: Any) -> Any:
    """An engine on this task."""
    return engine(change(chosen, {"task": {"module": type(task).__module__}}), task)


def perceptron() -> Any:
    """A small autoencoder: linear layers only."""
    return make_task(small("autoencoder", None, "optimizer=sgd", directory=OUTSIDE / "conf"))


def even() -> Any:
    """Make the tiny task with samples of equal weight: kfac-jax would take fractions for part of the loss."""
    task = tiny()
    make = task.make
    task.make = lambda split, numbers: (found := make(split, numbers)) | {"weight": np.ones_like(found["weight"])}
    return task


def specified(task: Any) -> tuple[Tree, Tree]:
    """Factors of the first batch, and the change of the weights in a first step, by K-FAC's reference."""
    oracle, taps = built(config("sgd", "torch"), task), {}

    def observe(seen: Any, weight: Any) -> dict[str, Any]:
        taps.update({name: (x.numpy(), dy.numpy()) for (name, _), (x, dy) in seen.items()})
        return {}

    oracle.optimizer.observe = observe
    batch, layers = task.batch("train", 0, 0), task.layers()
    share = oracle._evaluate(oracle._micro(batch), (0, 0), observe=oracle._curvature)
    params = {n: v for n, v in weights(oracle).items() if task.shapes()[n].kind == "parameter"}
    grads = {name: grad.numpy() for name, grad in share.grads.items()}
    weight = batch["weight"].astype(np.float64)
    factors = reference.compute_statistics(taps, weight, layers, params)
    given = {"step": 0, "taps": taps, "weight": weight, "layers": layers}
    after, _ = reference.update(params, grads, reference.init(params), Settings.given(PLAIN), **given)
    return factors, {name: after[name] - params[name] for name in params}


def theirs(task: Any) -> tuple[dict[tuple[int, ...], list[np.ndarray]], Tree]:
    """Return the same as `specified`, by kfac-jax; a layer's two factors by their sizes."""
    made = built(settings(hyper=PLAIN), task)
    before = weights(made)
    advance(made, range(1))
    after = weights(made)
    blocks = made.run["opt"]["curvature"].blocks_states
    pairs = [[np.asarray(factor.value) for factor in block.factors] for block in blocks if hasattr(block, "factors")]
    return {tuple(map(len, pair)): pair for pair in pairs}, {name: after[name] - before[name] for name in before}


@present
@pytest.mark.parametrize("task", [perceptron, even], ids=["perceptron", "convolution"])
def test_factors_and_directions_are_those_of_the_specification(task: Callable[[], Any]) -> None:
    factors, moved = specified(task())
    found, changed = theirs(task())
    layers = {n: layer for n, layer in task().layers().items() if layer.kind in ("linear", "conv2d")}
    for name, layer in layers.items():
        ours = [factors[f"{name}/in"], factors[f"{name}/out"]]
        pair = found[len(ours[0]), len(ours[1])]
        places = 1
        if layer.kind == "conv2d":  # kfac-jax takes the mean over places in A too, and keeps their number beside
            places = (tiny().make("train", np.arange(1))["image"].shape[2] // layer.stride) ** 2
        assert np.allclose(pair[0] * places, ours[0], rtol=1e-9, atol=1e-12), name
        assert np.allclose(pair[1], ours[1], rtol=1e-9, atol=1e-15), name
        for parameter in layer.parameters:
            scale = np.abs(moved[parameter]).max()
            assert np.abs(changed[parameter] - moved[parameter]).max() < 1e-9 * scale, parameter


@present
def test_sampled_labels_are_those_of_our_kfac() -> None:
    ends = []
    for made in (
        built(settings(hyper={**PLAIN, "fisher": "sampled"}), perceptron()),
        built(config("kfac", "jax", hyper={**PLAIN, "factor_interval": 1, "fisher": "sampled"}), perceptron()),
    ):
        advance(made, range(1))
        ends.append(weights(made))
    assert gap(*ends) < 1e-9


@present
def test_ranks_and_micro_batches_change_nothing() -> None:
    """Weights are equal where every parameter is in a block with factors; a generic block's diagonal is each rank's."""
    ends = []
    for changes in ({}, {"world": 2, "accumulate": 2}):
        made = built(settings(**changes), perceptron())
        advance(made, range(4))
        ends.append(weights(made))
    assert gap(*ends) < 1e-10


@present
def test_restored_it_goes_on_bit_for_bit() -> None:
    whole = engine(settings(precision="float32"))
    advance(whole, range(3))  # the next inverse is due at the fourth step
    arrays, skeleton = whole.snapshot()
    arrays = {name: array.copy() for name, array in arrays.items()}
    advance(whole, range(3, 6))
    again = engine(settings(precision="float32"))
    again.restore(arrays, skeleton)
    advance(again, range(3, 6))
    assert gap(weights(again), weights(whole)) == 0.0


@present
def test_what_is_scheduled_is_read_each_step() -> None:
    ends = []
    for start, damping in ((0.3, 0.3), (9.0, 0.3), (0.3, 9.0)):
        made = engine(settings(hyper={**PLAIN, "damping": start}))
        made.step(0, made.task.batch("train", 0, 0), {"damping": damping})
        ends.append(weights(made))
    assert gap(ends[0], ends[1]) == 0.0 and gap(ends[0], ends[2]) > 1e-6


@present
def test_the_loss_falls_and_blocks_are_counted() -> None:
    made = engine(settings(precision="float32"))
    losses = advance(made, range(60))
    assert np.mean(losses[-5:]) < 0.98 * np.mean(losses[:5])
    assert made.facts()["optimizer"] == {
        "Conv2DTwoKroneckerFactored": 1,
        "DenseTwoKroneckerFactored": 1,
        "ScaleAndShiftDiagonal": 1,
        "NaiveDiagonal": 1,  # the embedding
    }


def test_another_fisher_is_refused() -> None:
    with pytest.raises(UserError, match="fisher=exact: must be one of empirical, sampled"):
        engine(settings(hyper={"fisher": "exact"}))


# ------------------------------------------------------------------------------------------ without the library
def test_without_it_one_line_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kfac_jax", None)  # importing it fails
    monkeypatch.setattr(sys, "path", list(sys.path))
    typed = "git clone https://github.com/google-deepmind/kfac-jax DIR, then optimizer.path=DIR"
    for path, said in ((None, typed), ("/no/such", "optimizer.path=/no/such: no such folder")):
        with pytest.raises(UserError, match=said) as error:
            engine(settings(hyper={"path": path}))
        assert "\n" not in str(error.value)


def test_a_version_that_cannot_trace_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Curvature:
        def __init__(self, loss: Any, **options: Any):
            pass

        def finalize(self, arguments: Any) -> None:
            raise ValueError("expected 2, got 1\nand more")

    old = ModuleType("kfac_jax")
    old.__file__, old.BlockDiagonalCurvature = "/old/kfac_jax.py", Curvature  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kfac_jax", old)
    with pytest.raises(UserError) as error:
        engine(settings(hyper={"path": None}))
    assert "/old/kfac_jax.py cannot trace this loss (expected 2, got 1); release 0.0.8" in str(error.value)


def test_in_torch_it_is_refused(suite_command: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    refused = suite_command("+task=resnet50", "optimizer=kfac_jax", "max_steps=2", "track=none", "threads=1")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert f"{MODULE}: is written for jax alone; set backend=jax" in refused.stderr


# ------------------------------------------------------------------------- what the engine offers, without the library
def gradient_of_the_objective() -> ModuleType:
    """Gradient descent that differentiates the objective by itself and does not look at the gradient it is given."""
    import jax

    from suite.optimizers._base.jax import Optimizer, make_hyperparameters

    def make(*, objective: Any, lr: float = 1.0) -> Optimizer:
        def update(grads: Any, state: Any, params: Any, *, reduce: Any, context: Any) -> Any:
            like = jax.tree.map(lambda v: (v.shape, v.dtype), context)
            assert like == jax.tree.map(lambda v: (v.shape, v.dtype), dict(objective.context))
            (_, (weight, *_)), found = jax.value_and_grad(objective.value, has_aux=True)(params, context)
            shares = reduce.exact({"weight": weight, "grads": found})
            rate = state["hyper"]["lr"] / shares["weight"]
            return jax.tree.map(lambda grad: -rate * grad, shares["grads"]), state

        return Optimizer(lambda params: {"hyper": make_hyperparameters(lr=lr)}, update)

    half = ModuleType("traced_elsewhere.jax")
    half.make = make  # type: ignore[attr-defined]
    return half


@pytest.mark.parametrize("changes", [{}, {"world": 2, "accumulate": 2}, {"precision": "bfloat16"}], ids=str)
def test_the_objective_is_the_loss_of_the_step(changes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ModuleType("traced_elsewhere")
    common.__path__, common.NEEDS = [], ("objective", "context", "reduce")  # type: ignore[attr-defined]
    common.__spec__ = ModuleSpec("traced_elsewhere", None, is_package=True)
    monkeypatch.setitem(sys.modules, "traced_elsewhere", common)
    monkeypatch.setitem(sys.modules, "traced_elsewhere.jax", gradient_of_the_objective())
    ends = []
    for node in (
        {"module": "traced_elsewhere", "lr": 0.1},
        {"module": "suite.optimizers.sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0},
    ):
        made = engine(change(config("sgd", "jax", **changes), {"optimizer": node}))
        advance(made, range(3))
        ends.append(weights(made))
    assert gap(*ends) < (1e-12 if "precision" not in changes else 1e-6)


def test_a_member_without_this_half_says_which_it_has() -> None:
    with pytest.raises(UserError, match="is written for jax alone; set backend=jax"):
        load.load_half(MODULE, "torch")
    with pytest.raises(UserError, match=r"no module suite\.optimizers\.nothing; check `module:`"):
        load.load_half("suite.optimizers.nothing", "torch")
