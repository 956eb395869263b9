"""jax optimizers on arrays that are split over explicit axes of a mesh, the default of `jax.make_mesh`."""

from typing import Any

import jax
import pytest
from jax.sharding import AxisType, NamedSharding
from own_loops import LAYERS, NAMES, check_equal, loss_by_hand, make, start, train

from suite.optimizers._base.jax_mesh import call_with_auto_axes

SPLIT = {
    "first": {"weight": jax.P("data", None), "bias": jax.P("data")},
    "last": {"weight": jax.P(None, "data"), "bias": jax.P()},
}


@pytest.fixture(params=["set", "of the arrays"])
def mesh(request: pytest.FixtureRequest) -> Any:
    """A mesh of two devices: that of `jax.set_mesh`, or one that only the arrays know."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    if request.param == "set":
        with jax.set_mesh(mesh):
            yield mesh
    else:
        yield mesh


def list_axes(values: Any) -> list[list[Any]]:
    """List the axes over which each array of a tree is split."""
    return [jax.tree.leaves(tuple(jax.typeof(value).sharding.spec)) for value in jax.tree.leaves(values)]


@pytest.mark.sample(7, keep=("kfac", "kbfgs", "soap"))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["batch", "parameters"])
def test_split_arrays_train_as_whole_ones(name: str, split: str, mesh: Any) -> None:
    def place(values: Any, axes: Any) -> Any:
        return jax.tree.map(lambda value, axes: jax.sharding.reshard(value, NamedSharding(mesh, axes)), values, axes)

    def loss(params: Any, x: Any, y: Any, tap: Any = lambda name, x, y: y) -> Any:
        whole = place(params, jax.tree.map(lambda _: jax.P(), params))
        return loss_by_hand(whole, *place((x, y), (jax.P("data"), jax.P("data"))), tap)

    axes = SPLIT if split == "parameters" else jax.tree.map(lambda _: jax.P(), SPLIT)
    placed = place(start(), axes)
    params, state = train(name, loss, placed, LAYERS)
    whole, whole_state = train(name, loss_by_hand, start(), LAYERS)
    check_equal(params, whole)
    check_equal(state, whole_state, 2e-5)
    assert jax.tree.map(jax.typeof, params) == jax.tree.map(jax.typeof, placed), "weights stay where they are"
    begun = make(name, placed, LAYERS).init(placed)
    assert list_axes(state) == list_axes(begun), "state stays where it is"


def test_the_compiler_splits_only_what_is_split_over_explicit_axes() -> None:
    """Elsewhere, and in `jax.shard_map`, a function is called as it is."""
    automatic = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    explicit = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])

    def find_kinds(x: Any) -> Any:
        kinds.append(jax.sharding.get_abstract_mesh().axis_types)
        return x

    for mesh, axes, expected in (
        (automatic, jax.P("data"), (AxisType.Auto,)),
        (explicit, jax.P(), (AxisType.Explicit,)),
        (explicit, jax.P("data"), (AxisType.Auto,)),
    ):
        kinds: list[Any] = []
        with jax.set_mesh(mesh):
            x = jax.device_put(jax.numpy.ones(4), axes)
            call_with_auto_axes(find_kinds, x, like=x)
            jax.shard_map(lambda x: call_with_auto_axes(find_kinds, x), in_specs=axes, out_specs=axes)(x)
        assert kinds == [expected, (AxisType.Manual,)]
