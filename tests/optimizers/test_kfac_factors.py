"""K-FAC's factors: what is unusable is kept and counted, what is stale waits, what is symmetric is sent by halves."""

from typing import Any

import engines
import jax
import numpy as np
import pytest
import torch
from kfacs import BOTH, SHAPES, Torch, factor, statistics
from twins import draw

from suite.comm.reduce.torch import Reduce
from suite.comm.transport import Ledger
from suite.comm.transport.torch import Arriving, Transport
from suite.contract import Layer
from suite.optimizers.kfac import jax_factors, torch_factors

pytestmark = pytest.mark.quick

both = pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
STALE = {"stale": True, "factor_decay": 0.0}


# ------------------------------------------------------------------------------------------------- unusable ones
@both
def test_statistics_that_are_not_finite_are_not_taken_in(make: Any) -> None:
    for wrong in (np.nan, np.inf):
        made, other = make(damping=0.1), make(damping=0.1)
        bad = statistics(1)
        bad["fc/in"][2, 2] = wrong
        for step, (found, instead) in enumerate([(statistics(0), statistics(0)), (bad, None), (statistics(2),) * 2]):
            made.refresh(step, found)
            if instead:
                other.refresh(step, instead | ({"fc/out": statistics(2)["fc/out"]} if step else {}))
            assert np.isfinite(made.inverse("fc/in")).all() and np.isfinite(made.inverse("fc/out")).all()
        assert made.facts() == {"refreshed": 5, "kept": 1}
        # π changes with G, so A is compared where it stands by itself
        assert np.allclose(np.asarray(made.state["mass"]), [1 - 0.95**2, 1 - 0.95**3])
        assert np.allclose(
            np.asarray(made.state["owned"]["factor"]["4"]), np.asarray(other.state["owned"]["factor"]["4"])
        )


@both
@pytest.mark.parametrize("scale", [0.0, 1e-42], ids=["zero", "denormal"])
def test_a_factor_of_nothing_leaves_the_gradient_divided_by_the_damping(make: Any, scale: float) -> None:
    """As in layers behind a branch that begins at zero: G = 0, whatever A is, so F = 0 and (F + λ I)⁻¹ = I / λ."""
    made = make("float32", damping=0.1, lr=1.0)
    before, grads = made.params, draw(SHAPES, 1)
    made.refresh(0, {"fc/in": statistics()["fc/in"], "fc/out": scale * np.eye(2)})
    made.update(grads)
    for name, value in made.params.items():
        assert np.allclose(before[name] - value, grads[name] / 0.1, atol=1e-3)
    made.refresh(1, {name: scale * value for name, value in statistics().items()})
    assert np.isfinite(made.inverse("fc/in")).all() and made.facts()["kept"] == 0


@both
def test_a_factor_that_is_not_definite_is_tried_with_ten_times_the_damping(make: Any) -> None:
    """Eigenvalues 3 and -1: a ridge of 0.3 is too little, 3 is enough; a ridge of 0.03 is too little even tenfold."""
    indefinite = np.array([[1.0, 2.0], [2.0, 1.0]])
    made = make(damping=0.09, damping_split="equal")
    made.refresh(0, statistics() | {"fc/out": indefinite})
    assert (
        np.allclose(made.inverse("fc/out"), np.linalg.inv(indefinite + 3.0 * np.eye(2))) and made.facts()["kept"] == 0
    )
    made = make(damping=0.0009, damping_split="equal")
    made.refresh(0, statistics())
    before, other = made.inverse("fc/out").copy(), made.inverse("fc/in").copy()
    for step in range(1, 200):  # the average moves towards it
        made.refresh(step, statistics(1) | {"fc/out": indefinite})
    assert made.facts()["kept"] > 0 and np.isfinite(made.inverse("fc/out")).all()
    last = made.inverse("fc/out").copy()
    made.refresh(200, statistics(1) | {"fc/out": indefinite})
    assert np.array_equal(made.inverse("fc/out"), last) and not np.array_equal(last, before)
    assert not np.array_equal(made.inverse("fc/in"), other)


@both
def test_rank_deficient_factors_are_inverted(make: Any) -> None:
    """A batch has fewer samples than a factor has rows: damping is what makes it regular."""
    row = draw({"x": (4,)}, 0)["x"]
    made = make(damping=0.04, damping_split="equal")
    made.refresh(0, statistics() | {"fc/in": np.outer(row, row)})
    assert np.allclose(made.inverse("fc/in"), np.linalg.inv(np.outer(row, row) + 0.2 * np.eye(4)))
    assert made.facts()["kept"] == 0


# --------------------------------------------------------------------------------------------------- a warm start
@both
def test_prepared_statistics_count_as_if_they_had_always_been_there(make: Any) -> None:
    made = make(damping=0.04, damping_split="equal", factor_decay=0.9)
    made.prepare(statistics(0))
    made.refresh(0, statistics(1))
    for side in ("fc/in", "fc/out"):
        mixed = 0.9 * statistics(0)[side] + 0.1 * statistics(1)[side]
        assert np.allclose(made.inverse(side), np.linalg.inv(mixed + 0.2 * np.eye(len(mixed))), atol=1e-12)
    stale = make(**STALE)
    stale.prepare(statistics(0))
    stale.refresh(0, statistics(1))
    assert stale.facts()["refreshed"] == 4, "prepared factors are still due in the first step"


@both
def test_factors_and_inverses_are_due_when_the_settings_page_says(make: Any) -> None:
    """`factor_interval` and `inverse_interval`: steps between updates; `inverse_warmup`: the last step, from 0, of the
    first ones, which are all inverted."""
    made = make(factor_interval=3, inverse_interval=4, inverse_warmup=5)
    assert [step for step in range(14) if made.plan.phase(step)] == [0, 3, 6, 9, 12]
    assert [step for step in range(14) if made.plan.programs(step)] == [0, 1, 2, 3, 4, 5, 8, 12]


# ----------------------------------------------------------------------------------------------------- stale ones
def refreshed(made: Any, steps: int, found: Any) -> list[int]:
    """Return the steps in which each factor was refreshed, from found(step)."""
    seen, grads = [], draw(SHAPES, 1)
    for step in range(steps):
        before = made.facts()["refreshed"]
        made.refresh(step, found(step))
        seen += [step] * (made.facts()["refreshed"] - before)
        assert bool(made.plan.phase(step)) == (made.facts()["refreshed"] > before)
        made.update(grads)
    return seen


@both
def test_intervals_of_a_factor_that_stays_grow_like_fibonacci(make: Any) -> None:
    """SP-NGD's algorithm 2: 1, 1, then Δ + Δ₋₁; nothing is taken or inverted in between."""
    assert refreshed(make(**STALE), 34, lambda step: statistics()) == sorted([0, 1, 2, 4, 7, 12, 20, 33] * 2)


@both
def test_intervals_of_a_factor_that_changes_are_halved(make: Any) -> None:
    """Until step 12 nothing changes (Δ = 5), then A doubles: 2 steps, then 2 again, then 2 + 2; G goes on by itself."""

    def found(step: int) -> dict[str, np.ndarray]:
        return statistics() | ({"fc/in": 2.0 * statistics()["fc/in"]} if step >= 12 else {})

    seen = refreshed(make(**STALE), 27, found)
    assert seen == sorted([0, 1, 2, 4, 7, 12, 14, 16, 20, 26, *(0, 1, 2, 4, 7, 12, 20)])


@both
@pytest.mark.parametrize("alpha, expected", [(0.1, [0, 1, 2, 3, 4, 5]), (0.3, [0, 1, 2, 4])])
def test_a_change_counts_from_alpha_on(make: Any, alpha: float, expected: list[int]) -> None:
    """A factor that alternates by 15 % is like the one before the last, and like the last where α allows it."""
    found = lambda step: {name: value * (1.15 if step % 2 else 1.0) for name, value in statistics().items()}  # noqa: E731
    assert refreshed(make(**STALE, stale_alpha=alpha), 6, found) == sorted(expected * 2)


def test_a_factor_that_is_not_due_is_not_taken() -> None:
    made = Torch(**STALE)
    x, dy = (torch.from_numpy(draw({"a": (6, n)}, n)["a"]) for n in (3, 2))
    taps = {("fc", 0): (x, dy)}
    weight = torch.ones(6, dtype=torch.float64)
    assert set(made.optimizer.observe(taps, weight)) == {"fc/in", "fc/out"}
    made.optimizer.wanted = ("fc/out",)
    assert set(made.optimizer.observe(taps, weight)) == {"fc/out"}
    made.optimizer.wanted = ()
    assert not made.optimizer.observe(taps, weight)


# --------------------------------------------------------------------------------------------------- what is sent
class Mirrored(Transport):
    """A transport of the first of two ranks; the other one holds and sends the same."""

    def __init__(self) -> None:
        self.ledger, self.rank, self.world = Ledger(), 0, 2

    def all_reduce(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self._count("all_reduce", name, value)
        return 2.0 * value

    def all_to_all(self, name: str, value: torch.Tensor) -> Arriving:
        self._count("all_to_all", name, value)
        return Arriving(torch.stack([value[0], value[0]]))

    def all_gather(self, name: str, value: torch.Tensor) -> Arriving:
        self._count("all_gather", name, value)
        return Arriving(torch.cat([value, value]))


def sent(steps: int, symmetric: bool = True, **hyper: Any) -> dict[str, int]:
    """Bytes of arrays that one of two ranks hands over, two equal layers deep, by name."""
    layers = {name: Layer("linear", (f"{name}.weight", f"{name}.bias")) for name in ("one", "two")}
    shapes = {f"{name}.{part}": SHAPES[f"fc.{part}"] for name in layers for part in ("weight", "bias")}
    transport = Mirrored()
    channels = engines.channels("torch", factors=engines.comm().factors.model_copy(update={"symmetric": symmetric}))
    made = Torch(layers=layers, shapes=shapes, world=2, **hyper)
    found = {f"{name}/{side}": factor(n) for name in layers for side, n in (("in", 4), ("out", 2))}
    for step in range(steps):
        made.refresh(step, found, Reduce(transport, channels))
        made.update(draw(shapes, 1))
    return transport.ledger.payload


def test_triangles_are_half_the_bytes() -> None:
    """Two factors of 4 rows and two of 2, one of each owned: n (n + 1) / 2 numbers for n²."""
    whole, packed = sent(3, symmetric=False), sent(3)
    assert whole["factor"] == 3 * 8 * 2 * (16 + 4) and packed["factor"] == 3 * 8 * 2 * (10 + 3)
    assert whole["inverse"] == 3 * 8 * (16 + 4) and packed["inverse"] == 3 * 8 * (10 + 3)
    assert whole["exact"] == packed["exact"]


def test_what_is_not_due_is_not_sent() -> None:
    """Of 8 steps with statistics that stay, 0, 1, 2, 4 and 7 send."""
    every, stale = sent(8), sent(8, **STALE)
    assert all(8 * stale[name] == 5 * every[name] for name in ("factor", "inverse", "exact"))


def test_a_factor_without_inverse_gives_nan_and_no_error_and_leaves_the_others_alone():
    """As K-FAC's factors are when a run diverges: seed 3 of MNIST's autoencoder at the published settings."""
    stack = torch.stack([torch.zeros(9, 9), torch.eye(9)])
    inverses = torch_factors.damped_inverse(stack, torch.zeros(2))
    assert inverses[0].isnan().all()
    assert inverses[1].equal(torch.eye(9))
    assert not np.isfinite(np.asarray(jax_factors.damped_inverse(np.zeros((9, 9), np.float32), np.float32(0)))).any()


def test_factors_that_a_gpu_inverts_together_do_not_affect_each_other():
    """One is usual, one needs ten times the ridge, and one has no inverse."""
    factors = np.stack([np.diag([1.0, 2.0]), np.diag([1.0, -0.5]), np.diag([1.0, -9.0])]).astype(np.float32)
    ridges = np.full(3, 0.1, np.float32)
    together = np.asarray(jax.vmap(jax_factors.damped_inverse)(factors, ridges))
    assert np.allclose(together[0], np.diag([1 / 1.1, 1 / 2.1])) and np.allclose(together[1], np.diag([0.5, 2.0]))
    assert not np.isfinite(together[2]).any()
    for one, alone, ridge in zip(together, factors, ridges, strict=True):
        assert np.array_equal(one, np.asarray(jax_factors.damped_inverse(alone, ridge)), equal_nan=True)
