"""Communication modes of the suite in your own jax training loop, inside `jax.shard_map`.

exchange = exchange_gradients(params, "comm=onebit", world=8, axis="batch")
residuals = exchange.init()  # split over the axis: P("batch")

def step(params, residuals, count, x, y):  # the body of a shard_map
    grads = jax.grad(loss)(params, x, y)
    grads, residuals = exchange(grads, residuals, count)
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from suite.comm import setup
from suite.comm.channel import Channels
from suite.comm.reduce.jax import Reduce, Tree
from suite.comm.transport.jax import AXIS, Transport
from suite.contract import LAYER_KINDS, UserError
from suite.engine.modes import Description, compose_mode
from suite.optimizers._base.jax import name_leaves
from suite.optimizers._base.jax_shapes import check_parameters

__all__ = ["GradientExchange", "exchange_gradients"]


def exchange_gradients(
    params: Any,
    *overrides: str,
    world: int,
    axis: str | tuple[str, ...] = "batch",
    kinds: Mapping[str, str] | None = None,
    seed: int = 0,
) -> "GradientExchange":
    """Return a function that takes the mean of gradients over devices, as a communication mode does.

    Args:
        params: the parameters, or their shapes.
        overrides: as in a command: `comm=NAME`, and its parts, such as `comm.feedback=true`.
        world: number of devices along the axis.
        axis: of the mesh. A topology with hosts needs the two axes ("hosts", "locals").
        kinds: `linear`, `conv2d`, `embedding` or `batchnorm` by the path of a weight, such as `layer.weight`; only
            modes with `comm.kinds` read it.
        seed: of codecs that round at random.

    Raises:
        UserError: an override is no setting of the exchange of gradients, parts do not fit together, `world` or the
            axes are not what they should be, the kinds are missing, or parameters are not real.
    """
    if not isinstance(world, int) or world < 1:
        raise UserError(f"world={world}: set it to the number of devices along the axis")
    axes = (axis,) if isinstance(axis, str) else axis
    if not isinstance(axes, tuple) or not all(isinstance(one, str) for one in axes):
        raise UserError(f"axis={axis!r}: set it to the name of an axis of the mesh, or to a tuple of names")
    comm = compose_mode(*overrides, more=("bucket_mib",))
    check_parameters(name_leaves(params))  # a codec would drop imaginary parts, and the mean of whole numbers is cut
    sizes = {name: tuple(value.shape) for name, value in name_leaves(params).items()}
    if comm.kinds and kinds is None:
        raise UserError(f"comm={comm.name}: differs by kind of layer; set kinds={{path: kind}}, or kinds={{}} for none")
    if odd := sorted({kind for kind in (kinds or {}).values() if kind not in LAYER_KINDS}):
        raise UserError(f"kinds: {odd[0]} is no kind; choose one of {', '.join(LAYER_KINDS)}")
    if unknown := set(kinds or ()) - sizes.keys():
        raise UserError(f"kinds: no parameter {min(unknown)}; the paths are {', '.join(sizes)}")
    channels = setup.make_channels(comm, Description(sizes, kinds or {}), world, "jax")
    if channels.locals and axes != AXIS:
        raise UserError(f"comm={comm.name}: distinguishes hosts; make a mesh with the axes {AXIS}, and set axis={AXIS}")
    return GradientExchange(params, channels, world, axes, seed)


class GradientExchange:
    """Takes the mean of gradients over the devices of a mesh.

    Gradients in half precision are encoded, sent and averaged as float32.

    Args:
        params: the parameters, or their shapes.
        channels: of the mode.
        world: number of devices.
        axes: of the mesh.
        seed: of codecs that round at random.
    """

    def __init__(self, params: Any, channels: Channels, world: int, axes: tuple[str, ...], seed: int):
        self.channels, self.world, self.axes, self.seed = channels, world, axes, seed
        self.structure = jax.tree.structure(params)
        self.shapes = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in name_leaves(params).items()}
        self._traced = self._trace()  # not in the first call, inside a shard_map, where the mesh is another

    def init(self) -> Tree:
        """Return the residuals of error feedback, zero: (world, …) each; {} without error feedback."""
        return {name: jnp.zeros(slot.shape, slot.dtype) for name, slot in self._traced[0].items()}

    def __call__(self, grads: Any, residuals: Tree, step: Array | int) -> tuple[Any, Tree]:
        """Return the means over devices, and the new residuals.

        Args:
            grads: this device's gradients, a tree like the parameters.
            residuals: this device's, (1, …) each.
            step: number of the step, for codecs that round at random.

        Raises:
            UserError: the axes are missing or have another number of devices, hosts have another number of ranks, the
                gradients are no tree like the parameters, or residuals are missing.
        """
        sizes = self._find_sizes()
        if (devices := math.prod(sizes)) != self.world:
            raise UserError(
                f"world={self.world}: the mesh has {devices} devices along {self.axes}; set world={devices}"
            )
        if self.channels.locals and sizes != self._sizes:
            raise UserError(f"comm.ranks_per_host: the mesh is {sizes}, and must be {self._sizes} along {self.axes}")
        _check_leaves("grads", name_leaves(grads), self.shapes, "pass a tree like the parameters")
        if self.world > 1:
            place = ", ".join(self.axes)
            own = {name: slot.update(shape=(1, *slot.shape[1:])) for name, slot in self._traced[0].items()}
            _check_leaves("residuals", residuals, own, f"pass those of init() or of the last step, split over {place}")
        key = jnp.stack([jnp.uint32(self.seed), jnp.asarray(step, jnp.uint32)])
        reduce = Reduce(self._transport(), self.channels, state=residuals, key=key)
        means = reduce.mean("gradients", name_leaves(grads), gradients=True)
        pairs = zip(jax.tree.leaves(grads), means.values(), strict=True)
        return jax.tree.unflatten(self.structure, [mean.astype(g.dtype) for g, mean in pairs]), reduce.state

    def count_bytes(self) -> int:
        """Return the bytes that the first device sends in a step, by the formulas of the ledger."""
        return sum(entry.sent for entry in self._traced[1].entries)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Number of devices along each axis."""
        inner = self.channels.locals
        return (self.world // inner, inner) if inner else (self.world,) + (1,) * (len(self.axes) - 1)

    def _find_sizes(self) -> tuple[int, ...]:
        """Number of devices along each axis of the mesh that the call runs on."""
        try:
            return tuple(map(lax.axis_size, self.axes))
        except NameError as error:
            raise UserError(
                f"axis={', '.join(self.axes)}: there is no such axis here; call the exchange inside jax.shard_map, and "
                "set axis to the name of the mesh's axis"
            ) from error

    def _trace(self) -> tuple[dict[str, jax.ShapeDtypeStruct], Transport]:
        """An exchange traced without devices: residuals (world, …) by name, and the transport with its entries."""
        transport = self._transport()

        def body(grads: Tree) -> Tree:
            reduce = Reduce(transport, self.channels, state={}, key=jnp.zeros(2, jnp.uint32))
            reduce.mean("gradients", grads, gradients=True)
            return reduce.state

        mesh = AbstractMesh(self._sizes, self.axes)
        mapped = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(self.axes), check_vma=False)
        return jax.eval_shape(mapped, self.shapes), transport

    def _transport(self) -> Transport:
        return Transport(self.world, self.channels.locals, self.axes)


def _check_leaves(what: str, given: Mapping[str, Any], expected: Mapping[str, Any], advice: str) -> None:
    """Check names, shapes and types.

    Raises:
        UserError: one is missing, superfluous, or differs.
    """
    for name in (*expected, *given):
        found, due = (_describe(tree.get(name)) for tree in (given, expected))
        if found != due:
            raise UserError(f"{what}: {name} is {found}, expected {due}; {advice}")


def _describe(value: Any) -> str:
    return "missing" if value is None else f"{value.dtype}{list(value.shape)}"
