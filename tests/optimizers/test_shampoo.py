"""Shampoo: held to its specification, to closed forms and to theory; its roots to exact matrices."""

import functools
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import twins
from twins import Tree, draw, noisy

from suite.contract import Layer, UserError
from suite.optimizers._linalg.jax import inverse_root as root_in_jax
from suite.optimizers._linalg.jax import largest as largest_in_jax
from suite.optimizers._linalg.torch import inverse_root as root_in_torch
from suite.optimizers._linalg.torch import largest as largest_in_torch
from suite.optimizers.kfac import reference as kfac
from suite.optimizers.shampoo import jax as in_jax
from suite.optimizers.shampoo import reference
from suite.optimizers.shampoo import torch as in_torch
from suite.optimizers.shampoo.plan import GRAFTS, ORDER, ShampooPlan, merge, split

STEPS = 10
SHAPES = {"matrix": (5, 4), "filter": (4, 3, 3, 3), "wide": (3, 7), "narrow": (6, 1), "bias": (5,), "scale": ()}
HYPER = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.01, "beta2": 0.9, "epsilon": 1e-4, "block_size": 3}
SCHEDULE = {"inverse_interval": 2, "start_preconditioning": 3}
both = pytest.mark.parametrize("backend", ["torch", "jax"])


Torch, Jax = (functools.partial(half, "shampoo") for half in (twins.Torch, twins.Jax))
BACKENDS = {"torch": Torch, "jax": Jax}


def held(made: Any, stack: str) -> np.ndarray:
    return np.asarray(made.state["root"][stack]).copy()


def train(
    made: Any, gradient: Any = noisy, steps: int = STEPS, edits: dict[int, dict[str, float]] | None = None
) -> Tree:
    for step in range(steps):
        made.edit(**(edits or {}).get(step, {}))
        grads = gradient(made.params, step)
        for name in made.plan.programs(step):
            made.refresh(name)
        made.update(grads)
    return made.params


def specified(
    params: Tree, gradient: Any = noisy, edits: dict[int, dict[str, float]] | None = None, **hyper: Any
) -> Tree:
    state = reference.init(params)
    for step in range(STEPS):
        hyper |= (edits or {}).get(step, {})
        params, state = reference.update(params, gradient(params, step), state, step=step, **hyper)
    return params


def gap(one: Tree, other: Tree) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


# --------------------------------------------------------------------------------------------- the specification
@both
@pytest.mark.parametrize(
    "graft, change",
    [
        ("sgd", {}),
        ("adagrad", {"beta2": 1.0, "nesterov": True}),
        ("rmsprop", {"block_size": 128, "inverse_interval": 1}),
        ("adam", {"start_preconditioning": 0}),
    ],
)
def test_backends_equal_the_reference(backend: str, graft: str, change: dict[str, Any]) -> None:
    hyper = HYPER | SCHEDULE | {"graft": graft} | change
    expected = specified(draw(SHAPES, 0), **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper)), expected) <= 1e-10


@both
@pytest.mark.parametrize(
    "change", [{"lr": 0.3}, {"momentum": 0.2}, {"weight_decay": 0.5}, {"beta2": 0.5}, {"epsilon": 0.3}]
)
def test_an_edit_takes_effect_at_once(backend: str, change: dict[str, float]) -> None:
    hyper = HYPER | SCHEDULE | {"graft": "rmsprop"}
    expected = specified(draw(SHAPES, 0), edits={4: change}, **hyper)
    assert gap(train(BACKENDS[backend](draw(SHAPES, 0), **hyper), edits={4: change}), expected) <= 1e-10
    assert gap(specified(draw(SHAPES, 0), **hyper), expected) > 1e-4


@both
@pytest.mark.parametrize("graft", GRAFTS)
def test_before_the_first_refresh_it_is_the_grafted_method(backend: str, graft: str) -> None:
    oracles = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.0),
        "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, eps=1e-8),
        "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.1, alpha=0.9, eps=1e-8),
        "adam": lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.0, 0.9), eps=1e-8),
    }
    params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in draw(SHAPES, 0).items()}
    oracle = oracles[graft](list(params.values()))
    for step in range(STEPS):
        for name, value in noisy({n: p.detach().numpy() for n, p in params.items()}, step).items():
            params[name].grad = torch.as_tensor(value)
        oracle.step()
    expected = {name: parameter.detach().numpy() for name, parameter in params.items()}
    made = BACKENDS[backend](draw(SHAPES, 0), lr=0.1, momentum=0.0, beta2=0.9, graft=graft, start_preconditioning=STEPS)
    assert gap(train(made), expected) <= 1e-12


# ---------------------------------------------------------------------------------------- closed forms and theory
@both
def test_one_gradient_repeated_becomes_orthogonal(backend: str) -> None:
    """L = t G Gᵀ and R = t Gᵀ G give L^(-1/4) G R^(-1/4) = U Vᵀ / √t; its norm comes from the graft."""
    g = draw({"w": (6, 6)}, 1)["w"]
    u, _, v = np.linalg.svd(g)
    made = BACKENDS[backend](
        {"w": np.zeros((6, 6))}, lr=1.0, momentum=0.0, beta2=1.0, epsilon=1e-14, start_preconditioning=1
    )
    train(made, lambda params, step: {"w": g}, steps=4)
    before = made.params["w"]
    train(made, lambda params, step: {"w": g}, steps=1)
    assert np.abs(before - made.params["w"] - np.linalg.norm(g) / np.sqrt(6) * u @ v).max() < 1e-9


@both
@pytest.mark.parametrize("graft", ["sgd"])
def test_rotated_gradients_give_a_rotated_step(backend: str, graft: str) -> None:
    """Shampoo(Q G) = Q Shampoo(G) for orthogonal Q, with one block and the rotation-free graft."""
    start = draw({"w": (7, 4)}, 0)
    q, _ = np.linalg.qr(draw({"q": (7, 7)}, 1)["q"])
    hyper = {**HYPER, **SCHEDULE, "block_size": 7, "graft": graft}

    def turned(params: Tree, step: int) -> Tree:
        return {"w": q @ noisy({"w": q.T @ params["w"]}, step)["w"]}

    straight = train(BACKENDS[backend](start, **hyper))["w"]
    rotated = train(BACKENDS[backend]({"w": q @ start["w"]}, **hyper), turned)["w"]
    assert np.abs(rotated - q @ straight).max() < 1e-10
    blocked = train(BACKENDS[backend]({"w": q @ start["w"]}, **hyper | {"block_size": 3}), turned)["w"]
    assert np.abs(blocked - q @ straight).max() > 1e-3  # blocks are not invariant: the test can fail


@both
@pytest.mark.parametrize("graft, factor", [("sgd", 2.0**-20), ("sgd", 2.0**20), ("adagrad", 2.0**20)])
def test_scale(backend: str, graft: str, factor: float) -> None:
    """Gradients c times as large: steps c times as large under SGD's magnitude, unchanged under AdaGrad's."""
    ends = []
    for scale in 1.0, factor:
        lr = 0.1 / scale if graft == "sgd" else 0.1
        made = BACKENDS[backend](draw(SHAPES, 0), "float32", lr=lr, graft=graft, block_size=3, start_preconditioning=1)
        ends.append(train(made, lambda _, step, c=scale: {n: c * g for n, g in draw(SHAPES, step).items()}))
    assert gap(*ends) < 1e-4
    assert gap(ends[0], draw(SHAPES, 0)) > 0.5


@both
def test_a_block_as_long_as_the_side_is_no_block(backend: str) -> None:
    shapes = {"matrix": (7, 5), "filter": (4, 1, 3, 3)}
    one, other, small = (
        train(BACKENDS[backend](draw(shapes, 0), **HYPER | SCHEDULE | {"block_size": size})) for size in (9, 10**6, 4)
    )
    assert gap(one, other) == 0.0
    assert gap(one, small) > 1e-3


def test_statistics_at_batch_one_are_those_of_kfac() -> None:
    """With G = dy xᵀ: L = |x|² dy dyᵀ and R = |dy|² x xᵀ, which are K-FAC's factors times the other's trace."""
    x, dy = draw({"x": (1, 5), "dy": (1, 3)}, 2).values()
    layer = {"fc": Layer("linear", ("w",))}
    factors = kfac.statistics({"fc": (x, dy)}, np.ones(1), layer, {"w": np.zeros((3, 5))})
    made = Torch({"w": np.zeros((3, 5))}, beta2=1.0, lr=0.0)
    made.update({"w": dy.T @ x})
    left, right = (made.state["factor"][f"3x5/{side}"][0].numpy() for side in ("left", "right"))
    assert np.allclose(left, np.trace(factors["fc/in"]) * factors["fc/out"])
    assert np.allclose(right, np.trace(factors["fc/out"]) * factors["fc/in"])
    assert np.allclose(left, (x @ x.T) * np.outer(dy, dy)) and np.allclose(right, (dy @ dy.T) * np.outer(x, x))


# -------------------------------------------------------------------------------------------------------- the plan
def plan(shapes: dict[str, tuple[int, ...]], **changes: Any) -> ShampooPlan:
    settings = {"world": 1, "block_size": 128, "inverse_interval": 1, "start_preconditioning": 1}
    return ShampooPlan(shapes, **settings | {"graft": "sgd", "root": "auto"} | changes)


@pytest.mark.parametrize(
    "shape, merged",
    [
        ((1024, 1024), (1024, 1024)),
        ((16, 3, 3, 3), (16, 27)),
        ((64, 1, 3, 3), (64, 9)),
        ((1, 5, 1, 4), (5, 4)),
        ((64, 1, 1, 1), (64,)),
        ((7,), (7,)),
        ((1,), ()),
        ((), ()),
    ],
)
def test_merging(shape: tuple[int, ...], merged: tuple[int, ...]) -> None:
    assert merge(shape) == merged


def test_blocks() -> None:
    made = plan({"large": (1024, 1024), "filter": (16, 3, 3, 3), "bias": (16,), "point": (64, 1, 1, 1)}, block_size=512)
    assert made.sizes == {"512x512/left": 512, "512x512/right": 512, "16x27/left": 16, "16x27/right": 27}
    assert made.count("512x512/left") == 4 and made.count("16x27/right") == 1
    assert list(made.grids) == ["large", "filter"] and ORDER == 4
    for side in range(1, 300):
        count, length = split(side, 128)
        assert length <= 128 and count == -(-side // 128) and 0 <= count * length - side < count
    assert split(129, 128) == (2, 65)


def test_equal_blocks_share_a_stack() -> None:
    made = plan({"a": (6, 4), "b": (3, 4), "c": (2, 3, 2)}, block_size=3, world=4)
    assert made.stacked == {"3x2": ["a", "b"], "2x3": ["c"]}
    assert made.count("3x2/left") == 6 and made.filler("3x2/left") == 2
    assert made.count("2x3/left") == 2 and made.filler("2x3/left") == 2


def test_cut_and_join() -> None:
    value = np.arange(7.0 * 5).reshape(7, 5)
    grid = plan({"w": (7, 5)}, block_size=3).grids["w"]
    blocks = in_torch.cut(torch.from_numpy(value), grid)
    assert blocks.shape == (6, 3, 3)
    assert blocks[3].tolist() == [[18.0, 19.0, 0.0], [23.0, 24.0, 0.0], [28.0, 29.0, 0.0]]  # rows 3-5, columns 3-4
    assert np.array_equal(in_torch.join(blocks, grid).numpy(), value)
    again = in_jax.cut(jnp.asarray(value), grid)
    assert np.array_equal(np.asarray(again), blocks.numpy()) and np.array_equal(in_jax.join(again, grid), value)


@pytest.mark.parametrize("start, first", [(0, 1), (1, 1), (5, 5)])
def test_schedule(start: int, first: int) -> None:
    made = plan({"w": (3, 3)}, inverse_interval=4, start_preconditioning=start)
    assert [step for step in range(14) if made.programs(step)] == list(range(first, 14, 4))
    assert made.programs(first) == ("3x3/left", "3x3/right")


@pytest.mark.parametrize("wrong", [{"graft": "sdg"}, {"root": "svd"}])
def test_unknown_options_say_what_to_type(wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"type one of .*(sgd|newton)"):
        plan({"w": (3, 3)}, **wrong)


# ------------------------------------------------------------------------------------------------------- the roots
CONDITIONS = (1e2, 1e4, 1e6, 1e8)
# Relative Frobenius error of the fourth root in float32, statistics included, at n = 128. The conditions above 1e6 are
# limited by rounding the matrix itself; square roots lose twice the bits of fourth roots.
BOUNDS = {"eigh": (8.4e-8, 3.0e-6, 2.2e-4, 0.29), "newton": (1.1e-6, 2.1e-5, 1.4e-3, 0.21)}


def root(backend: str, stack: np.ndarray, order: int, method: str, epsilon: float = 0.0) -> np.ndarray:
    if backend == "torch":
        return root_in_torch(torch.tensor(stack), order, epsilon=epsilon, method=method).numpy()
    with jax.enable_x64(stack.dtype == np.float64):
        compiled = jax.jit(lambda value: root_in_jax(value, order, epsilon=epsilon, method=method))
        return np.asarray(compiled(jnp.asarray(stack)))


def conditioned(size: int, condition: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvectors and logarithmically spaced eigenvalues from 1 / condition to 1."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return q, np.logspace(-np.log10(condition), 0, size)


@both
@pytest.mark.parametrize("method", ["eigh", "newton"])
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("size", [32, 128])
def test_accuracy(backend: str, method: str, order: int, size: int) -> None:
    pairs = [conditioned(size, condition) for condition in CONDITIONS]
    exact = np.stack([(q * values ** (-1.0 / order)) @ q.T for q, values in pairs])
    stack = np.stack([(q * values) @ q.T for q, values in pairs])
    scales = np.array([1.0, 1e-20, 1e20, 1e-3])[:, None, None]  # each by itself: no matrix may disturb another
    found = root(backend, (stack * scales).astype(np.float32), order, method) * scales ** (1.0 / order)
    errors = np.linalg.norm(found - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
    bounds = np.array(BOUNDS[method]) * {2: 4.0, 4: 1.0}[order] * 1.5  # other matrices than those measured
    assert (errors <= bounds).all(), errors
    wide = root(backend, stack, order, method)
    errors = np.linalg.norm(wide - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
    assert (errors <= 1e-16 * np.array(CONDITIONS)).all() or (errors <= np.array([1e-13, 1e-12, 1e-10, 1e-8])).all(), (
        errors
    )


@both
@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_the_ridge_makes_a_singular_matrix_regular(backend: str, method: str) -> None:
    """Rank 8 of 64, exactly singular, in float32: the root of A + 1e-4 λmax I, a hundred times above its rounding."""
    q, _ = conditioned(64, 1.0)
    values = np.r_[np.zeros(56), np.linspace(1.0, 3.0, 8)]
    exact = (q * (values + 3e-4) ** -0.25) @ q.T
    found = root(backend, ((q * values) @ q.T)[None].astype(np.float32), 4, method, epsilon=1e-4)[0]
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


BROKEN = {
    "zero": np.zeros((4, 4)),
    "denormal": 1e-41 * np.eye(4),
    "nan": np.full((4, 4), np.nan),
    "one nan": np.where(np.arange(16).reshape(4, 4) == 2, np.nan, np.eye(4)),
    "infinite": np.diag([1.0, np.inf, 1.0, 1.0]),
    "singular": np.diag([1.0, 1.0, 0.0, 0.0]),
    "negative": -np.eye(4),
}


@both
@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_a_failed_root_keeps_the_previous_one_and_is_counted(backend: str, method: str) -> None:
    """Without a ridge; their neighbours in the stack are refreshed all the same."""
    count = 2 * len(BROKEN)
    made = BACKENDS[backend]({"w": np.zeros((4 * count, 4))}, "float32", block_size=4, epsilon=0.0, root=method)
    good = np.tile(16.0 * np.eye(4, dtype=np.float32), (count, 1, 1))
    made.place("4x4/left", good)
    made.refresh("4x4/left")
    before = held(made, "4x4/left")
    assert np.allclose(before, 0.5 * np.eye(4), atol=1e-6) and int(made.state["kept"]) == 0
    mixed = good / 16.0
    mixed[1::2] = list(BROKEN.values())
    made.place("4x4/left", mixed)
    made.refresh("4x4/left")
    after = held(made, "4x4/left")
    assert [kind for kind, now, old in zip(BROKEN, after[1::2], before[1::2], strict=True) if (now != old).any()] == []
    assert np.allclose(after[::2], np.eye(4), atol=1e-6)
    assert int(made.state["kept"]) == len(BROKEN)


def test_an_eigensolver_that_gives_up_keeps_every_root(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch({"w": np.zeros((4, 4))}, beta2=1.0)
    made.update({"w": np.eye(4)})

    def fails(stack: torch.Tensor) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    made.refresh("4x4/left")
    assert np.array_equal(held(made, "4x4/left")[0], np.eye(4)) and int(made.state["kept"]) == 1


def test_zero_gradients_move_nothing() -> None:
    for made in (Torch(draw(SHAPES, 0), start_preconditioning=1), Jax(draw(SHAPES, 0), start_preconditioning=1)):
        after = train(made, lambda params, step: {name: np.zeros_like(value) for name, value in params.items()})
        assert gap(after, draw(SHAPES, 0)) == 0.0
        assert int(made.state["kept"]) == (STEPS - 1) * sum(made.plan.count(stack) for stack in made.plan.sizes)


@pytest.mark.parametrize("method", ["eigh", "newton"])
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


# ------------------------------------------------------------------------------------------------ state and ranks
def test_state_is_row_major_and_loads_with_weights_only() -> None:
    hyper = HYPER | SCHEDULE | {"graft": "adam"}
    made, again = Torch(draw(SHAPES, 0), **hyper), Torch(draw(SHAPES, 0), **hyper)
    train(made, steps=6)
    state = made.optimizer.state_dict()
    shared = made.optimizer.state["shampoo"]
    tensors = [*shared["factor"].values(), *shared["root"].values()]
    tensors += [value for key in made.named.values() for value in made.optimizer.state[key].values()]
    assert len(tensors) > 20 and all(value.is_contiguous() for value in tensors)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    again.optimizer.load_state_dict(torch.load(file, weights_only=True))
    for name, value in made.params.items():
        again.named[name].data.copy_(torch.from_numpy(value))
    for optimizer in (made, again):
        for step in range(6, STEPS):
            for name in optimizer.plan.programs(step):
                optimizer.refresh(name)
            optimizer.update(draw(SHAPES, step))
    assert gap(made.params, again.params) == 0.0


class Rank:
    """One of two ranks that never meet: what it would send is kept."""

    world = 2

    def __init__(self, rank: int):
        self.rank, self.sent = rank, {}

    def mine(self, stack: torch.Tensor) -> torch.Tensor:
        return stack.chunk(2)[self.rank]

    def gather(self, name: str, slices: torch.Tensor) -> torch.Tensor:
        self.sent[name] = slices
        return torch.cat([slices, slices])


def test_each_rank_takes_the_roots_of_its_slice() -> None:
    """Three blocks on two ranks: two each, the fourth is padding and counts neither as root nor as failure."""
    shapes = {"w": (9, 3)}
    alone = Torch(draw(shapes, 0), **HYPER)
    pair = [Torch(draw(shapes, 0), world=2, **HYPER) for _ in range(2)]
    ranks = [Rank(0), Rank(1)]
    for made in (alone, *pair):
        made.update(draw(shapes, 1))
    for stack in alone.plan.sizes:
        alone.refresh(stack)
        for made, rank in zip(pair, ranks, strict=True):
            made.refresh(stack, rank)
        slices = [rank.sent[f"root/{stack}"] for rank in ranks]
        assert [len(slice) for slice in slices] == [2, 2]
        assert np.array_equal(torch.cat(slices)[:3].numpy(), held(alone, stack))
        assert not slices[1][1].isfinite().any()
    assert int(pair[0].state["kept"]) == 0 and held(pair[0], "3x3/left").shape == (3, 3, 3)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_two_jax_devices_take_the_roots_together(kind: str) -> None:
    """Of a size at which callbacks and batched eigenvalue calls hang; each root is taken once, as on one device."""
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    from suite.comm.codecs.float32 import jax as codec
    from suite.comm.reduce.jax import Reduce
    from suite.comm.transport.jax import AXIS, Transport

    if len(jax.devices()) < 2:
        pytest.skip("one jax device: jax was imported before the tests could ask for two")
    values = {"w": (384, 128)}
    made = Jax(draw(values, 0), kind, world=2)
    made.update(draw(values, 1))
    state = made.state
    with jax.enable_x64(kind == "float64"):

        def body(state: Any, stack: str) -> Any:
            transport = Transport(2)
            after = made.optimizer.program(
                stack, state, reduce=Reduce(transport, codec=codec, algorithm=codec, state={})
            )
            [sent] = transport.entries
            assert sent.payload == 2 * 128 * 128 * state["root"][stack].dtype.itemsize  # two roots of the padded four
            return after

        mesh = Mesh(np.array(jax.devices()[:2]), (AXIS,))
        for stack in made.plan.sizes:
            mapped = jax.shard_map(
                lambda s, k=stack: body(s, k), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
            )
            together = np.asarray(jax.jit(mapped)(state)["root"][stack])
            made.refresh(stack)
            assert held(made, stack).shape == (3, 128, 128)
            assert np.allclose(together, held(made, stack), rtol=1e-5 if kind == "float32" else 1e-12)
