"""Tests of invariance: K-FAC's and K-BFGS's steps must not change with coordinates of a layer's inputs and outputs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from kfacs import BOTH, LINEAR, SHAPES, statistics
from sampling import mostly_torch
from twins import Tree, draw

from suite.optimizers.kbfgs.jax import kbfgs
from suite.optimizers.kbfgs.torch import KBFGS

both = pytest.mark.parametrize("backend", BOTH)
N, STEPS = 6, 5


def orthogonal(size: int) -> np.ndarray:
    return np.linalg.qr(draw({"q": (size, size)}, 1)["q"])[0]


def whole(values: Tree) -> np.ndarray:
    """Weights and biases side by side, [W b]."""
    return np.hstack([values["fc.weight"], values["fc.bias"][:, None]])


# ---------------------------------------------------------------------------------------------------------- K-FAC
def direction(backend: str, inputs: np.ndarray, outputs: np.ndarray, **hyper: Any) -> np.ndarray:
    """K-FAC's direction [W b] where inputs a = [h 1] are now `inputs` a, and gradients g by the outputs `outputs` g."""
    made, found, grads = BOTH[backend](lr=1.0, momentum=0.0, **hyper), statistics(), draw(SHAPES, 1)
    made.refresh(0, {"fc/in": inputs @ found["fc/in"] @ inputs.T, "fc/out": outputs @ found["fc/out"] @ outputs.T})
    before, turned = whole(made.params), outputs @ whole(grads) @ inputs.T
    made.update({"fc.weight": turned[:, :-1], "fc.bias": turned[:, -1]})
    assert made.facts()["kept"] == 0
    return before - whole(made.params)


def back(backend: str, inputs: np.ndarray, outputs: np.ndarray, **hyper: Any) -> np.ndarray:
    """Return the same direction as the step that it means in the old coordinates."""
    return outputs.T @ direction(backend, inputs, outputs, **hyper) @ inputs


@both
def test_without_damping_kfac_does_not_depend_on_a_layers_coordinates(backend: str) -> None:
    """(G' ⊗ A')⁻¹ with A' = P A Pᵀ and G' = Q G Qᵀ, for any invertible P and Q; with damping it does."""
    p, q = draw({"p": (4, 4)}, 2)["p"], draw({"q": (2, 2)}, 3)["q"]
    plain = direction(backend, np.eye(4), np.eye(2), damping=0.0)
    assert np.abs(plain).max() > 0.1
    assert np.allclose(back(backend, p, q, damping=0.0), plain, rtol=0, atol=1e-9)
    damped = direction(backend, np.eye(4), np.eye(2), damping=0.1)
    assert np.abs(back(backend, p, q, damping=0.1) - damped).max() > 1e-2


@both
@pytest.mark.parametrize("split", ["pi", "equal"])
def test_damped_kfac_turns_with_a_layers_coordinates(backend: str, split: str) -> None:
    p, q, hyper = orthogonal(4), orthogonal(2), {"damping": 0.1, "damping_split": split}
    damped = direction(backend, np.eye(4), np.eye(2), **hyper)
    assert np.allclose(back(backend, p, q, **hyper), damped, rtol=0, atol=1e-12)


@both
def test_damping_in_units_of_the_fisher_matrix_makes_kfac_independent_of_scale(backend: str) -> None:
    """Inputs c and gradients s times as large: λ (c s)² is split by π as λ was; in equal parts it is not."""
    c, s = 30.0, 0.02
    for split, same in ("pi", True), ("equal", False):
        damped = direction(backend, np.eye(4), np.eye(2), damping=0.1, damping_split=split)
        scaled = back(backend, c * np.eye(4), s * np.eye(2), damping=0.1 * (c * s) ** 2, damping_split=split)
        assert np.allclose(scaled, damped, rtol=0, atol=1e-12) is same


# --------------------------------------------------------------------------------------------------------- K-BFGS
class Alone:
    """A reduction over one rank."""

    exact = staticmethod(lambda values: values)
    mean = staticmethod(lambda name, values: values)


def trained(backend: str, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """[W b] after some K-BFGS steps on Σ (y - t)⁴ / 4 with inputs now `inputs` h and outputs `outputs` y."""
    old = draw({"fc.weight": (2, 3), "fc.bias": (2,), "t": (N, 2)}, 0)
    batches = [draw({"h": (N, 3)}, step)["h"] for step in range(STEPS)]  # new ones, so that A moves and Ha after it
    start = {"fc.weight": outputs @ old["fc.weight"] @ np.linalg.inv(inputs), "fc.bias": outputs @ old["fc.bias"]}
    hyper: dict[str, Any] = {"lr": 0.1, "damping": 0.3, "momentum": 0.5, "layers": LINEAR}
    make: Any = torch.tensor if backend == "torch" else jnp.asarray
    with jax.enable_x64(True):
        t, weight, inverse = make(old["t"]), make(np.ones(N)), make(np.linalg.inv(outputs))
        x: Any = None  # of the step

        def taps(params: Any) -> Any:
            y = x @ params["fc.weight"].T + params["fc.bias"]
            return {("fc", 0): (x, (y @ inverse.T - t) ** 3 @ inverse)}

        def seen(params: Any, observe: Any) -> Any:
            return {name: value / N for name, value in observe(taps(params), weight).items()}

        def slopes(params: Any) -> Any:
            _, dy = taps(params)["fc", 0]
            return {"fc.weight": dy.T @ x / N, "fc.bias": dy.mean(0)}

        if backend == "torch":
            named = {name: torch.nn.Parameter(make(value)) for name, value in start.items()}
            optimizer = KBFGS(named.items(), **hyper)
            plain = {name: parameter.data for name, parameter in named.items()}  # which change with them
            for step in range(STEPS):
                x = make(batches[step] @ inputs.T)
                optimizer.absorb(seen(plain, optimizer.observe), reduce=Alone)
                for name in optimizer.plan.programs(step):
                    optimizer.program(name, reduce=Alone)
                for name, value in slopes(plain).items():
                    named[name].grad = value
                optimizer.step(evaluate=lambda observe: (None, None, seen(plain, observe)), reduce=Alone)
            assert optimizer.facts()["kept"] == 0
            return whole({name: value.numpy() for name, value in plain.items()})
        made = kbfgs(shapes={name: value.shape for name, value in start.items()}, **hyper)
        params = {name: make(value) for name, value in start.items()}
        state = made.init(params)
        for step in range(STEPS):
            x = make(batches[step] @ inputs.T)
            state = made.absorb(seen(params, made.observe), state, reduce=Alone)
            for name in made.plan.programs(step):
                state = made.program(name, state, reduce=Alone)
            evaluate = lambda at, observe: (None, None, seen(at, observe))  # noqa: E731
            updates, state = made.update(slopes(params), state, params, evaluate=evaluate, reduce=Alone)
            params = {name: value + updates[name] for name, value in params.items()}
        assert made.facts(state)["kept"] == 0
        return whole({name: np.asarray(value) for name, value in params.items()})


@mostly_torch
def test_kbfgs_turns_with_a_layers_coordinates(backend: str) -> None:
    """From Hg = I on, over several steps; stretched coordinates it does see, as its first step is a gradient step."""
    plain, q, r = trained(backend, np.eye(3), np.eye(2)), orthogonal(2), orthogonal(3)
    found = trained(backend, r, q)
    assert np.allclose(q.T @ found[:, :-1] @ r, plain[:, :-1], rtol=0, atol=1e-10)
    assert np.allclose(q.T @ found[:, -1], plain[:, -1], rtol=0, atol=1e-10)
    start = draw({"fc.weight": (2, 3), "fc.bias": (2,)}, 0)
    assert np.abs(plain - whole(start)).max() > 0.1
    stretched = trained(backend, np.eye(3), np.diag([2.0, 1.0]))
    assert np.abs(np.diag([0.5, 1.0]) @ stretched - plain).max() > 1e-2
