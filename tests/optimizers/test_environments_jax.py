"""jax optimizers in other people's training scripts: x64, schedules, flax and equinox."""

import importlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mlps
import numpy as np
import optax
import pytest
from own_loops import LAYERED, LAYERS, NAMES, OBSERVING, batch, check_equal, loss_by_hand, make, start, train

from suite.contract import Layer, UserError
from suite.engine.jax_alone import layers_of, observing, shapes_of


@pytest.mark.sample(5, keep=("shampoo", "soap"))
@pytest.mark.parametrize("name", NAMES)
def test_x64_does_not_change_a_run_in_float32(name: str) -> None:
    plain, state = train(name, loss_by_hand, start(), LAYERS)
    with jax.enable_x64(True):
        found, wide = train(name, loss_by_hand, start(), LAYERS)
    kinds = [str(value.dtype) for value in jax.tree.leaves((found, wide))]
    assert kinds == [str(value.dtype) for value in jax.tree.leaves((plain, state))]
    check_equal(found, plain)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_sets_the_rate_of_each_step(name: str) -> None:
    rate = optax.linear_schedule(0.05, 0.01, 4)
    _, state = train(name, loss_by_hand, start(), LAYERS, make(name, start(), LAYERS, lr=rate))
    np.testing.assert_allclose(state["hyper"]["lr"], rate(3))
    constant = make(name, start(), LAYERS, lr=optax.constant_schedule(0.05))
    check_equal(
        train(name, loss_by_hand, start(), LAYERS, constant)[0],
        train(name, loss_by_hand, start(), LAYERS, make(name, start(), LAYERS, lr=0.05))[0],
    )


@pytest.mark.parametrize("name", NAMES)
def test_complex_parameters_are_refused_and_no_parameters_are_none(name: str) -> None:
    with pytest.raises(UserError, match="a is complex; store its real and imaginary parts"):
        make(name, {"a": jnp.zeros(3, jnp.complex64)}, {}).init({"a": jnp.zeros(3, jnp.complex64)})
    if name not in OBSERVING:
        optimizer = make(name, {}, {})
        assert optimizer.update({}, optimizer.init({}), {})[0] == {}


@pytest.mark.parametrize("name", ["muon", "shampoo", "soap", "kfac"])
def test_products_are_in_float32_unless_the_user_chooses(name: str) -> None:
    params, optimizer = start(), make(name, start(), LAYERS)
    state, extra = optimizer.init(params), {}
    if name == "kfac":
        look = observing(loss_by_hand, optimizer)
        assert "Precision.HIGHEST" in str(jax.make_jaxpr(look)(params, state, *batch()))
        extra = {"statistics": look(params, state, *batch())[2]}

    def count(precision: str) -> tuple[int, int]:
        text = str(
            jax.make_jaxpr(lambda params, state: optimizer.update(params, state, params, **extra))(params, state)
        )
        return text.count("dot_general["), text.count(f"precision=(Precision.{precision}")

    products, exact = count("HIGHEST")
    assert products == exact > 0
    with jax.default_matmul_precision("bfloat16"):
        assert count("DEFAULT")[1] > 0


def test_hyperparameters_that_optax_rounds_to_bfloat16_are_an_error() -> None:
    from suite.optimizers.adamw.jax import make as adamw

    params = {"a": jnp.ones(3, jnp.bfloat16)}
    rounded = optax.inject_hyperparams(adamw)(lr=optax.constant_schedule(0.01))
    state = rounded.init({"a": jnp.ones(3)})
    with pytest.raises(UserError, match=r"lr.*: rounded to bfloat16.*hyperparam_dtype=jnp\.float32"):
        rounded.update(params, rounded.init(params), params)
    kept = optax.inject_hyperparams(adamw, hyperparam_dtype=jnp.float32)(lr=optax.constant_schedule(0.01))
    assert state
    assert kept.update(params, kept.init(params), params)[0]["a"].dtype == jnp.float32


@pytest.mark.parametrize("name", OBSERVING)
def test_statistics_of_a_model_in_bfloat16_are_summed_in_float32(name: str) -> None:
    """Of 301 samples, a number that bfloat16 rounds to 300."""
    params, found = start(), {}
    x, y = (jnp.float32(np.random.default_rng(5).normal(size=(301, size))) for size in (5, 3))
    optimizer = make(name, params, LAYERS)
    for kind in (jnp.float32, jnp.bfloat16):

        def loss(params: Any, x: Any, y: Any, tap: Any, kind: Any = kind) -> Any:
            narrow = jax.tree.map(lambda value: value.astype(kind), (params, x))
            return loss_by_hand(*narrow, y, tap)

        found[kind] = observing(loss, optimizer)(params, optimizer.init(params), x, y)[2]
    for statistic, value in found[jnp.bfloat16].items():
        exact = found[jnp.float32][statistic]
        assert value.dtype == jnp.float32
        assert np.allclose(value, exact, rtol=0, atol=3 * 2.0**-8 * np.abs(exact).max()), statistic
    if name == "kfac":
        assert found[jnp.bfloat16]["first/in"][-1, -1] == 1.0


@pytest.mark.parametrize("name", OBSERVING)
def test_a_model_in_bfloat16_is_observed_in_bfloat16(name: str) -> None:
    """In float32, loss and gradients would be others, and a scan whose carry is in bfloat16 would fail."""
    params, x, y = jax.tree.map(lambda value: value.astype(jnp.bfloat16), (start(), *batch()))

    def loss(params: Any, x: Any, y: Any, tap: Any = lambda name, x, y: y) -> Any:
        added, _ = jax.lax.scan(lambda h, _: (h + params["first"]["bias"], None), jnp.zeros(6, x.dtype), None, length=2)
        return loss_by_hand(params, x, y, tap) + added.sum()

    optimizer = make(name, params, LAYERS)
    found = observing(loss, optimizer)(params, optimizer.init(params), x, y)[:2]
    expected = jax.value_and_grad(loss)(params, x, y)
    assert [v.dtype for v in jax.tree.leaves(found)] == [v.dtype for v in jax.tree.leaves(expected)]
    check_equal(found, expected, 0.0)


@pytest.mark.parametrize("name", OBSERVING)
def test_observing_takes_the_optimizers_own_state(name: str) -> None:
    optimizer = make(name, start(), LAYERS)
    state = optax.chain(optax.clip(1.0), optimizer).init(start())
    with pytest.raises(UserError, match=r"^observing: the state is not that of .* as state\[1\] of an optax\.chain"):
        observing(loss_by_hand, optimizer)(start(), state, *batch())
    observing(loss_by_hand, optimizer)(start(), state[1], *batch())


# --------------------------------------------------------------------------------------------- flax and equinox
def in_linen() -> tuple[Callable[..., Any], Any]:
    """Return the loss and parameters of the network in flax's linen."""
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(3, name="last")(jnp.tanh(linen.Dense(6, name="first")(x)))

    params = {k: {"kernel": v["weight"].T, "bias": v["bias"]} for k, v in start().items()}
    return lambda params, x, y: jnp.square(Network().apply({"params": params}, x) - y).sum(1).mean(), params


def in_nnx() -> tuple[Callable[..., Any], Any]:
    """Return the loss and parameters of the network in flax's nnx."""
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Network(nnx.Module):
        def __init__(self) -> None:
            self.first, self.last = nnx.Linear(5, 6, rngs=nnx.Rngs(0)), nnx.Linear(6, 3, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return self.last(jnp.tanh(self.first(x)))

    model = Network()
    for name, values in start().items():
        layer = getattr(model, name)
        layer.kernel.set_value(values["weight"].T)
        layer.bias.set_value(values["bias"])
    graph, params = nnx.split(model)
    return lambda params, x, y: jnp.square(nnx.merge(graph, params)(x) - y).sum(1).mean(), params


def in_equinox() -> tuple[Callable[..., Any], Any]:
    """Return the loss and parameters of the network in equinox."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    keys = jax.random.split(jax.random.key(0), 2)
    model = eqx.nn.Sequential(
        [eqx.nn.Linear(5, 6, key=keys[0]), eqx.nn.Lambda(jnp.tanh), eqx.nn.Linear(6, 3, key=keys[1])]
    )
    values = [value for layer in start().values() for value in (layer["weight"], layer["bias"])]
    model = eqx.tree_at(lambda m: [m[0].weight, m[0].bias, m[2].weight, m[2].bias], model, values)
    params, static = eqx.partition(model, eqx.is_array)
    return lambda params, x, y: jnp.square(jax.vmap(eqx.combine(params, static))(x) - y).sum(1).mean(), params


@pytest.mark.sample(4, keep=("in_equinox-kfac", "in_linen-vogn"))
@pytest.mark.parametrize("name", LAYERED)
@pytest.mark.parametrize("write", [in_linen, in_nnx, in_equinox])
def test_layers_of_flax_and_equinox_train_as_those_by_hand(write: Callable[[], Any], name: str) -> None:
    loss, params = write()
    layers = layers_of(loss, params, *batch())
    assert [layer.kind for layer in layers.values()] == ["linear", "linear"]
    settings = {"augmentation": 1e12} if name == "vogn" else {}  # draws differ: noise follows the order of elements
    found, _ = train(name, loss, params, layers, make(name, params, layers, **settings))
    expected, _ = train(name, loss_by_hand, start(), LAYERS, make(name, start(), LAYERS, **settings))
    named = {
        name: value.T if name.endswith("kernel") else value
        for name, value in importlib.import_module("suite.optimizers._base.jax").name_leaves(found).items()
    }
    order = sorted(named, key=lambda name: ("last" in name or "layers.2" in name, "bias" not in name))
    check_equal([named[key] for key in order], expected, 1e-4 if name == "vogn" else 2e-6)


def test_optimizers_work_in_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    from suite.optimizers.adamw.jax import make as adamw

    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    before = model.kernel.get_value()
    optimizer = nnx.Optimizer(model, adamw(lr=0.1), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda model: model(jnp.ones((3, 4))).sum())(model))
    np.testing.assert_allclose(model.kernel.get_value(), before * (1 - 0.1 * 0.01) - 0.1, atol=1e-6)


def test_convolutions_embeddings_and_nested_vmap_are_found() -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    keys = jax.random.split(jax.random.key(1), 4)
    model = {
        "words": eqx.nn.Embedding(9, 4, key=keys[0]),
        "inner": eqx.nn.Linear(4, 3, key=keys[1]),
        "image": eqx.nn.Conv2d(3, 2, 3, padding=1, key=keys[2]),
        "skewed": eqx.nn.Conv2d(3, 2, (1, 3), key=keys[3]),
    }
    params, static = eqx.partition(model, eqx.is_array)

    def loss(params: Any, ids: Any, images: Any) -> Any:
        model = eqx.combine(params, static)
        words = jax.vmap(jax.vmap(lambda i: model["inner"](model["words"](i))))(ids)
        convolved = jax.vmap(lambda image: model["image"](image).sum() + model["skewed"](image).sum())(images)
        return words.sum() + convolved.mean()

    given = jnp.zeros((5, 7), int), jnp.ones((5, 3, 6, 6))
    layers = layers_of(loss, params, *given)
    assert {name: layer.kind for name, layer in layers.items()} == {
        "words": "embedding",
        "inner": "linear",
        "image": "conv2d",
    }
    assert set(layers.rest) == {"skewed.weight", "skewed.bias"}
    look = observing(loss, make("kfac", params, layers))
    optimizer = make("kfac", params, layers)
    _, _, statistics = look(params, optimizer.init(params), *given)
    assert statistics["inner/in"].shape == (5, 5)
    assert statistics["image/in"].shape == (28, 28)


def test_a_model_that_is_one_layer_has_its_weight_and_bias() -> None:
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")
    x, _ = batch()
    model, single = linen.Dense(3), equinox.nn.Linear(5, 3, key=jax.random.key(0))
    params = model.init(jax.random.key(0), x)["params"]
    for value, loss, weight in (
        (params, lambda params, x: jnp.square(model.apply({"params": params}, x)).mean(), "kernel"),
        (single, lambda single, x: jnp.square(jax.vmap(single)(x)).mean(), "weight"),
    ):
        layers = layers_of(loss, value, x)
        assert [layer.parameters for layer in layers.values()] == [(weight, "bias")] and not layers.rest


@pytest.mark.parametrize("name", LAYERED)
def test_layers_without_parameters_are_refused(name: str) -> None:
    params = start()
    layers = {"first": Layer("linear", ("frist.weight", "first.bias"))}
    with pytest.raises(UserError, match=r"^layers: frist\.weight of layer first is not among the parameters"):
        make(name, params, layers).init(params)


@pytest.mark.parametrize("name", [*LAYERED, "shampoo", "soap"])
@pytest.mark.parametrize(
    "shapes, message",
    [
        ({"last.weight": (6, 3)}, "last.weight has shape (3, 6)"),
        ({"last.weight": None}, "that shapes lacks"),
        ({"others.weight": (2, 3)}, "others.weight: in shapes, but no parameter here"),
    ],
    ids=["transposed", "missing", "another optimizer's"],
)
def test_parameters_have_the_shapes_that_an_optimizer_was_planned_for(name: str, shapes: Any, message: str) -> None:
    """A transposed matrix would fit into most products."""
    planned = {name: shape for name, shape in (shapes_of(start()) | shapes).items() if shape}
    made = importlib.import_module(f"suite.optimizers.{name}.jax").make
    layers = {name: layer for name, layer in LAYERS.items() if set(layer.parameters) <= planned.keys()}
    optimizer = made(**mlps.asked(name, "jax", layers), shapes=planned)
    with pytest.raises(UserError, match=re.escape(message)):
        optimizer.init(start())


def test_vogn_needs_samples() -> None:
    with pytest.raises(UserError, match=r"^VOGN\(samples=0\): set it to the number of samples of the training split"):
        make("vogn", start(), LAYERS, samples=0)


@pytest.mark.parametrize("name", OBSERVING)
def test_inputs_without_samples_are_named(name: str) -> None:
    params = {"first": {"weight": jnp.eye(5)}}
    optimizer = make(name, params, {"first": Layer("linear", ("first.weight",))})

    def loss(params: Any, x: Any, tap: Any) -> Any:
        return jnp.square(tap("first", x, x @ params["first"]["weight"].T)).sum()

    with pytest.raises(UserError, match=r"^observing: counted=0; set it to the number of terms"):
        observing(loss, optimizer, counted=0)
    for x, says in (jnp.ones(5), "has no axis for samples"), (jnp.ones((0, 5)), "has no samples; leave out"):
        with pytest.raises(UserError, match=f"^layer first: its input .* {says}"):
            observing(loss, optimizer)(params, optimizer.init(params), x)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adamw", "lamb", "lars", "rmsprop", "shampoo", "sm3", "soap"])
def test_empty_parameters_are_left_alone(name: str) -> None:
    params = {"empty": jnp.zeros((3, 0)), "row": jnp.zeros(0), "weight": jnp.ones((2, 3))}
    optimizer = make(name, params, {}, lr=0.1)
    changes, _ = optimizer.update(params, optimizer.init(params), params)
    assert {key: value.shape for key, value in changes.items()} == {key: value.shape for key, value in params.items()}


def test_layers_inside_transforms_are_an_error() -> None:
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(3, name="last")(linen.remat(linen.Dense)(6, name="first")(inputs=x))

    x, y = batch()
    params = Network().init(jax.random.key(0), x)["params"]
    with pytest.raises(UserError, match=r"a layer of kind linear .* inside jax\.jit, jax\.checkpoint"):
        layers_of(lambda params, x, y: jnp.square(Network().apply({"params": params}, x) - y).mean(), params, x, y)
    with pytest.raises(UserError, match="the optimizer has no layers"):
        observing(loss_by_hand, make("kfac", start(), {}))


@pytest.mark.parametrize("name", OBSERVING)
def test_a_loss_may_tap_layers_that_the_optimizer_does_not_have(name: str) -> None:
    """Such as one that was left out of `layers`, or K-BFGS's convolutions."""
    optimizer = make(name, start(), {"first": LAYERS["first"]})
    _, grads, statistics = observing(loss_by_hand, optimizer)(start(), optimizer.init(start()), *batch())
    assert all("last" not in key for key in statistics)
    check_equal(grads, jax.grad(loss_by_hand)(start(), *batch()))


def test_layers_that_observing_would_misread_are_an_error() -> None:
    layers, (x, _) = {"first": Layer("linear", ("first.weight",))}, batch()
    params = {"first": {"weight": jnp.eye(5)}, "last": {"weight": jnp.eye(5)}}

    def scanned(params: Any, x: Any, tap: Any) -> Any:
        def again(h: Any, _: Any) -> Any:
            return tap("first", h, h @ params["first"]["weight"].T), None

        return jnp.square(jax.lax.scan(again, x, None, length=2)[0]).sum(1).mean()

    def of_other_samples(params: Any, x: Any, tap: Any) -> Any:
        row = tap("last", x[:1], x[:1] @ params["last"]["weight"].T)
        return jnp.square(tap("first", x, x @ params["first"]["weight"].T) + row).sum(1).mean()

    with pytest.raises(UserError, match=r"a layer is called inside .*jax\.lax\.scan"):
        optimizer = make("kfac", params, layers)
        observing(scanned, optimizer)(params, optimizer.init(params), x)
    with pytest.raises(UserError, match=r"the lengths are first 8, last 1"):
        optimizer = make("kfac", params, layers | {"last": Layer("linear", ("last.weight",))})
        observing(of_other_samples, optimizer)(params, optimizer.init(params), x)
