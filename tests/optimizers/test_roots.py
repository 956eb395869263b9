"""Inverse roots, held to exact matrices."""

import threading
from typing import Any

import jax
import numpy as np
import pytest
import torch
from matrices import METHODS, conditioned, errors, root, stacked

from suite.optimizers._linalg import host as on_host
from suite.optimizers._linalg.host import HostRoots
from suite.optimizers._linalg.jax import bound_largest_eigenvalue as largest_in_jax
from suite.optimizers._linalg.torch import bound_largest_eigenvalue as largest_in_torch

both = pytest.mark.parametrize("backend", ["torch", "jax"])
every = pytest.mark.parametrize("where, method", [(where, method) for where in METHODS for method in METHODS[where]])
CONDITIONS = (1e2, 1e4, 1e6, 1e8)
# Relative Frobenius error of fourth roots of float32 matrices, n = 128, no ridge, against eigenvalues in float64 of the
# matrix before it was rounded. Above 1e6 it is this rounding that counts. Measured before any of this was written.
BOUNDS = {
    "eigh": (8.4e-8, 3.0e-6, 2.2e-4, 0.29),
    "eigh32": (1.6e-6, 2.5e-4, 2.8e-2, 0.30),
    "newton": (1.1e-6, 2.1e-5, 1.4e-3, 0.21),
}

# the same of a singular matrix with a ridge of 1e-6, which its rounding is near: measured
RIDGED = {"eigh": 1e-5, "eigh32": 0.05, "newton": 0.05}


@pytest.mark.sample(7)
@every
@pytest.mark.parametrize(
    "size, order",
    [
        *((32, p) for p in (2, 4, 8)),
        (128, 4),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((128, 2), (128, 6), (128, 8), (512, 4))),
    ],
)
def test_accuracy_in_float32(where: str, method: str, size: int, order: int) -> None:
    """A matrix of each condition number, each at a scale of its own: none may disturb another."""
    matrices, exact = stacked(size, order, CONDITIONS)
    scales = np.array([1.0, 1e-20, 1e20, 1e-3])[:, None, None]
    found = root(where, (matrices * scales).astype(np.float32), order, method) * scales ** (1.0 / order)
    bounds = np.array(BOUNDS[method])
    # δ(λ^(-1/p)) = δλ / (p λ): the share of the smallest eigenvalues, which are hit most, grows as p falls and n does
    bounds *= {2: 2.5, 4: 1.0, 6: 1.0, 8: 1.0}[order] * {32: 2.0, 128: 1.0, 512: 1.0}[size]
    if method == "newton" and (size, order) != (128, 4):  # n additions, p products: not those that were measured
        bounds *= 1.25 * max(size / 128, 1.0)
    ends = np.nan_to_num(errors(found, exact), nan=1e9)
    if method == "eigh32":
        # another LAPACK's order of additions. Of the cell that was measured, 1.6e-6 at 1e2 is missed by 9 to 12 %
        # (1.75e-6 and 1.8e-6 on two processors); the others hold. At 1e8 the least eigenvalues are below its rounding,
        # so that the matrix counts as singular, and the 0.30 of the table, which was luck, is not reached.
        bounds *= np.array([1.25, *([1.0, 1.0] if (size, order) == (128, 4) else [1.25, 1.25]), 1.0])
        assert not np.isfinite(found[3]).any()
        ends, bounds = ends[:3], bounds[:3]
    assert (ends <= bounds).all(), ends


@pytest.mark.sample(5)
@every
@pytest.mark.parametrize("order", [2, 4, 8])
def test_accuracy_in_float64(where: str, method: str, order: int) -> None:
    """Of one matrix at a condition number κ: about κ u / p by eigenvalues, and a few bits less by Newton."""
    matrices, exact = stacked(32, order, CONDITIONS)
    found = errors(root(where, matrices, order, method), exact)
    if method == "eigh32":  # decomposed in float32 all the same
        assert 1e-9 < found[0] < 2.0 * BOUNDS["eigh32"][0] * 2.5
        return
    unit = np.finfo(np.float64).eps * np.array(CONDITIONS) / order
    assert (found <= 1e-14 + (4.0 if method == "eigh" else 32.0) * unit).all(), found / unit


def of_rank(rank: int, size: int, seed: int) -> np.ndarray:
    """A dense matrix of low rank, rounded to float32: its null eigenvalues become tiny ones of either sign."""
    rows = np.random.default_rng([rank, size, seed]).normal(size=(rank, size))
    return (rows.T @ rows).astype(np.float32)


@pytest.mark.sample(4)
@every
@pytest.mark.parametrize("size", [4, 32])
def test_a_dense_matrix_of_low_rank_has_no_root_but_by_its_ridge(where: str, method: str, size: int) -> None:
    """Also of a rank of one less than all; with the published ridge (A + 1e-6 λmax I)^(-1/4), as ever."""
    ranks = [rank for rank in range(1, size) if rank in (1, 2, size // 2, size - 2, size - 1) for _ in range(6)]
    stack = np.stack([of_rank(rank, size, seed) for seed, rank in enumerate(ranks)])
    found = root(where, stack, 4, method, epsilon=0.0)
    kept = ~np.isfinite(found).all((1, 2))
    assert kept.all(), [rank for rank, good in zip(ranks, kept, strict=True) if not good]
    regular = stack.copy()
    regular[::2] = stacked(size, 4, (1e2,))[0].astype(np.float32)  # whose neighbours have none
    usable = np.isfinite(root(where, regular, 4, method, epsilon=0.0)).all((1, 2))
    assert usable[::2].all() and not usable[1::2].any()
    values, vectors = np.linalg.eigh(stack.astype(np.float64))
    lifted = np.maximum(values, 0.0) + 1e-6 * values[:, -1:]
    exact = (vectors * lifted[:, None] ** -0.25) @ vectors.transpose(0, 2, 1)
    assert (errors(root(where, stack, 4, method, epsilon=1e-6), exact) < RIDGED[method]).all()


def test_eigenvalues_in_float32_cost_accuracy() -> None:
    """Which is why they are not the default. Over eight matrices of each condition number: of one matrix alone the
    error in float32 is luck, from 2.8e-5 to 2.1e-4 at 1e4, and another one on another processor's LAPACK."""
    found: dict[str, list[np.ndarray]] = {method: [] for method in METHODS["torch"]}
    for seed in range(8):
        matrices, exact = stacked(128, 4, CONDITIONS[:3], seed)
        for method, several in found.items():
            several.append(errors(root("torch", matrices.astype(np.float32), 4, method), exact))
    middle = {method: np.median(several, axis=0) for method, several in found.items()}
    assert (np.array(found["eigh"]) < found["newton"]).all() and (np.array(found["newton"]) < found["eigh32"]).all()
    assert (middle["eigh"] < 0.1 * middle["eigh32"]).all() and middle["newton"][2] < 0.2 * middle["eigh32"][2]


@every
def test_the_ridge_makes_a_singular_matrix_regular(where: str, method: str) -> None:
    """Rank 8 of 64, exactly singular, in float32: the root of A + 1e-4 λmax I, a hundred times above its rounding."""
    q, _ = conditioned(64, 1.0)
    values = np.r_[np.zeros(56), np.linspace(1.0, 3.0, 8)]
    exact = (q * (values + 3e-4) ** -0.25) @ q.T
    found = root(where, ((q * values) @ q.T)[None].astype(np.float32), 4, method, epsilon=1e-4)[0]
    assert np.linalg.norm(found - exact) < 2e-3 * np.linalg.norm(exact)


@both
def test_auto_is_eigh_on_a_cpu(backend: str) -> None:
    q, values = conditioned(16, 1e4)
    stack = ((q * values) @ q.T)[None].astype(np.float32)
    assert np.array_equal(root(backend, stack, 4, "auto"), root(backend, stack, 4, "eigh"))
    assert not np.array_equal(root(backend, stack, 4, "auto"), root(backend, stack, 4, "newton"))


@pytest.mark.parametrize(
    "largest", [lambda a: largest_in_torch(torch.tensor(a)).numpy(), lambda a: np.asarray(largest_in_jax(a))]
)
def test_the_largest_eigenvalue_is_bounded_from_above(largest: Any) -> None:
    """Also where the vector of ones, power iteration's usual start, is in the null space."""
    centred = np.eye(10) - 0.1
    top = np.diff(np.eye(10), axis=0)[:1]
    matrices = np.stack([np.eye(10), centred, 1e3 * top.T @ top, np.diag(np.arange(10.0))]).astype(np.float32)
    ratio = largest(matrices)[:, 0, 0] / np.linalg.eigvalsh(matrices.astype(np.float64))[:, -1]
    assert (ratio >= 1 - 1e-5).all() and (ratio <= 10 ** (1 / 32) + 1e-5).all()


def test_newton_stops_when_it_has_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    """About ln(condition) / ln 2.44 iterations for a fourth root, and a few more; not the hundred it may take."""
    power, calls = torch.linalg.matrix_power, []
    monkeypatch.setattr(torch.linalg, "matrix_power", lambda stack, n: calls.append(n) or power(stack, n))
    for condition, most in (1e2, 12), (1e6, 24):
        calls.clear()
        q, values = conditioned(32, condition)
        root("torch", ((q * values) @ q.T)[None].astype(np.float32), 4, "newton")
        assert 4 < calls.count(4) <= most


def test_newton_does_not_take_a_worse_iterate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close to the root one product is spoilt a thousandfold: the iterate before it is what counts."""
    power = torch.linalg.matrix_power

    def spoilt(t: torch.Tensor, exponent: int) -> torch.Tensor:
        near = exponent == 4 and (t - torch.eye(16)).abs().max() < 0.02
        return power(t, exponent) * (1e3 if near else 1.0)

    monkeypatch.setattr(torch.linalg, "matrix_power", spoilt)
    q, values = conditioned(16, 1e2)
    exact = (q * values**-0.25) @ q.T
    found = root("torch", ((q * values) @ q.T)[None].astype(np.float32), 4, "newton")[0]
    assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize("method", ["eigh", "eigh32", "newton"])
def test_switches_and_random_numbers_are_left_alone(method: str) -> None:
    def found() -> tuple[Any, ...]:
        numpy_state = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]
        printing = str(torch._tensor_str.PRINT_OPTS), str(np.get_printoptions())
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        jax_config = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
        return torch.get_rng_state().numpy().tobytes(), numpy_state, printing, tf32, jax_config

    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        before = found()
        stack = np.stack([np.eye(4), np.full((4, 4), np.nan)]).astype(np.float32)
        root("torch", stack, 4, method)
        root("jax", stack, 4, method)
        assert found() == before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


# ------------------------------------------------------------------------------------------------- on the host
def test_a_job_counts_only_for_what_it_began_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is determined by what is asked, whether or not somebody has begun with it."""
    matrices, _ = stacked(8, 4, (1e2, 1e3))
    matrices[1, 0, 0] = np.nan  # has no root, and is still the same matrix
    made, right, asked = HostRoots(), on_host.inverse_root, []
    monkeypatch.setattr(on_host, "inverse_root", lambda *a, **o: asked.append(threading.get_ident()) or right(*a, **o))
    made.begin("same", matrices.copy(), 4, 0.1)
    begun = made.finish("same", matrices, 4, 0.1)
    assert len(asked) == 1 and asked[0] != threading.get_ident() and not made.jobs
    assert np.array_equal(begun, made.finish("never begun", matrices, 4, 0.1), equal_nan=True)
    for number, (stack, order, epsilon) in enumerate([(2 * matrices, 4, 0.1), (matrices, 2, 0.1), (matrices, 4, 0.2)]):
        made.begin(str(number), stack, order, epsilon)
        assert np.array_equal(begun, made.finish(str(number), matrices, 4, 0.1), equal_nan=True)
    assert asked.count(threading.get_ident()) == 4


def test_draining_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, made = threading.Event(), HostRoots()
    monkeypatch.setattr(on_host, "inverse_root", lambda *a, **o: gate.wait(60) and np.zeros(0))
    made.begin("one", np.eye(2)[None], 2, 0.0)
    assert not made.jobs["one"].result.done()
    threading.Timer(0.1, gate.set).start()
    made.drain()
    assert made.jobs["one"].result.done()


def test_an_eigensolver_that_gives_up_on_one_matrix_spares_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    eigh = np.linalg.eigh

    def fails(matrix: np.ndarray) -> Any:
        if matrix[0, 0] != 1.0:
            raise np.linalg.LinAlgError("did not converge")
        return eigh(matrix)

    monkeypatch.setattr(np.linalg, "eigh", fails)
    found = on_host.inverse_root(np.stack([np.eye(3), np.diag([1.0, 2.0, 3.0]), np.eye(3)]), 2, epsilon=0.0)
    assert np.allclose(found[[0, 2]], np.eye(3)) and np.isnan(found[1]).all()
