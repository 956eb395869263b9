"""Communication modes in a user's own `shard_map`: the bits of the simulated torch ranks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reducing
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from suite.comm.transport.jax import AXIS
from suite.contract import UserError
from suite.engine.jax_gradients import GradientExchange, exchange_gradients

ROUNDS = [reducing.gradients(step) for step in range(3)]
PARAMS = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in reducing.SHAPES.items()}
MODES: dict[str, dict[str, Any]] = {
    "float32": {},
    "onebit": {"codec": "onebit", "algorithm": "all_to_all", "feedback": True},
    "int8": {"codec": {"module": "suite.comm.codecs.int8", "rounding": "stochastic"}, "algorithm": "ring"},
    "leader": {"topology": "leader", "algorithm": "all_to_all"},
    "two levels": {"codec": "float21", "algorithm": "gather", "topology": "two_level", "feedback": True},
}


def train(exchange: GradientExchange, rounds: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Return the means after several rounds on four devices, each equal on all of them."""
    if len(jax.devices()) < reducing.WORLD:
        pytest.skip("fewer than four jax devices: jax was imported before the tests could ask for them")
    axes = exchange.axes
    sizes = (-1, reducing.LOCALS) if len(axes) > 1 else (-1,)
    mesh = Mesh(np.array(jax.devices()[: reducing.WORLD]).reshape(sizes), axes)

    def body(grads: Any, residuals: Any, step: Any) -> Any:
        means, residuals = exchange(jax.tree.map(lambda grad: grad[0], grads), residuals, step)
        return jax.tree.map(lambda mean: mean[None], means), residuals

    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(axes), P(axes), P()), out_specs=P(axes), check_vma=False))
    residuals, found = exchange.init(), []
    for step, grads in enumerate(rounds):
        means, residuals = run(grads, residuals, step)
        ranks = {name: np.asarray(value) for name, value in means.items()}
        assert all((value == value[:1]).all() for value in ranks.values())
        found.append({name: value[0] for name, value in ranks.items()})
    return found


@pytest.mark.parametrize("mode", MODES)
def test_exchange_is_torch(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mode gives the bits of torch, also with residuals, and counts its bytes."""
    channels = {name: reducing.channels(name, **MODES[mode]) for name in ("torch", "jax")}
    axes = AXIS if channels["jax"].locals else ("batch",)
    found = train(GradientExchange(PARAMS, channels["jax"], reducing.WORLD, axes, 3), ROUNDS)
    for step, means in enumerate(found):
        monkeypatch.setattr(reducing, "KEY", (3, step))
        expected, _, ledgers = reducing.by_torch(channels["torch"], ROUNDS if mode != "int8" else [ROUNDS[step]])
        for name, value in (expected[step] if mode != "int8" else expected[0]).items():
            assert np.array_equal(means[name], value), name
    sent = GradientExchange(PARAMS, channels["jax"], reducing.WORLD, axes, 3).count_bytes()
    assert sent * (1 if mode == "int8" else len(ROUNDS)) == ledgers[0].total


def test_nested_and_narrow_trees() -> None:
    """A tree keeps its structure and types; bfloat16 is averaged in float32."""
    params = {"layer": {"weight": jnp.zeros((3, 2), jnp.bfloat16)}, "scale": jnp.zeros(())}
    exchange = exchange_gradients(params, "comm=float32", world=reducing.WORLD)
    assert exchange.init() == {}
    ranks = jnp.arange(1.0, 1 + reducing.WORLD)
    grads = {"layer": {"weight": jnp.ones((4, 3, 2), jnp.bfloat16) * ranks[:, None, None].astype(jnp.bfloat16)}}
    found = jax.vmap(lambda grad: exchange(grad, {}, 0)[0], axis_name="batch")({**grads, "scale": ranks})
    assert found["layer"]["weight"].dtype == jnp.bfloat16 and found["scale"].tolist() == [2.5] * 4
    assert found["layer"]["weight"].astype(jnp.float32).ravel().tolist() == [2.5] * 24


def test_two_axes_of_one_level_keep_residuals() -> None:
    """A mesh of two axes that the mode does not distinguish."""
    exchange = exchange_gradients({"a": jnp.zeros(9)}, "comm=onebit", world=4, axis=("a", "b"))
    assert {value.shape[0] for value in exchange.init().values()} == {4} and exchange.count_bytes() > 0


def test_shapes_in_half_precision_have_residuals_in_float32() -> None:
    exchange = exchange_gradients({"a": jax.ShapeDtypeStruct((5, 3), jnp.bfloat16)}, "comm=onebit", world=4)
    assert {value.dtype for value in exchange.init().values()} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda grads, residuals: (grads, {}), r"residuals: gradients/0/\w+ is missing, expected float32\[1,"),
        (lambda grads, residuals: (grads, jax.tree.map(lambda x: x[0], residuals)), r"residuals: \S+ is float32\["),
        (lambda grads, residuals: (grads, jax.tree.map(jnp.bfloat16, residuals)), r"residuals: \S+ is bfloat16\[1,"),
        (lambda grads, residuals: (grads, residuals | {"b": grads["a"]}), r"residuals: b is float32\[9\], .*missing"),
        (lambda grads, residuals: ({"b": grads["a"]}, residuals), r"grads: a is missing, expected float32\[9\]"),
        (
            lambda grads, residuals: ({"a": grads["a"][:3]}, residuals),
            r"grads: a is float32\[3\], expected float32\[9\]",
        ),
    ],
)
def test_lost_residuals_and_other_gradients_are_refused(change: Callable[..., Any], says: str) -> None:
    exchange = exchange_gradients({"a": jnp.zeros(9)}, "comm=onebit", world=4)

    def step(grad: Array, residuals: Any) -> Any:
        return exchange(*change({"a": grad}, residuals), 0)

    own = {name: value[:, None] for name, value in exchange.init().items()}
    with pytest.raises(UserError, match=f"^{says}"):
        jax.vmap(step, axis_name="batch")(jnp.ones((4, 9)), own)


def test_residuals_need_not_come_from_init() -> None:
    """They may come from a checkpoint. The first call runs in a shard_map, whose mesh the trace must not see."""
    exchange = exchange_gradients({"a": jnp.zeros(9)}, "comm=int8", world=len(jax.devices()))
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    body = jax.shard_map(
        lambda grads: exchange(grads, {}, 0)[0], mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    assert np.allclose(jax.jit(body)({"a": jnp.ones(9)})["a"], 1.0, atol=1e-4)


def test_a_missing_axis_is_refused() -> None:
    exchange = exchange_gradients({"a": jnp.zeros(3)}, world=4, axis="data")
    with pytest.raises(UserError, match=r"^axis=data: there is no such axis here"):
        jax.vmap(lambda grad: exchange({"a": grad}, {}, 0)[0], axis_name="batch")(jnp.ones((4, 3)))


def test_another_number_of_devices_is_refused() -> None:
    exchange = exchange_gradients({"a": jnp.zeros(3)}, world=4)
    with pytest.raises(UserError, match="set world=2"):
        jax.vmap(lambda grad: exchange({"a": grad}, {}, 0)[0], axis_name="batch")(jnp.ones((2, 3)))


@pytest.mark.parametrize(
    "words, options, says",
    [
        (["comm=layerwise"], {}, "comm=layerwise: differs by kind of layer; set kinds="),
        (["comm=hierarchical", "comm.ranks_per_host=2"], {}, "comm=hierarchical: distinguishes hosts"),
        (["comm=layerwise"], {"kinds": {"a": "dense"}}, "kinds: dense is no kind"),
        (["comm=fp8 comm.feedback=true"], {}, "comm=fp8 comm.feedback=true: pass each setting as an argument"),
        (["comm=fp8"], {"kinds": {"e": "linear"}}, "kinds: no parameter e; the paths are a, b, c, d"),
        (["comm=fp8", "max_steps=3"], {}, "max_steps: is not read here"),
        (["comm=fp8"], {"world": 2.0}, "world=2.0: set it to the number of devices"),
        (["comm=fp8"], {"world": 0}, "world=0: set it to the number of devices"),
        (["comm=fp8"], {"axis": ["batch"]}, r"axis=\['batch'\]: set it to the name of an axis"),
    ],
)
def test_refused(words: list[str], options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match="^" + says.split(";")[0]):
        exchange_gradients(PARAMS, *words, **{"world": 4} | options)


@pytest.mark.parametrize(
    "value, says",
    [
        (jnp.ones(3, jnp.complex64), "b is complex; store its real and imaginary parts"),
        (jax.ShapeDtypeStruct((3,), jnp.complex64), "b is complex; store its real and imaginary parts"),
        (jnp.arange(3), "b has type int32; parameters must be bfloat16, float16, float32, float64"),
        (1.0, "b is a float and no array"),
    ],
)
def test_parameters_that_are_not_real_are_refused(value: Any, says: str) -> None:
    """A codec would drop imaginary parts, and the mean of 0 and 1 would be 0."""
    with pytest.raises(UserError, match="^" + says):
        exchange_gradients({"a": jnp.ones(3), "b": value}, "comm=int8", world=4)
