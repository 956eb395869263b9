"""K-FAC's mathematics: exact where theory says so, and the same whatever the batch size."""

import numpy as np
import pytest
import torch
from engines import advance, engine, gap, weights
from kfacs import HYPER, Alone
from sampling import sampled
from small import small

from suite.contract import Layer
from suite.launch.job import make_task
from suite.optimizers.kfac import reference
from suite.optimizers.kfac.torch import KFAC
from suite.optimizers.kfac.torch_statistics import sum_factors

LINEAR = {"fc": Layer("linear", ("fc.weight", "fc.bias"))}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def linear_statistics(x: np.ndarray, dy: np.ndarray, weight: np.ndarray | None = None) -> dict[str, np.ndarray]:
    params = {"fc.weight": np.zeros((dy.shape[-1], x.shape[-1])), "fc.bias": np.zeros(dy.shape[-1])}
    weight = np.ones(len(x)) if weight is None else weight
    return reference.compute_statistics({"fc": (x, dy)}, weight, LINEAR, params)


def test_one_sample_gives_the_exact_fisher_block() -> None:
    """With one sample E[a aᵀ ⊗ g gᵀ] = E[a aᵀ] ⊗ E[g gᵀ]: the Kronecker block is the empirical Fisher itself."""
    x, dy = draw(1, 3), draw(1, 2, seed=1)
    factors = linear_statistics(x, dy)
    gradient = np.outer(np.append(x[0], 1.0), dy[0]).ravel()
    assert np.allclose(np.kron(factors["fc/in"], factors["fc/out"]), np.outer(gradient, gradient))


def test_independent_inputs_and_gradients_give_the_exact_fisher_block() -> None:
    """Every input with every gradient: the two are independent, and the approximation becomes an equality."""
    inputs, gradients = draw(4, 3), draw(5, 2, seed=1)
    x, dy = np.repeat(inputs, 5, 0), np.tile(gradients, (4, 1))
    factors = linear_statistics(x, dy)
    rows = [np.outer(np.append(a, 1.0), g).ravel() for a, g in zip(x, dy, strict=True)]
    exact = np.mean([np.outer(row, row) for row in rows], 0)
    assert np.allclose(np.kron(factors["fc/in"], factors["fc/out"]), exact)


def test_step_is_the_damped_fisher_solve() -> None:
    """(Ā + π√λ) ⊗ (Ḡ + √λ/π) solved against the gradient, as one dense system."""
    x, dy = draw(6, 3), draw(6, 2, seed=1)
    layer = torch.nn.Linear(3, 2).double()
    named = [(f"fc.{name}", parameter) for name, parameter in layer.named_parameters()]
    optimizer = KFAC(named, layers=LINEAR, **(HYPER | {"lr": 1.0, "momentum": 0.0, "damping": 0.2}))
    before = {name: parameter.detach().numpy().copy() for name, parameter in named}
    gradient = {"fc.weight": dy.T @ x / 6, "fc.bias": dy.mean(0)}
    for name, parameter in named:
        parameter.grad = torch.from_numpy(gradient[name])
    taps = {("fc", 0): (torch.from_numpy(x), torch.from_numpy(dy))}
    sums = optimizer.observe(taps, torch.ones(6, dtype=torch.float64))
    optimizer.absorb({name: value / 6 for name, value in sums.items()}, reduce=Alone)
    for name in optimizer.plan.programs(0):
        optimizer.program(name, reduce=Alone)
    optimizer.step(reduce=Alone)
    factors = linear_statistics(x, dy)
    a, g = factors["fc/in"], factors["fc/out"]
    pi = np.sqrt((np.trace(a) / 4) / (np.trace(g) / 2))
    fisher = np.kron(g + np.sqrt(0.2) / pi * np.eye(2), a + np.sqrt(0.2) * pi * np.eye(4))
    full = np.hstack([gradient["fc.weight"], gradient["fc.bias"][:, None]])  # (out, in + 1), row-major
    expected = np.linalg.solve(fisher, full.ravel()).reshape(2, 4)
    moved = {name: before[name] - parameter.detach().numpy() for name, parameter in named}
    assert np.allclose(moved["fc.weight"], expected[:, :3], atol=1e-12)
    assert np.allclose(moved["fc.bias"], expected[:, 3], atol=1e-12)


GRADS = {"fc.weight": draw(2, 3, seed=5), "fc.bias": draw(2, seed=6)}


def moved(rates: tuple[float, ...], **hyper: float) -> dict[str, np.ndarray]:
    """Return the changes by two torch steps, with one group of parameters for each of the learning rates."""
    named = {n: torch.nn.Parameter(torch.from_numpy(draw(*v.shape, seed=7))) for n, v in GRADS.items()}
    pairs = list(named.items())
    groups = [{"params": pairs}] if len(rates) == 1 else [{"params": [pair]} for pair in pairs]
    given = [group | {"lr": rate} for group, rate in zip(groups, rates, strict=True)]
    optimizer = KFAC(given, layers=LINEAR, **(HYPER | {"damping": 0.1} | hyper))
    x, dy = draw(6, 3), draw(6, 2, seed=1)
    found = {name: torch.from_numpy(value) for name, value in linear_statistics(x, dy).items()}
    for step in range(2):
        optimizer.absorb(found, reduce=Alone)
        for name in optimizer.plan.programs(step):
            optimizer.program(name, reduce=Alone)
        for name, parameter in named.items():
            parameter.grad = torch.from_numpy(GRADS[name])
        optimizer.step(reduce=Alone)
    return {name: draw(*value.shape, seed=7) - value.detach().numpy() for name, value in named.items()}


@pytest.mark.parametrize("hyper", [{}, {"momentum_on": "gradient", "weight_decay": 0.1}, {"kl_clip": 1e-3}])
def test_a_layers_parameters_may_be_in_different_groups(hyper: dict[str, float]) -> None:
    """Their direction is the layer's all the same, and each takes a step of its own group's length."""
    one, two = moved((0.3,), **hyper), moved((0.3, 0.3), **hyper)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    if "kl_clip" not in hyper:
        slow = moved((0.3, 0.1), **hyper)
        assert np.array_equal(slow["fc.weight"], one["fc.weight"])
        assert np.allclose(3.0 * slow["fc.bias"], one["fc.bias"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rates", [(0.3, 0.3), (0.3, 0.1), (0.02, 0.3), (0.3, 0.0)])
def test_a_bound_on_a_steps_length_counts_each_groups_rate(rates: tuple[float, float]) -> None:
    """Σ lr² ⟨∇, d⟩ = κ with d as it was scaled: the vector that is left, at κ far below the whole length."""
    x, dy = draw(6, 3), draw(6, 2, seed=1)
    found, kappa = linear_statistics(x, dy), 1e-4
    pi = np.sqrt((np.trace(found["fc/in"]) / 4) / (np.trace(found["fc/out"]) / 2))
    full = np.hstack([GRADS["fc.weight"], GRADS["fc.bias"][:, None]])
    left = found["fc/out"] + np.sqrt(0.1) / pi * np.eye(2)
    d = np.linalg.solve(left, full) @ np.linalg.inv(found["fc/in"] + np.sqrt(0.1) * pi * np.eye(4))
    length = np.array([rates[0]] * 3 + [rates[1]]) ** 2 @ (full * d).sum(0)
    nu = min(1.0, np.sqrt(kappa / length))
    changed = moved(rates, kl_clip=kappa, momentum=0.0)  # two steps of equal gradients and statistics
    assert nu < 0.5 and np.allclose(changed["fc.weight"], 2 * rates[0] * nu * d[:, :3], rtol=1e-9, atol=1e-15)
    assert np.allclose(changed["fc.bias"], 2 * rates[1] * nu * d[:, 3], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("copies", [2, 8])
def test_damping_does_not_depend_on_the_batch_size(copies: int) -> None:
    """Repeated samples give the same factors, so the same λ means the same thing."""
    x, dy = draw(4, 3), draw(4, 2, seed=1)
    one, many = linear_statistics(x, dy), linear_statistics(np.tile(x, (copies, 1)), np.tile(dy, (copies, 1)))
    assert all(np.allclose(one[name], many[name]) for name in one)


def test_a_sample_of_weight_two_counts_as_two_samples() -> None:
    x, dy = draw(3, 3), draw(3, 2, seed=1)
    weight = np.array([1.0, 2.0, 0.0])
    twice = [0, 1, 1]
    by_weight = linear_statistics(x, dy * weight[:, None], weight)
    by_copies = linear_statistics(x[twice], dy[twice])
    assert all(np.allclose(by_weight[name], by_copies[name]) for name in by_weight)


# kernel, stride, padding, height, width: edges that meet, images smaller than the kernel, rows that are left over
GEOMETRIES = [
    *((1, 1, 0, 9, 9), (1, 2, 0, 9, 8), (3, 1, 1, 9, 9), (3, 1, 1, 2, 3), (3, 1, 1, 1, 1), (3, 1, 0, 6, 5)),
    *((3, 1, 2, 4, 4), (3, 2, 1, 9, 8), (3, 2, 0, 8, 9), (3, 3, 1, 7, 7), (2, 3, 1, 7, 7), (5, 1, 2, 3, 4)),
    *(
        (7, 2, 3, 9, 9),
        (11, 4, 2, 23, 19),
        (7, 2, 2, 5, 4),
        (8, 3, 2, 6, 6),
    ),  # of the last two a column meets padding only
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("kernel, stride, padding, height, width, bias", sampled(GEOMETRIES, [False, True]))
def test_convolution_factors(kernel: int, stride: int, padding: int, height: int, width: int, bias: bool) -> None:
    """Torch and jax against windows cut out one by one; the weight gradient is the sum of g aᵀ over the same rows."""
    import jax
    import jax.numpy as jnp

    from suite.optimizers.kfac import jax_statistics

    names = ("c.weight", "c.bias") if bias else ("c.weight",)
    layer = Layer("conv2d", names, kernel, stride, padding)
    conv = torch.nn.Conv2d(2, 3, kernel, stride, padding, bias=bias).double()
    x = torch.from_numpy(draw(4, 2, height, width))
    y = conv(x)
    dy = torch.from_numpy(draw(*y.shape, seed=1))
    y.backward(dy)
    assert conv.weight.grad is not None
    weight = np.array([1.0, 0.5, 0.0, 2.0])
    weighted = dy * torch.from_numpy(weight)[:, None, None, None]
    taps = {"c": (x.numpy(), weighted.numpy())}
    expected = reference.compute_statistics(taps, weight, {"c": layer}, {"c.weight": conv.weight.detach().numpy()})
    ours = sum_factors(layer, [(x, weighted)], torch.from_numpy(weight), 3, ("/in", "/out"))
    with jax.enable_x64(True):
        nhwc = [jnp.asarray(value.numpy().transpose(0, 2, 3, 1)) for value in (x, weighted)]
        theirs = jax_statistics.sum_factors(layer, [(nhwc[0], nhwc[1])], jnp.asarray(weight), 3)
    for side in ("/in", "/out"):
        assert np.allclose(ours[side].numpy() / weight.sum(), expected["c" + side])
        assert np.allclose(np.asarray(theirs[side]) / weight.sum(), expected["c" + side])
    rows = np.concatenate([reference.unfold_inputs(sample, layer) for sample in x.numpy()])
    flat = dy.numpy().transpose(0, 2, 3, 1).reshape(-1, 3)
    inputs = (flat.T @ rows)[:, : conv.weight[0].numel()]
    assert np.allclose(inputs, conv.weight.grad.permute(0, 2, 3, 1).flatten(1).numpy())


# of a sample: shapes of x and dy in each call
SHARED: dict[str, tuple[Layer, list[tuple[tuple[int, ...], tuple[int, ...]]]]] = {
    "linear": (Layer("linear", ("w", "b")), [((3, 5), (3, 4)), ((5,), (4,)), ((2, 2, 5), (2, 2, 4))]),
    "conv2d": (Layer("conv2d", ("w", "b"), 3, 2, 1), [((2, 6, 5), (4, 3, 3)), ((2, 3, 2), (4, 2, 1))]),
    "embedding": (Layer("embedding", ("w",)), [((3,), (3, 4)), ((2, 2), (2, 2, 4))]),
    "unit": (Layer("batchnorm", ("w", "b")), [((4, 3, 2), (4, 3, 2)), ((4, 2, 2), (4, 2, 2))]),
    "full": (Layer("batchnorm", ("w", "b")), [((4, 3, 2), (4, 3, 2)), ((4, 2, 2), (4, 2, 2))]),
}


def make_calls(kind: str, weight: np.ndarray) -> tuple[Layer, list[tuple[np.ndarray, np.ndarray]], int]:
    """Return a layer, drawn inputs and weighted gradients of its calls, and the rows of its first parameter."""
    layer, shapes = SHARED[kind]
    calls = []
    for number, (inside, outside) in enumerate(shapes):
        x, dy = draw(len(weight), *inside, seed=2 * number), draw(len(weight), *outside, seed=2 * number + 1)
        x = np.abs(x * 3).astype(int) % 7 if kind == "embedding" else x
        calls.append((x, dy * weight.reshape(-1, *[1] * (dy.ndim - 1))))
    return layer, calls, 7 if kind == "embedding" else 4


@pytest.mark.parametrize("kind", SHARED)
def test_bfloat16_taps_give_the_factors_of_their_values(kind: str) -> None:
    """Products and sums are as of the same values in float32: nothing is rounded to bfloat16."""
    import jax.numpy as jnp

    from suite.optimizers.kfac import jax_statistics

    weight = np.array([1.0, 1.0, 0.0, 1.0])
    layer, calls, rows = make_calls(kind, weight)
    pairs = [(torch.from_numpy(x), torch.from_numpy(dy).bfloat16()) for x, dy in calls]
    pairs = [(x if kind == "embedding" else x.bfloat16(), dy) for x, dy in pairs]
    values = [(x.double().numpy().astype(calls[0][0].dtype), dy.double().numpy()) for x, dy in pairs]
    expected = reference.compute_statistics(
        {"c": values}, weight, {"c": layer}, {"w": np.zeros((rows, 4))}, batchnorm=kind
    )
    if layer.kind == "batchnorm":  # normalised inputs are in float32
        pairs = [(x.float(), dy) for x, dy in pairs]
    single, full = torch.from_numpy(weight).float(), kind == "full"
    found = sum_factors(layer, pairs, single, rows, ("/in", "/out"), full=full)
    last = lambda value: np.moveaxis(value, 1, -1) if layer.kind in ("conv2d", "batchnorm") else value  # noqa: E731
    narrow = [
        (
            jnp.asarray(last(x)) if kind == "embedding" else jnp.asarray(last(x), "bfloat16"),
            jnp.asarray(last(dy), "bfloat16"),
        )
        for x, dy in values
    ]
    theirs = jax_statistics.sum_factors(layer, narrow, jnp.asarray(single.numpy()), rows, full=full)
    if kind in ("linear", "conv2d"):  # inputs that the layer has rounded
        unrounded = [(torch.from_numpy(x).float(), dy) for (x, _), (_, dy) in zip(calls, pairs, strict=True)]
        again = sum_factors(layer, unrounded, single, rows, ("/in", "/out"))
        assert all(torch.equal(again[name], value) for name, value in found.items())
    for name, value in expected.items():
        if kind == "unit":  # [[a, b], [b, c]] of each channel, held as a, b, c
            value = value.reshape(4, 4)[:, [0, 1, 3]]
        for either in (found, theirs):
            factor = np.asarray(either[name.removeprefix("c")])
            assert factor.dtype == np.float32
            assert np.allclose(factor / weight.sum(), value, rtol=0, atol=1e-6 * np.abs(value).max()), name


@pytest.mark.parametrize("kind", SHARED)
def test_calls_of_a_shared_layer_are_so_many_more_positions(kind: str) -> None:
    """Also where the calls have different numbers of them; torch and jax against the specification."""
    import jax
    import jax.numpy as jnp

    from suite.optimizers.kfac import jax_statistics

    weight = np.array([1.0, 0.5, 0.0, 2.0])
    layer, calls, rows = make_calls(kind, weight)
    expected = reference.compute_statistics(
        {"c": calls}, weight, {"c": layer}, {"w": np.zeros((rows, 4))}, batchnorm=kind
    )
    pairs = [(torch.from_numpy(x), torch.from_numpy(dy)) for x, dy in calls]
    found = sum_factors(layer, pairs, torch.from_numpy(weight), rows, ("/in", "/out"), full=kind == "full")
    with jax.enable_x64(True):
        last = lambda value: np.moveaxis(value, 1, -1) if layer.kind in ("conv2d", "batchnorm") else value  # noqa: E731
        pairs = [(jnp.asarray(last(x)), jnp.asarray(last(dy))) for x, dy in calls]
        theirs = jax_statistics.sum_factors(layer, pairs, jnp.asarray(weight), rows, full=kind == "full")
    assert found.keys() == theirs.keys() == {name.removeprefix("c") for name in expected}
    alone = reference.compute_statistics(
        {"c": calls[0]}, weight, {"c": layer}, {"w": np.zeros((rows, 4))}, batchnorm=kind
    )
    for name, value in expected.items():
        if kind == "unit":  # [[a, b], [b, c]] of each channel, held as a, b, c
            value = value.reshape(4, 4)[:, [0, 1, 3]]
        for either in (found, theirs):
            assert np.allclose(np.asarray(either[name.removeprefix("c")]) / weight.sum(), value, atol=1e-12), name
        assert not np.allclose(expected[name], alone[name])


@pytest.mark.parametrize("columns", [5, 127, 128, 129, 300, 777])
def test_symmetric_products(columns: int) -> None:
    """By halves, odd ones too: what an ordinary product gives, and symmetric to the bit."""
    import jax
    import jax.numpy as jnp

    from suite.optimizers.kfac import jax_statistics, torch_statistics

    rows = draw(40, columns)
    with jax.enable_x64(True):
        theirs = np.asarray(jax_statistics.compute_gram(jnp.asarray(rows)))
    for found in (torch_statistics.compute_gram(torch.from_numpy(rows)).numpy(), theirs):
        assert np.allclose(found, rows.T @ rows, atol=1e-12) and np.allclose(found, found.T, rtol=0, atol=1e-13)


def test_factors_are_per_sample_where_the_loss_counts_words() -> None:
    """A translation batch has many words a sentence: A is Σ a aᵀ over sentences, as in the reference."""
    settings = small("transformer", None, "optimizer=kfac", precision="float64")
    made = engine(settings, make_task(settings))
    name, seen = next(name for name, layer in made.layers.items() if layer.kind == "linear"), []
    hook = made.model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    micro = made._micro(made.task.batch("train", 0, 0))
    found = made._evaluate(micro, (0, 0), observe=made._curvature).statistics[f"{name}/in"]
    hook.remove()
    rows = np.concatenate([reference.unfold_inputs(x, made.layers[name]) for x in seen[0].detach().numpy()])
    assert np.allclose(np.asarray(found), rows.T @ rows / made.task.batch_size)


@pytest.mark.slow
def test_backends_agree_where_the_loss_counts_words() -> None:
    ends = []
    for backend in ("torch", "jax"):
        settings = small("transformer", None, "optimizer=kfac", f"backend={backend}", precision="float64")
        made = engine(settings, make_task(settings))
        advance(made, range(3))
        ends.append(weights(made))
    assert gap(*ends) <= 1e-8
