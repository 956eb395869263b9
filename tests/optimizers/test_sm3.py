"""SM3 against optax's own, the cases of google-research/sm3's tests, its theory, and its memory."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from alone import BACKENDS, SHAPES, draw, gap, in_jax, in_torch, pulled, train

from suite.contract import Rows, UserError
from suite.optimizers.adagrad.torch import Adagrad
from suite.optimizers.sm3.jax import sm3
from suite.optimizers.sm3.torch import SM3

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("backend", BACKENDS)
variants = pytest.mark.parametrize("variant", ["I", "II"])


@pytest.fixture
def optimized() -> Iterator[None]:
    """Compile as users do: without optimizations, which `make test` leaves out, the last bit differs from torch's."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def covers(variant: str, steps: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """μ of every axis after some steps of noise; jax's is held to torch's."""
    weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer = SM3([("w", weight)], variant=variant)
    with jax.enable_x64(True):
        twin, params = sm3(variant=variant), {"w": jnp.zeros(shape)}
        state, update = twin.init(params), jax.jit(twin.update)
        for step in range(steps):
            grad = draw(step, {"w": shape})
            weight.grad = torch.tensor(grad["w"])
            optimizer.step()
            state = update({"w": jnp.asarray(grad["w"])}, state, params)[1]
        found = [value.numpy() for value in optimizer.state[weight]["covers"]]
        assert all(np.array_equal(a, b) for a, b in zip(found, state["covers"]["w"], strict=True))
    return found


def test_jax_equals_optax() -> None:
    """SM3-II with the same average of scaled gradients; optax cannot do scalars, and has ε = 1e-8 unless told."""
    shapes = {name: shape for name, shape in SHAPES.items() if shape}
    oracle = optax.chain(optax.scale_by_sm3(0.8, 1.0, eps=1e-30), optax.scale(-0.1))
    options: dict[str, Any] = {"start": draw(0, shapes)}
    found = in_jax(lambda: sm3(lr=0.1, momentum=0.8), **options)
    assert gap(found, in_jax(lambda: oracle, **options)) <= 1e-12


@variants
def test_vectors_and_scalars_follow_adagrad(variant: str) -> None:
    options: dict[str, Any] = {"start": draw(0, {"bias": (5,), "scale": ()})}
    adagrad = in_torch(lambda params: Adagrad(params.items(), lr=0.1, epsilon=0.0), **options)
    found = in_torch(lambda params: SM3(params.items(), lr=0.1, momentum=0.0, variant=variant), **options)
    assert gap(found, adagrad) <= 1e-12


# ------------------------------------------------------------------- the cases of google-research/sm3, sm3_test.py
@both
@pytest.mark.parametrize(
    "weight, grad", [(0.5, 0.1), ([0.5, 0.3], [0.1, 0.1]), ([[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.05], [0.03, 0.02]])]
)
def test_dense_updates(backend: str, weight: Any, grad: Any) -> None:
    """A scalar, a vector and a matrix, two steps by the same gradient."""
    weight, grad = np.asarray(weight), np.asarray(grad)
    options: dict[str, Any] = {"start": {"w": weight}, "steps": 2}
    found = train(backend, "sm3", lambda params, step: {"w": grad}, hyper={"lr": 0.1, "momentum": 0.9}, **options)
    bound, average = np.zeros_like(grad), np.zeros_like(grad)
    for _ in range(2):
        if grad.ndim == 2:
            bound = np.minimum(bound.max(1, keepdims=True), bound.max(0, keepdims=True))
        bound = bound + grad**2
        average = 0.9 * average + 0.1 * grad / np.sqrt(bound)
        weight = weight - 0.1 * average
    assert np.abs(found["w"] - weight).max() <= 1e-12


@both
@variants
def test_no_gradient_is_no_step_not_even_the_first(backend: str, variant: str) -> None:
    zero = lambda params, step: {"w": np.zeros(()), "m": np.zeros((2, 2))}  # noqa: E731
    start = {"w": np.float32(0.5), "m": np.full((2, 2), 0.5, "float32")}
    found = train(backend, "sm3", zero, hyper={"variant": variant}, start=start, kind="float32", steps=1)
    assert gap(found, start) == 0.0


SPARSE = np.array([[0.5, 0.05], [0.05, 1.0], [0.15, 3.0], [0.35, 2.0]])
NAMED, SLICES = [1, 3], np.array([[0.1, 0.05], [0.01, 1.5]])


def by_rows(backend: str, ids: list[int], values: np.ndarray, **hyper: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the table and its rows' μ after two steps by the same rows."""
    if backend == "torch":
        table = torch.nn.Parameter(torch.tensor(SPARSE))
        optimizer = SM3([("table", table)], lr=0.1, **hyper)
        for _ in range(2):
            table.grad = torch.sparse_coo_tensor(
                torch.tensor([ids]), torch.tensor(values), table.shape, check_invariants=False
            )
            optimizer.step()
        return table.detach().numpy(), optimizer.state[table]["covers"][0].numpy()
    with jax.enable_x64(True):
        twin, params = sm3(lr=0.1, **hyper), {"table": jnp.asarray(SPARSE)}
        state, update = twin.init(params), jax.jit(twin.update)
        for _ in range(2):
            updates, state = update({"table": Rows(jnp.asarray(ids), jnp.asarray(values))}, state, params)
            found = updates["table"]
            added = params["table"].at[found.ids].add(found.values) if isinstance(found, Rows) else SPARSE + found
            params = {"table": added}
        return np.asarray(params["table"]), np.asarray(state["covers"]["table"][0])


@both
@variants
@pytest.mark.parametrize("split", [False, True])
def test_sparse_updates(backend: str, variant: str, split: bool) -> None:
    """Rows are the only slices; a row in two parts is the same row; the others keep their bits."""
    ids, values = (NAMED * 2, np.concatenate([SLICES / 2] * 2)) if split else (NAMED, SLICES)
    table, rows = by_rows(backend, ids, values, momentum=0.0, variant=variant)
    expected, bound = SPARSE.copy(), np.zeros((4, 1))
    for _ in range(2):
        before = bound[NAMED]
        bound[NAMED] = before + (SLICES**2).max(1, keepdims=True)
        root = np.sqrt(bound[NAMED] if variant == "I" else before + SLICES**2)
        expected[NAMED] -= 0.1 * SLICES / root
    assert np.abs(table - expected).max() <= 1e-12 and np.abs(rows - bound).max() <= 1e-12
    assert np.array_equal(table[[0, 2]], SPARSE[[0, 2]]) and not rows[[0, 2]].any()


# ------------------------------------------------------------------------------------------- theory and memory
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 2, 2)])
def test_both_bound_the_sum_of_squares_and_the_second_more_closely(shape: tuple[int, ...], optimized: None) -> None:
    """Claim 2 and proposition 3 of the paper: Σ g² ≤ ν of SM3-II ≤ ν of SM3-I, for every element."""
    exact = sum(draw(step, {"w": shape})["w"] ** 2 for step in range(8))

    def least(variant: str) -> np.ndarray:
        found = covers(variant, 8, shape)
        return np.min(np.broadcast_arrays(*found), axis=0)

    first, second = least("I"), least("II")
    assert (exact <= second * (1 + 1e-12)).all() and (second <= first * (1 + 1e-12)).all()
    assert second.sum() < 0.95 * first.sum()


@pytest.mark.parametrize("variant", ["I", "II"])
def test_a_sparse_gradient_without_rows_moves_nothing(variant: str) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = SM3([("w", weight)], momentum=0.0, variant=variant)
    weight.grad = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, 2), (4, 2))
    optimizer.step()
    assert (weight == 1).all() and not optimizer.state[weight]["covers"][0].any()


def test_blocks_cannot_be_reset() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2))
    with pytest.raises(UserError, match=r"SM3\.reset: blocks of a parameter share state"):
        SM3([("w", weight)]).reset({weight: torch.tensor([True, False, False, False])})
    assert "reset" not in vars(sm3())


def test_memory_is_sublinear() -> None:
    def share(**hyper: Any) -> float:
        weight = torch.nn.Parameter(torch.zeros(512, 512))
        state = SM3([("w", weight)], **hyper).state[weight]
        held = sum(value.numel() for value in state["covers"])
        return (held + state.get("velocity", torch.zeros(0)).numel()) / weight.numel()

    assert share(momentum=0.9) < 1.01 and share(momentum=0.0) < 0.01
    with jax.enable_x64(False):
        state = sm3(momentum=0.0).init({"w": jnp.zeros((512, 512))})
        assert sum(leaf.size for leaf in jax.tree.leaves(state)) < 0.01 * 512 * 512


@both
def test_an_unknown_variant_is_refused(backend: str) -> None:
    with pytest.raises(UserError, match="one of I, II"):
        train(backend, "sm3", pulled, hyper={"variant": "III"})
