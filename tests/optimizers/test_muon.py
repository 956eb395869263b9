"""Muon: held to its specification, to torch's and optax's own, and to what it does to singular values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from alone import BACKENDS, STEPS, Tree, draw, gap, in_jax, in_torch, pulled
from optax.contrib import MuonDimensionNumbers
from optax.contrib import muon as muon_of_optax

from suite.contract import Layer, UserError
from suite.optimizers.adamw import Settings as AdamWSettings
from suite.optimizers.adamw import reference as adamw
from suite.optimizers.muon import Settings, reference
from suite.optimizers.muon.jax import muon
from suite.optimizers.muon.jax import newton_schulz as iterated_in_jax
from suite.optimizers.muon.plan import MuonPlan
from suite.optimizers.muon.torch import Muon
from suite.optimizers.muon.torch import newton_schulz as iterated_in_torch

SHAPES = {
    "embed.weight": (7, 4),
    "up.weight": (9, 4),
    "up.bias": (9,),
    "down.weight": (4, 9),
    "square.weight": (5, 5),
    "conv.weight": (4, 2, 3, 3),
    "recurrent.weight": (6, 3),
    "norm.weight": (4,),
    "head.weight": (7, 4),
}
LAYERS = {
    "embed": Layer("embedding", ("embed.weight",)),
    "up": Layer("linear", ("up.weight", "up.bias")),
    "down": Layer("linear", ("down.weight",)),
    "square": Layer("linear", ("square.weight",)),
    "conv": Layer("conv2d", ("conv.weight",), kernel=3),
    "norm": Layer("batchnorm", ("norm.weight",)),
    "head": Layer("linear", ("head.weight",)),
}
TREATED = {"up.weight", "down.weight", "square.weight", "conv.weight"}
HYPER = {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1, "fallback_ratio": 0.4, "fallback_epsilon": 1e-6}
both = pytest.mark.parametrize("backend", BACKENDS)


def in_reference(edit: dict[str, Any] | None = None, **hyper: Any) -> Tree:
    params, state = draw(0, SHAPES), reference.init(draw(0, SHAPES))
    for step in range(STEPS):
        hyper |= edit or {} if step == STEPS // 2 else {}
        settings = Settings.given(hyper)
        params, state = reference.update(params, pulled(params, step), state, settings, step=step, layers=LAYERS)
    return params


def ours(backend: str, edit: dict[str, Any] | None = None, **hyper: Any) -> Tree:
    if backend == "torch":
        return in_torch(lambda params: Muon(params.items(), layers=LAYERS, **hyper), edit=edit, start=draw(0, SHAPES))
    return in_jax(lambda: muon(layers=LAYERS, shapes=SHAPES, **hyper), edit=edit, start=draw(0, SHAPES))


def only(names: Any, values: Tree) -> Tree:
    return {name: values[name] for name in names}


@pytest.mark.sample(6)
@pytest.mark.quick
# --------------------------------------------------------------------------------------------- the specification
@both
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"nesterov": False},
        {"scale": "match_rms_adamw"},
        {"iterations": 2},
        {"excluded": []},
        {"excluded": ["conv"]},
    ],
)
def test_backends_equal_the_reference(backend: str, change: dict[str, Any]) -> None:
    assert gap(ours(backend, **HYPER | change), in_reference(**HYPER | change)) <= 1e-11


@pytest.mark.sample(4)
@both
@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.5},
        {"momentum": 0.1},
        {"weight_decay": 0.9},
        {"fallback_ratio": 2.0},
        {"fallback_beta1": 0.1},
        {"fallback_beta2": 0.1},
        {"fallback_epsilon": 0.5},
    ],
)
def test_an_edit_takes_effect_at_once(backend: str, change: dict[str, float]) -> None:
    expected = in_reference(change, **HYPER)
    assert gap(ours(backend, change, **HYPER), expected) <= 1e-11
    assert gap(in_reference(**HYPER), expected) > 1e-4


@pytest.mark.quick
@both
def test_the_rest_is_adamw(backend: str) -> None:
    params, state = draw(0, SHAPES), adamw.init(draw(0, SHAPES))
    settings = AdamWSettings(lr=0.02, beta2=0.95, epsilon=1e-6, weight_decay=0.1)
    for step in range(STEPS):
        params, state = adamw.update(params, pulled(params, step), state, settings, step=step)
    found, rest = ours(backend, **HYPER), set(SHAPES) - TREATED
    assert gap(only(rest, found), only(rest, params)) <= 1e-12
    assert all(np.abs(found[name] - params[name]).max() > 1e-3 for name in TREATED)


# -------------------------------------------------------------------------------------------------------- oracles
@both
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_matrices_equal_torch(backend: str, nesterov: bool, scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's rounding to bfloat16 taken out; it takes no filters."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    names = ["up.weight", "down.weight", "square.weight"]
    settings: dict[str, Any] = {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.1, "nesterov": nesterov}
    make = lambda params: torch.optim.Muon([params[n] for n in names], adjust_lr_fn=scale, **settings)  # noqa: E731
    expected = in_torch(make, start=draw(0, SHAPES))
    monkeypatch.undo()
    assert gap(only(names, ours(backend, scale=scale, **settings)), only(names, expected)) <= 1e-12


@both
def test_everything_equals_optax(backend: str) -> None:
    """Without Nesterov's look-ahead, where optax mixes two bias corrections; a common factor is normalised away."""
    axes = {name: MuonDimensionNumbers((1, 2, 3)[: len(s) - 1], 0) for name, s in SHAPES.items() if name in TREATED}

    settings = {"fallback_epsilon": 1e-12, "nesterov": False, "weight_decay": 0.0}

    def oracle() -> Any:
        return muon_of_optax(
            0.05,
            beta=0.8,
            eps=1e-12,
            nesterov=False,
            adam_b2=0.95,
            adam_learning_rate=0.02,
            muon_weight_dimension_numbers={name: axes.get(name) for name in SHAPES},
        )

    assert gap(ours(backend, **HYPER | settings), in_jax(oracle, start=draw(0, SHAPES))) <= 1e-9


# ------------------------------------------------------------------------------------------------ singular values
def iterated(backend: str, stack: np.ndarray, iterations: int = 5, **options: Any) -> np.ndarray:
    if backend == "torch":
        return iterated_in_torch(torch.tensor(stack), iterations, **options).numpy()
    with jax.enable_x64(stack.dtype == np.float64):
        return np.asarray(jax.jit(lambda x: iterated_in_jax(x, iterations, **options))(jnp.asarray(stack)))


@both
@pytest.mark.parametrize("shape", [(16, 16), (16, 20), (16, 64), (1, 5)])
def test_singular_vectors_stay_and_values_go_towards_one(backend: str, shape: tuple[int, int]) -> None:
    stack = np.random.default_rng(0).normal(size=(3, *shape)) * np.array([1e-3, 1.0, 1e6])[:, None, None]
    u, values, v = np.linalg.svd(stack, full_matrices=False)
    found = iterated(backend, stack)
    after = np.einsum("nik,nij,nkj->nk", u, found, v)
    assert np.abs(found - (u * after[:, None]) @ v).max() < 1e-9  # both products: square and wide, by the Gram matrix
    large = values / np.linalg.norm(values, axis=1, keepdims=True) > 0.01
    assert large.sum() >= len(stack) and (after[large] > 0.6).all() and (after[large] < 1.3).all()


@both
@pytest.mark.parametrize("shape", [(4, 4), (4, 24)])
@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_each_iteration_applies_its_polynomial_once(backend: str, shape: tuple[int, int], iterations: int) -> None:
    """3.4445 s - 4.7750 s³ + 2.0315 s⁵ to each singular value s of a matrix of norm 1; 0 only normalises."""
    matrix = np.random.default_rng(0).normal(size=shape)
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(iterations):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    assert np.abs(iterated(backend, matrix[None], iterations)[0] - (u * values) @ v).max() < 1e-12


@both
@pytest.mark.parametrize("shape", [(16, 16), (16, 64)])
def test_float32_and_bfloat16_are_near(backend: str, shape: tuple[int, int]) -> None:
    """Rank 4 of 16; rounding fills the null space, where it grows at most to one: little in float32."""
    generator = np.random.default_rng(0)
    stack = generator.normal(size=(2, shape[0], 4)) @ generator.normal(size=(2, 4, shape[1]))
    exact = iterated(backend, stack)
    norm = np.linalg.norm(exact)
    assert np.linalg.norm(iterated(backend, stack.astype(np.float32)) - exact) < 1e-3 * norm
    narrow = iterated(backend, stack.astype(np.float32), bfloat16=True)
    u, _, v = np.linalg.svd(stack)
    error = np.linalg.norm(u[..., :4].mT @ (narrow - exact) @ v[:, :4].mT)
    assert 1e-3 * norm < error < 0.1 * norm and np.linalg.svd(narrow)[1].max() < 1.3


@both
@pytest.mark.parametrize("shape", [(16, 64), (32, 128)])
def test_a_gradient_of_low_rank_in_bfloat16_gives_no_long_step(backend: str, shape: tuple[int, int]) -> None:
    """Rounding a wide one's Gram matrix to bfloat16 fills its null space, and the product grows a thousandfold."""
    generator = np.random.default_rng(3)
    stack = generator.normal(size=(1, shape[0], 4)) @ generator.normal(size=(1, 4, shape[1]))
    if backend == "torch":
        narrow = iterated_in_torch(torch.tensor(stack).bfloat16(), 5)
        assert narrow.dtype == torch.bfloat16
        found = narrow.double().numpy()
    else:
        narrow = iterated_in_jax(jnp.asarray(stack, jnp.bfloat16), 5)
        assert narrow.dtype == jnp.bfloat16
        found = np.asarray(narrow, np.float64)
    assert np.linalg.svd(found[0])[1].max() < 1.3


@both
def test_zero_and_broken_gradients(backend: str) -> None:
    """A zero matrix gives zero; one that is not finite spoils no other matrix of its stack."""
    stack = np.random.default_rng(0).normal(size=(4, 5, 9)).astype(np.float32)
    stack[1], stack[2] = 0.0, np.nan
    found = iterated(backend, stack)
    assert (found[1] == 0.0).all() and np.isnan(found[2]).all()
    assert np.isfinite(found[[0, 3]]).all()
    assert np.array_equal(found[0], iterated(backend, np.ascontiguousarray(stack[[0, 1, 0, 0]]))[0])


@both
def test_rotated_gradients_give_a_rotated_step(backend: str) -> None:
    stack = np.random.default_rng(0).normal(size=(1, 6, 9))
    p, q = (np.linalg.qr(np.random.default_rng(1).normal(size=(side, side)))[0] for side in (6, 9))
    assert np.abs(iterated(backend, p @ stack @ q) - p @ iterated(backend, stack) @ q).max() < 1e-10


# -------------------------------------------------------------------------------------------------------- the plan
def test_which_parameters_are_treated() -> None:
    made = MuonPlan(LAYERS, SHAPES, Settings())
    assert set(made.sides) == TREATED and made.sides["conv.weight"] == (4, 18)
    assert made.stacks == {"4x9": ("up.weight", "down.weight"), "5x5": ("square.weight",), "4x18": ("conv.weight",)}
    assert made.tall("up.weight") and not made.tall("down.weight")
    assert made.rest == ["embed.weight", "up.bias", "recurrent.weight", "norm.weight", "head.weight"]
    assert made.factor["up.weight"] == 1.5 and made.factor["down.weight"] == 1.0
    whole = MuonPlan(LAYERS, SHAPES, Settings(excluded=[], scale="match_rms_adamw"))
    assert set(whole.sides) == TREATED | {"head.weight"} and whole.factor["down.weight"] == pytest.approx(0.6)
    assert set(MuonPlan(LAYERS, SHAPES, Settings(excluded=("up", "conv"))).sides) == {
        *("down.weight", "square.weight", "head.weight")
    }


def test_unknown_options_say_what_to_type() -> None:
    with pytest.raises(UserError, match="scale=spectral: must be one of original, match_rms_adamw"):
        muon(layers=LAYERS, scale="spectral")
    with pytest.raises(UserError, match="excluded=head: must be a list or null"):
        muon(layers=LAYERS, excluded="head")
    with pytest.raises(UserError, match=r"embed is no linear layer .* there are up, down"):
        MuonPlan(LAYERS, SHAPES, Settings(excluded=["embed"]))
