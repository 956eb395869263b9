"""VOGN: the noise it adds, the squares it gathers, what it does to parameters no layer describes, and its limits."""

from typing import Any

import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from engines import BACKENDS, SETTINGS, advance, config, engine, gap, weights
from sampling import mostly_torch

from suite import stream
from suite.contract import Layer, UserError
from suite.counters.torch import Operators
from suite.optimizers.vogn import plan, reference
from suite.optimizers.vogn.jax import vogn
from suite.optimizers.vogn.torch import VOGN
from suite.optimizers.vogn.torch_flat import draw_normal, group_tensors

Tree = dict[str, np.ndarray]
both = pytest.mark.parametrize("backend", BACKENDS)
SAMPLES = 50
SHAPES = {"conv.weight": (3, 2, 3, 3), "conv.bias": (3,), "point.weight": (4, 2, 1, 1), "norm.weight": (3,)}
SHAPES |= {"norm.bias": (3,), "embed.weight": (5, 2), "fc.weight": (4, 3), "fc.bias": (4,), "shared.weight": (2, 3)}
SHAPES |= {"free.weight": (3, 2)}  # which no layer describes
LAYERS = {
    "conv": Layer("conv2d", ("conv.weight", "conv.bias"), kernel=3, stride=2, padding=1),
    "point": Layer("conv2d", ("point.weight",), stride=2),
    "norm": Layer("batchnorm", ("norm.weight", "norm.bias")),
    "embed": Layer("embedding", ("embed.weight",)),
    "fc": Layer("linear", ("fc.weight", "fc.bias")),
    "shared": Layer("linear", ("shared.weight",)),
}
WEIGHT = np.array([1.0, 0.5, 0.0, 2.0, 1.0, 1.0])


def draw(seed: int, shapes: dict[str, tuple[int, ...]]) -> Tree:
    return {n: np.asarray(np.random.default_rng([seed, *n.encode()]).normal(size=s)) for n, s in shapes.items()}


def taps() -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
    """Of six samples, in torch's layout; `fc` stands at two positions, `shared` is called twice."""
    places: dict[Any, Any] = {("conv", 0): ((2, 5, 5), (3, 3, 3)), ("point", 0): ((2, 5, 5), (4, 3, 3))}
    places |= {("norm", 0): ((3, 2, 2), (3, 2, 2)), ("fc", 0): ((2, 3), (2, 4))}
    places |= {("shared", 0): ((3,), (2,)), ("shared", 1): ((3,), (2,))}
    generator = np.random.default_rng(0)
    found = {at: tuple(generator.normal(size=(6, *shape)) for shape in pair) for at, pair in places.items()}
    ids = np.array([[0, 3, 3], [1, 1, 1], [2, 2, 0], [4, 0, 1], [3, 4, 3], [0, 1, 2]])
    found["embed", 0] = ids, generator.normal(size=(6, 3, 2))
    return {at: (x, dy * WEIGHT.reshape(-1, *[1] * (dy.ndim - 1))) for at, (x, dy) in found.items()}


def made(backend: str, **hyper: Any) -> Any:
    """Make the optimizer by itself, with float64 parameters in torch."""
    hyper |= {"layers": LAYERS, "samples": SAMPLES}
    if backend == "jax":
        return vogn(shapes=SHAPES, **hyper)
    named = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in draw(0, SHAPES).items()}
    return VOGN(named.items(), **hyper)


def observed(backend: str, found: dict[Any, Any]) -> Tree:
    """Sums of squared gradients by parameter, from taps in torch's layout."""
    if backend == "torch":
        inputs = {at: tuple(torch.tensor(value) for value in pair) for at, pair in found.items()}
        return {n: v.numpy() for n, v in made(backend).observe(inputs, torch.tensor(WEIGHT)).items()}
    with jax.enable_x64(True):
        last = {at: tuple(np.moveaxis(v, 1, -1) if v.ndim == 4 else v for v in pair) for at, pair in found.items()}
        inputs = jax.tree.map(jnp.asarray, last)
        return {n: np.asarray(v) for n, v in made(backend).observe(inputs, jnp.asarray(WEIGHT)).items()}


@pytest.mark.sample(3)
@both
@pytest.mark.parametrize("limit", [1, 60, plan.CACHED])
def test_squares_are_those_of_each_samples_own_gradient(backend: str, limit: int, monkeypatch: Any) -> None:
    """However the samples are cut to fit; a repeated row, several positions and calls are summed before squaring."""
    monkeypatch.setattr(plan, "CACHED", limit)
    found = taps()
    first = {name: pair for (name, call), pair in found.items() if not call}
    both_calls = zip(found["shared", 0], found["shared", 1], strict=True)
    first["shared"] = tuple(np.stack(pair, 1) for pair in both_calls)  # a call more is a position more
    expected = reference.average_squared_gradients(first, WEIGHT, LAYERS, draw(0, SHAPES))
    sums = observed(backend, found)
    assert sums.keys() == set(SHAPES) - {"free.weight"}
    assert all(np.abs(value / WEIGHT.sum() - expected[name]).max() < 1e-13 for name, value in sums.items())


def test_squares_agree_with_automatic_differentiation() -> None:
    """One backward pass a sample, on the tiny task's network."""
    run = engine(config("vogn", "torch"))
    batch = run.task.batch("train", 0, 0)
    share = run._evaluate(run._micro(batch), (0, 0), observe=run._curvature)
    total = {name: torch.zeros_like(parameter) for name, parameter in run.named.items()}
    micro, state = run._micro(batch)[0], run.carry[0]
    for n, weight in enumerate(micro["weight"]):
        only = micro | {"weight": micro["weight"] * (torch.arange(len(micro["weight"])) == n)}
        loss, _ = run.model.loss(run.model(only, state, (0, 0))[0], only)
        for name, grad in zip(total, torch.autograd.grad(loss, list(run.named.values())), strict=True):
            total[name] += grad**2 / weight
    for name in set(total) - {"conv.weight"}:  # batch normalisation behind it makes each loss depend on other samples
        mean = total[name] / micro["weight"].sum()
        assert torch.allclose(share.statistics[name], mean, rtol=1e-10, atol=1e-14), name


@both
def test_the_noise_has_the_stated_variance(backend: str) -> None:
    """Var(w) = 1 / (N (s + δ̃ + γ)), N = ρ · samples, δ̃ = τδ / N; 0 for batch normalisation and in the first step."""
    shapes = {"a.weight": (200, 100), "n.weight": (8,)}
    layers = {"a": Layer("linear", ("a.weight",)), "n": Layer("batchnorm", ("n.weight",))}
    hyper = {"prior_precision": 3.0, "damping": 0.02, "augmentation": 2.0, "tempering": 0.5, "tempering_start": 0.1}
    hyper |= {"tempering_warmup": 10}
    start = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    curvature = np.linspace(0.0, 0.2, 200, dtype=np.float32)[:, None] * np.ones((1, 100), np.float32)
    for step, tau in ((0, 0.1), (5, 0.3), (40, 0.5)):
        found = perturbed(backend, layers, shapes, start, curvature, step, hyper)
        assert not found["n.weight"].any()
        if step == 0:
            assert not found["a.weight"].any()
            continue
        variance = 1.0 / (2.0 * SAMPLES * (curvature + tau * 3.0 / (2.0 * SAMPLES) + 0.02))
        z = found["a.weight"] / np.sqrt(variance)
        assert abs(z.mean()) < 4.0 / np.sqrt(z.size)
        assert abs(z.var() - 1.0) < 4.0 * np.sqrt(2.0 / z.size)
        assert np.all(np.abs(z.var(1) - 1.0) < 6.0 * np.sqrt(2.0 / 100)), "in every row, whatever its curvature"
        again = perturbed(backend, layers, shapes, start, curvature, step, hyper)
        assert np.array_equal(found["a.weight"], again["a.weight"])
        other = perturbed(backend, layers, shapes, start, curvature, step, hyper, draw=1)
        assert abs(np.corrcoef(found["a.weight"].ravel(), other["a.weight"].ravel())[0, 1]) < 4.0 / np.sqrt(z.size)


def perturbed(
    backend: str, layers: Any, shapes: Any, start: Tree, curvature: Any, step: int, hyper: Any, draw: int = 0
) -> Tree:
    """Return the weights that a step's forward pass would see."""
    if backend == "torch":
        named = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
        optimizer = VOGN(named.items(), layers=layers, samples=SAMPLES, **hyper)
        optimizer.state[named["a.weight"]]["curvature"].copy_(torch.tensor(curvature))
        with optimizer.forward_params((0, step), draw):
            seen = {name: parameter.detach().numpy().copy() for name, parameter in named.items()}
        assert all(np.array_equal(parameter.detach(), start[name]) for name, parameter in named.items())
        return seen
    optimizer = vogn(layers=layers, shapes=shapes, samples=SAMPLES, **hyper)
    params = {name: jnp.asarray(value) for name, value in start.items()}
    state = optimizer.init(params)
    state["curvature"]["a.weight"] = jnp.asarray(curvature)
    found = optimizer.forward_params(params, state, jnp.asarray([0, step], jnp.uint32), draw)
    return {name: np.asarray(value) for name, value in found.items()}


def test_torch_draws_what_the_stream_does() -> None:
    """Every parameter has its stream's numbers, also when several are drawn at once."""
    shapes = {"w": (300,), "scalar": (), "z/1": (4, 5, 6)}
    for key in ((0, 1), (2**32 - 1, 7)):
        for kind, bound in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
            like = [torch.zeros(shape, dtype=kind) for shape in shapes.values()]
            for (name, shape), found in zip(shapes.items(), draw_normal(key, list(shapes), like), strict=True):
                index = np.arange(found.numel())
                expected = stream.normal(np, key, name, index, kind=found.numpy().dtype.type).reshape(shape)
                assert found.dtype == kind and np.abs(found.numpy() - expected).max() < bound
                (alone,) = draw_normal(key, [name], [found])
                assert torch.equal(alone, found)


def test_groups_hold_one_type_and_no_more_than_the_limit() -> None:
    sizes = {"a": plan.CACHED - 1, "b": 1, "c": 1, "d": plan.CACHED + 1, "e": 2}
    named = {name: torch.zeros(size, dtype=torch.float16) for name, size in sizes.items()} | {"f": torch.zeros(2)}
    assert [list(group) for group in group_tensors(named)] == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]


def test_a_step_draws_once_for_all_parameters() -> None:
    """Fifty more layers add no operator to a draw, except the copies of their means."""
    counts = []
    for layers in (2, 52):
        shapes = {f"{number}.weight": (3, 2) for number in range(layers)}
        named = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        described = {str(number): Layer("linear", (f"{number}.weight",)) for number in range(layers)}
        optimizer = VOGN(named.items(), layers=described, samples=SAMPLES)
        with Operators() as operators, optimizer.forward_params((0, 1)):
            pass
        counts.append(operators.calls.total() - operators.calls["aten::clone"])
    assert counts[0] == counts[1]


@pytest.mark.quick
@both
def test_without_noise_and_squares_it_is_sgd_with_weight_decay(backend: str) -> None:
    """So much data that σ = 0, so much damping that s does not count: α / γ is SGD's rate and δ̃ its decay; decay here
    reaches vectors too, and not batch normalisation."""
    samples, rate, decay, huge = 10**6, 0.05, 0.03, 1e9
    hyper = {"augmentation": 1e24, "damping": huge, "lr": rate * huge, "prior_precision": decay * 1e24 * samples}
    run = engine(
        config("vogn", backend, hyper=hyper | {"tempering_warmup": 0, "tempering_start": 1.0, "momentum": 0.9})
    )
    advance(run, range(6))
    found, oracle = weights(run), engine(config("sgd", "torch"))
    params = {n: p for n, p in oracle.named.items()}
    velocity = {n: torch.zeros_like(p) for n, p in params.items()}
    for step in range(6):
        share = oracle._evaluate(oracle._micro(oracle.task.batch("train", 0, step)), (0, step), observe=None)
        oracle.carry = share.carry
        with torch.no_grad():
            for name, parameter in params.items():
                pull = 0.0 if name.startswith("norm") else decay
                velocity[name] = 0.9 * velocity[name] + share.grads[name] + pull * parameter
                parameter -= rate * velocity[name]
    assert max(float(np.abs(found[n] - p.detach().numpy()).max()) for n, p in params.items()) < 1e-7


def test_several_draws_of_a_clipped_gradient_agree() -> None:
    ends = []
    for backend in ("torch", "jax"):
        made = engine(config("vogn", backend, hyper={"draws": 3}, clip_norm=0.05))
        advance(made, range(2))
        ends.append(weights(made))
    assert gap(*ends) <= 1e-10


def test_more_draws_make_a_step_less_noisy() -> None:
    """A step of 16 draws is nearer than a step of one draw to the step of 64 other draws."""

    def moved(draws: int) -> np.ndarray:
        run = engine(config("vogn", "torch", hyper={"draws": draws, "momentum": 0.0}))
        advance(run, range(1))  # at the mean, whatever `draws` is
        before = weights(run)
        advance(run, range(1, 2))
        after = weights(run)
        return np.concatenate([(after[n] - before[n]).ravel() for n in after if "running" not in n])

    many = moved(64)
    assert np.linalg.norm(moved(16) - many) < 0.7 * np.linalg.norm(moved(1) - many)


@both
def test_what_no_layer_describes_follows_adam(backend: str) -> None:
    hyper = {"lr": 0.02, "fallback_ratio": 0.5, "fallback_beta1": 0.8, "fallback_beta2": 0.9, "fallback_epsilon": 1e-6}
    rival = torch.nn.Parameter(torch.tensor(draw(0, SHAPES)["free.weight"]))
    adam = torch.optim.Adam([rival], lr=0.01, betas=(0.8, 0.9), eps=1e-6)
    found = driven(backend, hyper, steps=5)["free.weight"]
    for step in range(5):
        rival.grad = torch.tensor(draw(10 + step, SHAPES)["free.weight"])
        adam.step()
    assert np.abs(found - rival.detach().numpy()).max() < 1e-12


def driven(
    backend: str,
    hyper: dict[str, Any],
    steps: int,
    spoil: Any = None,
    edit: dict[str, float] | None = None,
    counted: list[int] | None = None,
) -> Tree:
    """Parameters after some steps on drawn gradients and squares; `spoil` may change either.

    `edit` are hyper-parameters of the last step; `counted` is told what the optimizer counts.
    """
    spoil = spoil or (lambda step, grads, squares: None)

    class Alone:
        exact = staticmethod(lambda values: values)

    inputs = []
    for step in range(steps):
        grads = draw(10 + step, SHAPES)
        squares = {n: v**2 for n, v in draw(30 + step, SHAPES).items() if n != "free.weight"}
        spoil(step, grads, squares)
        inputs.append((grads, squares))
    if backend == "torch":
        optimizer = made(backend, **hyper)
        for step, (grads, squares) in enumerate(inputs):
            optimizer.param_groups[0].update(edit or {} if step == steps - 1 else {})
            for name, parameter in optimizer.named.items():
                parameter.grad = torch.tensor(grads[name])
            optimizer.absorb({n: torch.tensor(v) for n, v in squares.items()}, reduce=Alone)
            optimizer.step(key=(0, step))
        (counted if counted is not None else []).append(optimizer.facts()["kept"])
        return {name: parameter.detach().numpy() for name, parameter in optimizer.named.items()}
    with jax.enable_x64(True):
        optimizer = made(backend, **hyper)
        params = {name: jnp.asarray(value) for name, value in draw(0, SHAPES).items()}
        state = optimizer.init(params)
        for step, (grads, squares) in enumerate(inputs):
            if step == steps - 1:
                state = state | {"hyper": state["hyper"] | {n: jnp.asarray(v) for n, v in (edit or {}).items()}}
            state = optimizer.absorb(jax.tree.map(jnp.asarray, squares), state, reduce=Alone)
            updates, state = optimizer.update(
                jax.tree.map(jnp.asarray, grads), state, params, key=jnp.asarray([0, step], jnp.uint32)
            )
            params = {name: value + updates[name] for name, value in params.items()}
        (counted if counted is not None else []).append(optimizer.facts(state)["kept"])
    return {name: np.asarray(value) for name, value in params.items()}


@both
def test_squares_that_are_not_finite_leave_the_curvature_and_are_counted(backend: str) -> None:
    def spoil(step: int, grads: Tree, squares: Tree) -> None:
        if step == 2:
            squares["fc.weight"][0, 0] = np.inf
            squares["fc.weight"][1, 1] = np.nan

    counted: list[int] = []
    spoiled, clean = driven(backend, {}, 5, spoil, counted=counted), driven(backend, {}, 5, counted=counted)
    assert counted == [2, 0]
    assert all(np.isfinite(value).all() for value in spoiled.values())
    changed = spoiled["fc.weight"] != clean["fc.weight"]
    assert changed[0, 0] and changed[1, 1] and changed.sum() == 2


@both
def test_a_zero_gradient_without_prior_moves_nothing(backend: str) -> None:
    def spoil(step: int, grads: Tree, squares: Tree) -> None:
        for tree in (grads, squares):
            tree.update({name: np.zeros_like(value) for name, value in tree.items()})

    after = driven(backend, {"prior_precision": 0.0, "damping": 1e-3}, 3, spoil)
    assert all(np.array_equal(value, draw(0, SHAPES)[name]) for name, value in after.items())


@both
@pytest.mark.parametrize("name", ["fallback_ratio", "fallback_beta1", "fallback_beta2", "fallback_epsilon"])
def test_what_adam_is_told_can_be_edited(name: str, backend: str) -> None:
    """Of the step in which it is edited; it concerns what no layer describes, and nothing else."""
    hyper = {"lr": 0.02, "fallback_epsilon": 0.3}
    found, plain = driven(backend, hyper, 4, edit={name: 0.5}), driven(backend, hyper, 4)
    changed = {key for key, value in found.items() if not np.array_equal(value, plain[key])}
    assert changed == {"free.weight"} and np.abs(found["free.weight"] - plain["free.weight"]).min() > 1e-5


@mostly_torch
def test_every_hyper_parameter_can_be_edited(backend: str) -> None:
    """In the middle of a run each takes effect at once; state stays."""
    plain = engine(config("vogn", backend))
    advance(plain, range(4))
    edits = {"momentum": 0.1, "beta2": 0.9, "prior_precision": 100.0, "damping": 0.5, "augmentation": 1.0}
    for name, value in (edits | {"tempering": 0.31, "tempering_start": 1.0, "tempering_warmup": 100}).items():
        run = engine(config("vogn", backend))
        advance(run, range(3))
        if backend == "torch":
            run.optimizer.param_groups[0][name] = value
        else:
            held = run.run["opt"]["hyper"]
            with jax.enable_x64(True):
                run.run["opt"] = run.run["opt"] | {"hyper": held | {name: held[name] * 0 + value}}
        advance(run, range(3, 4))
        assert gap(weights(run), weights(plain)) > 1e-9, name


def test_settings_without_meaning_are_refused() -> None:
    for backend in BACKENDS:
        for wrong in ({"tempering": 0.0}, {"tempering": 2.0, "beta2": 0.9}, {"prior_precision": 0.0, "damping": 0.0}):
            with pytest.raises(UserError, match=r"optimizer\."):
                made(backend, **wrong)


def test_the_yaml_is_what_the_halves_take() -> None:
    from suite.settings import configure

    node = configure.resolve(["task=resnet50", "optimizer=vogn"]).optimizer
    assert set(node.options()) == set(made("torch").defaults)
    assert set(SETTINGS["vogn"]) <= set(node.options()) and engines.OPTIMIZERS["vogn"]
