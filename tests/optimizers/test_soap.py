"""SOAP: held to its specification, to Adam where its bases are the identity, and to what a rotation must not change."""

import functools
from typing import Any

import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import twins
from alone import gap
from twins import Tree, draw, noisy

from suite.contract import UserError
from suite.optimizers.adamw import Settings as AdamWSettings
from suite.optimizers.adamw import reference as adamw
from suite.optimizers.soap import Settings, reference
from suite.optimizers.soap.jax import refresh_basis as refreshed_in_jax
from suite.optimizers.soap.plan import SOAPPlan
from suite.optimizers.soap.torch import refresh_basis as refreshed_in_torch

STEPS = 12
SHAPES = {"matrix": (5, 4), "twin": (5, 4), "filter": (4, 2, 2, 2), "long": (3, 9), "narrow": (6, 1), "bias": (5,)}
HYPER = {"lr": 0.02, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "weight_decay": 0.05, "max_size": 8}
SCHEDULE = {"precondition_frequency": 2, "start_preconditioning": 4}  # by then every statistic has full rank
both = pytest.mark.parametrize("backend", ["torch", "jax"])


Torch, Jax = (functools.partial(half, "soap") for half in (twins.Torch, twins.Jax))
BACKENDS = {"torch": Torch, "jax": Jax}


def basis(made: Any, name: str) -> np.ndarray:
    return np.asarray(made.state["basis"][name]).copy()


def refresh(made: Any, name: str, *others: Any, start: bool) -> None:
    """One refresh, as if it were the first or a later one."""
    made.count(made.plan.start + (not start))
    made.refresh(name, *others)


def train(made: Any, gradient: Any = noisy, steps: range = range(STEPS), edits: Any = None) -> Tree:
    for step in steps:
        made.edit(**(edits or {}).get(step, {}))
        grads = gradient(made.params, step)
        for name in made.plan.programs(step):
            made.refresh(name)
        made.update(grads)
    return made.params


def specified(params: Tree, edits: Any = None, **hyper: Any) -> Tree:
    state = reference.init(params)
    for step in range(STEPS):
        hyper |= (edits or {}).get(step, {})
        params, state = reference.update(params, noisy(params, step), state, Settings.given(hyper), step=step)
    return params


def adamw_specified(params: Tree, **hyper: Any) -> Tree:
    state, settings = adamw.init(params), AdamWSettings.given(hyper)
    for step in range(STEPS):
        params, state = adamw.update(params, noisy(params, step), state, settings, step=step)
    return params


@pytest.mark.sample(4)
@pytest.mark.quick
# --------------------------------------------------------------------------------------------- the specification
@both
@pytest.mark.parametrize(
    "change", [{}, {"max_size": 4}, {"one_sided": True}, {"precondition_frequency": 1}, {"start_preconditioning": 7}]
)
def test_backends_equal_the_reference(backend: str, change: dict[str, Any]) -> None:
    hyper = HYPER | SCHEDULE | change
    expected = specified(draw(SHAPES, 0), **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper)), expected) <= 1e-10


@both
@pytest.mark.parametrize(
    "change", [{"lr": 0.1}, {"beta1": 0.5}, {"beta2": 0.5}, {"epsilon": 0.3}, {"weight_decay": 0.9}]
)
def test_an_edit_takes_effect_at_once(backend: str, change: dict[str, float]) -> None:
    hyper = HYPER | SCHEDULE
    expected = specified(draw(SHAPES, 0), edits={5: change}, **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper), edits={5: change}), expected) <= 1e-10
    assert gap(specified(draw(SHAPES, 0), **hyper), expected) > 1e-4


@both
def test_an_edited_frequency_takes_effect_at_once(backend: str) -> None:
    """An edit is kept; the official code copies the frequency into each parameter's state at first, and loses edits."""
    hyper = HYPER | SCHEDULE
    made = BACKENDS[backend](draw(SHAPES, 0), **hyper)
    train(made, steps=range(7))
    made.plan.precondition_frequency = 3
    found = train(made, steps=range(7, STEPS))
    edits = {7: {"precondition_frequency": 3}}
    assert gap(found, specified(draw(SHAPES, 0), edits=edits, **hyper)) <= 1e-10
    assert gap(found, specified(draw(SHAPES, 0), **hyper)) > 1e-4


# ---------------------------------------------------------------------------------------------- Adam and rotations
@both
@pytest.mark.parametrize("change", [{"start_preconditioning": STEPS}, {"max_size": 2}])
def test_with_identity_bases_it_is_adamw(backend: str, change: dict[str, Any]) -> None:
    common = {name: value for name, value in HYPER.items() if name in AdamWSettings.model_fields}
    expected = adamw_specified(draw(SHAPES, 0), **common)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **HYPER | SCHEDULE | change)), expected) <= 1e-12
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **HYPER | SCHEDULE)), expected) > 1e-3


@both
def test_rotated_gradients_give_a_rotated_step(backend: str) -> None:
    """SOAP(P G Qᵀ) = P SOAP(G) Qᵀ from the first basis on; Adam, and a basis on one side only, are not so."""
    shape = {"w": (7, 5)}
    p, q = (np.linalg.qr(draw({"q": (side, side)}, 1)["q"])[0] for side in shape["w"])
    warm = SCHEDULE["start_preconditioning"]

    def steps(change: dict[str, Any], turned: bool) -> np.ndarray:
        left, right = (p, q) if turned else (np.eye(7), np.eye(5))
        made = BACKENDS[backend]({"w": np.zeros((7, 5))}, **HYPER | SCHEDULE | {"weight_decay": 0.0} | change)
        made.edit(lr=0.0)  # only averages until there is a basis
        gradient = lambda params, step: {"w": left @ draw(shape, step)["w"] @ right.T}  # noqa: E731
        train(made, gradient, range(warm))
        forget(made)
        made.edit(lr=0.1)
        return left.T @ train(made, gradient, range(warm, STEPS))["w"] @ right

    assert np.abs(steps({}, False) - steps({}, True)).max() < 1e-9
    assert np.abs(steps({"max_size": 6}, False) - steps({"max_size": 6}, True)).max() > 1e-2
    assert np.abs(steps({"max_size": 2}, False) - steps({"max_size": 2}, True)).max() > 1e-2


@both
@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_scale(backend: str, factor: float) -> None:
    """Gradients c times as large: the same bases, and Adam's steps in them; ε apart, which is of one size."""
    ends = []
    for scale in 1.0, factor:
        made = BACKENDS[backend](draw(SHAPES, 0), **HYPER | SCHEDULE | {"epsilon": 1e-30})
        ends.append(train(made, lambda _, step, c=scale: {n: c * g for n, g in draw(SHAPES, step).items()}))
    assert gap(*ends) < 1e-9
    assert gap(ends[0], draw(SHAPES, 0)) > 0.05


def forget(made: Any) -> None:
    """Zero the second moment from before the first basis: it is in other coordinates, which no rotation mends."""
    if isinstance(made, twins.Torch):
        for value in made.state["second"].values():
            value.zero_()
        for parameter in made.named.values():
            made.optimizer.state.get(parameter, {}).get("second", torch.zeros(())).zero_()
    else:
        made.state = made.state | {"second": jax.tree.map(jnp.zeros_like, made.state["second"])}


@both
def test_a_whitened_step_is_orthogonal(backend: str) -> None:
    """One gradient repeated, without averages: G' is its singular values on the diagonal, so the step is U Vᵀ."""
    g = draw({"w": (6, 6)}, 1)["w"]
    made = BACKENDS[backend](
        {"w": np.zeros((6, 6))}, lr=1.0, beta1=0.0, beta2=0.5, epsilon=1e-9, weight_decay=0.0, precondition_frequency=1
    )
    train(made, lambda params, step: {"w": g}, range(40))
    before = made.params["w"]
    u, _, v = np.linalg.svd(g)
    assert np.abs(before - train(made, lambda params, step: {"w": g}, range(40, 41))["w"] - u @ v).max() < 1e-4


# ------------------------------------------------------------------------------------------------------- refreshes
def refreshed(backend: str, factor: np.ndarray, old: np.ndarray, *, start: bool = False) -> np.ndarray:
    if backend == "torch":
        return refreshed_in_torch(torch.tensor(factor), torch.tensor(old), start=start).numpy()
    with jax.enable_x64(factor.dtype == np.float64):
        return np.asarray(refreshed_in_jax(jnp.asarray(factor), jnp.asarray(old), start=start))


def spectrum(size: int, count: int = 2) -> tuple[np.ndarray, np.ndarray]:
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(count, size, size)))
    return q, 2.0 ** -np.arange(size)


@pytest.mark.sample(2)
@both
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_refreshes_go_to_the_eigenvectors(backend: str, scale: float) -> None:
    """From the identity, and the decomposition at once; columns may come in any order, with any sign."""
    q, values = spectrum(8)
    factor = (scale * (q * values) @ q.mT).astype(np.float32)
    found = np.tile(np.eye(8, dtype=np.float32), (2, 1, 1))
    for _ in range(30):
        found = refreshed(backend, factor, found)
    for basis in (found, refreshed(backend, factor, found, start=True)):
        assert np.abs(basis.mT @ basis - np.eye(8)).max() < 1e-5
        diagonal = np.abs(basis.mT @ q)
        assert np.abs(np.sort(diagonal, -1)[..., -1] - 1.0).max() < 1e-3


@pytest.mark.quick
@both
def test_columns_keep_their_places(backend: str) -> None:
    """Whatever the order of the eigenvalues, so that the second moment stays beside its own direction."""
    factor = np.diag([1.0, 5.0, 3.0, 4.0, 2.0])[None]
    turn, _ = np.linalg.qr(np.eye(5) + 0.02 * np.random.default_rng(0).normal(size=(5, 5)))
    found = refreshed(backend, factor, turn[None] * np.sign(np.diag(turn)))
    assert (np.abs(found[0]).argmax(0) == np.arange(5)).all()
    assert np.abs(np.abs(found[0]) - np.eye(5)).max() < np.abs(np.abs(turn) - np.eye(5)).max()


@both
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_null_space_keeps_its_basis(backend: str, kind: str) -> None:
    """Rank 3 of 8, with unequal eigenvalues: five columns stay, where a bare power iteration would make them noise."""
    factor = np.diag([0, 7.0, 0, 5.0, 0, 0, 3.0, 0])[None].astype(kind)
    assert np.abs(np.abs(refreshed(backend, factor, np.eye(8, dtype=kind)[None])) - np.eye(8)).max() < 1e-6
    q, _ = spectrum(8, 1)
    found = refreshed(backend, factor, q.astype(kind))
    assert np.isfinite(found).all() and np.abs(found.mT @ found - np.eye(8)).max() < 1e-5


@pytest.mark.quick
@both
def test_one_refresh_brings_moments_along(backend: str) -> None:
    """M in the parameters' own coordinates is what it was."""
    made = BACKENDS[backend](draw(SHAPES, 0), **HYPER | SCHEDULE)
    train(made, steps=range(7))

    def first() -> np.ndarray:
        return basis(made, "5x4/left") @ np.asarray(made.state["first"]["5x4"]) @ basis(made, "5x4/right").mT

    before, old = first(), basis(made, "5x4/left")
    for name in ("5", "4"):
        made.refresh(name)
    assert np.abs(before - first()).max() < 1e-12 and np.abs(old - basis(made, "5x4/left")).max() > 1e-3


# -------------------------------------------------------------------------------------------------------- failures
BROKEN = {
    "zero": np.zeros((4, 4)),
    "denormal": 1e-41 * np.eye(4),
    "nan": np.full((4, 4), np.nan),
    "one nan": np.where(np.arange(16).reshape(4, 4) == 2, np.nan, np.eye(4)),
    "infinite": np.diag([1.0, np.inf, 1.0, 1.0]),
}


@both
@pytest.mark.parametrize("start", [False, True])
def test_a_failed_basis_keeps_the_previous_one_and_is_counted(backend: str, start: bool) -> None:
    """Their neighbours in the stack are refreshed all the same."""
    names = [f"w{number}" for number in range(2 * len(BROKEN))]
    made = BACKENDS[backend]({name: np.zeros((4, 9)) for name in names}, "float32", max_size=8)
    good = np.stack([a @ a.T for a in np.random.default_rng(0).normal(size=(len(names), 4, 4)).astype(np.float32)])
    made.place("4x9/left", good)
    refresh(made, "4", start=True)
    before = basis(made, "4x9/left")
    assert np.abs(before - np.eye(4)).max() > 0.1 and int(made.state["kept"]) == 0
    mixed = np.stack([a @ a.T for a in np.random.default_rng(1).normal(size=(len(names), 4, 4)).astype(np.float32)])
    mixed[1::2] = list(BROKEN.values())
    made.place("4x9/left", mixed)
    refresh(made, "4", start=start)
    after = basis(made, "4x9/left")
    assert [kind for kind, now, old in zip(BROKEN, after[1::2], before[1::2], strict=True) if (now != old).any()] == []
    assert (np.abs(after - before)[::2].max((1, 2)) > 1e-3).all() and np.isfinite(after).all()
    assert int(made.state["kept"]) == len(BROKEN)


def test_an_eigensolver_that_gives_up_keeps_every_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch({"w": np.zeros((4, 4))})
    made.update(draw({"w": (4, 4)}, 0))

    def fails(stack: torch.Tensor) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    refresh(made, "4", start=True)
    assert np.array_equal(basis(made, "4x4/left")[0], np.eye(4)) and int(made.state["kept"]) == 2


@both
def test_zero_gradients_move_nothing(backend: str) -> None:
    made = BACKENDS[backend](draw(SHAPES, 0), weight_decay=0.0, precondition_frequency=1)
    after = train(made, lambda params, step: {name: np.zeros_like(value) for name, value in params.items()})
    assert gap(after, draw(SHAPES, 0)) == 0.0
    assert int(made.state["kept"]) == (STEPS - 1) * sum(made.plan.count(name) for name in made.plan.sizes)


# -------------------------------------------------------------------------------------------------------- the plan
def plan(shapes: dict[str, tuple[int, ...]], world: int = 1, **changes: Any) -> SOAPPlan:
    return SOAPPlan(shapes, Settings.given({"precondition_frequency": 1} | changes), world=world)


def test_sides() -> None:
    shapes = {"square": (8, 8), "twin": (8, 8), "wide": (4, 3, 3, 3), "table": (900, 6), "large": (600, 600), "b": (8,)}
    made = plan(shapes)
    sizes = {"8x8/left": 8, "8x8/right": 8, "4x27/left": 4, "4x27/right": 27, "900x6/right": 6}
    assert made.sizes == sizes and made.rest == ["large", "b"]
    assert made.equal == {
        "8": ["8x8/left", "8x8/right"],
        "4": ["4x27/left"],
        "27": ["4x27/right"],
        "6": ["900x6/right"],
    }
    assert made.count("8x8/left") == 2 and plan(shapes, world=3).owners("8") == (0, 0, 1, 1)
    one = plan(shapes, one_sided=True)
    assert one.sizes == {"8x8/left": 8, "8x8/right": 8, "4x27/left": 4, "900x6/right": 6}


def test_schedule() -> None:
    made = plan({"w": (3, 9)}, precondition_frequency=4, start_preconditioning=2, max_size=3)
    found = {step: made.programs(step) for step in range(12) if made.programs(step)}
    assert found == {2: ("3",), 6: ("3",), 10: ("3",)}
    for name in ("precondition_frequency", "start_preconditioning"):
        with pytest.raises(UserError, match=f"{name}=0: must be at least 1"):
            plan({}, **{name: 0})


# ------------------------------------------------------------------------------------------------- state and ranks
def test_state_is_row_major() -> None:
    made = Torch(draw(SHAPES, 0), **HYPER | SCHEDULE)
    train(made, steps=range(7))
    tensors = [value for held in made.state.values() if isinstance(held, dict) for value in held.values()]
    assert len(tensors) > 10 and all(value.is_contiguous() for value in tensors)


class Rank:
    """One of two ranks that never meet: what it would send is kept."""

    def __init__(self, rank: int):
        self.rank, self.sent = rank, {}

    def mine(self, stack: torch.Tensor, owners: tuple[int, ...]) -> torch.Tensor:
        assert owners == (0, 0, 1)
        return torch.cat([stack, torch.zeros_like(stack[:1])]).chunk(2)[self.rank]

    def gather(self, name: str, slices: torch.Tensor, owners: tuple[int, ...]) -> torch.Tensor:
        self.sent[name] = slices
        return torch.cat([slices, slices])[: len(owners)]


@pytest.mark.parametrize("start", [False, True])
def test_each_rank_takes_the_bases_of_its_slice(start: bool) -> None:
    """Three matrices on two ranks: two each, the fourth is padding and counts neither as basis nor as failure."""
    shapes = {name: (5, 4) for name in "abc"}
    alone, pair = Torch(draw(shapes, 0)), [Torch(draw(shapes, 0), world=2) for _ in range(2)]
    ranks = [Rank(0), Rank(1)]
    for made in (alone, *pair):
        made.update(draw(shapes, 1))
    refresh(alone, "5", start=start)
    for made, rank in zip(pair, ranks, strict=True):
        refresh(made, "5", rank, start=start)
    slices = [rank.sent["basis/5"] for rank in ranks]
    assert [len(part) for part in slices] == [2, 2]
    assert np.array_equal(torch.cat(slices)[:3].numpy(), basis(alone, "5x4/left"))
    assert not slices[1][1].isfinite().any() and int(pair[0].state["kept"]) == 0


def test_a_state_before_the_first_refresh_is_loaded_after_it() -> None:
    """A restored state repeats the first refresh, which decomposes the statistics; later ones only rotate the bases."""
    engine = engines.engine(engines.config("soap", "torch"), engines.tiny())
    engines.advance(engine, range(4))
    arrays, skeleton = engine.snapshot()
    arrays = {name: value.copy() for name, value in arrays.items()}
    engines.advance(engine, range(4, 9))
    once = {name: value.copy() for name, value in engines.weights(engine).items()}
    engine.restore(arrays, skeleton)
    engines.advance(engine, range(4, 9))
    assert engines.same(once, engines.weights(engine))
