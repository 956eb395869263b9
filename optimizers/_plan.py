"""Part of a curvature method's plan that both backends share: matrix shapes, and buckets of equal blocks."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from suite.contract import Layer, UserError


@dataclass(frozen=True)
class Buckets:
    """Stacks of blocks with the same key; one batched call computes with a whole stack.

    Rank r owns the r-th slice of each stack. The slices have equal lengths, except that the last ones may be shorter or
    empty. Keys are strings, because they name state in checkpoints.

    Attributes:
        members: the blocks of each bucket, in order.
        share: the number of rows in a full slice of each bucket's stack.
        place: the bucket and the row of each block.
    """

    members: dict[str, tuple[Any, ...]]
    share: dict[str, int]
    place: dict[Any, tuple[str, int]]

    def owners(self, key: str) -> tuple[int, ...]:
        """Return the rank that owns each row of a stack."""
        return tuple(row // self.share[key] for row in range(len(self.members[key])))


def assign_owners(count: int, world: int) -> tuple[int, ...]:
    """Return the rank that owns each of `count` rows: slices of equal length; the last may be shorter or empty."""
    share = -(-count // world)
    return tuple(row // share for row in range(count))


def group_blocks(keys: Mapping[Any, str], world: int) -> Buckets:
    """Group blocks by key, in the order given."""
    members: dict[str, list[Any]] = {}
    for block, key in keys.items():
        members.setdefault(key, []).append(block)
    return Buckets(
        members={key: tuple(blocks) for key, blocks in members.items()},
        share={key: -(-len(blocks) // world) for key, blocks in members.items()},
        place={block: (key, row) for key, blocks in members.items() for row, block in enumerate(blocks)},
    )


def merge_to_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A parameter's shape as a matrix or vector: sides of length 1 are removed, and all sides after the first merged.

    For example, (16, 3, 3, 3) becomes (16, 27), (1024, 1024) stays, and (64, 1, 1, 1) becomes (64,).
    """
    sides = [side for side in shape if side > 1]
    return tuple(sides) if len(sides) < 2 else (sides[0], math.prod(sides[1:]))


def copy_layers(layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """Return a copy.

    Raises:
        UserError: these are no layers by name.
    """
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Layer) for layer in layers.values()):
        raise UserError("layers: must be a dictionary of Layer by name; set layers to what layers_of(…) returns")
    return dict(layers)


def read_layers(layers: Mapping[str, Layer], names: Iterable[str]) -> dict[str, Layer]:
    """Return a copy of layers whose parameters are all there.

    Args:
        layers: by module name.
        names: of the parameters.

    Raises:
        UserError: a parameter of a layer is missing, or these are no layers by name.
    """
    found, own = copy_layers(layers), list(names)
    for name, layer in found.items():
        if missing := [parameter for parameter in layer.parameters if parameter not in own]:
            raise UserError(
                f"layers: {', '.join(missing)} of layer {name} is not among the parameters, which are "
                f"{', '.join(own[:3])}{', …' * (len(own) > 3)}; take layers and parameters from the same model, and "
                "leave layers out whose parameters are frozen, tied, or another optimizer's; a layer may have its "
                "weight alone, as in Layer('linear', ('layer.weight',))"
            )
    return found


def turn_shapes(layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the parameters' shapes, with outputs first also for the weights of transposed layers."""
    weights = {layer.parameters[0] for layer in layers.values() if layer.transposed}
    return {name: turn_axes(shape) if name in weights else tuple(shape) for name, shape in shapes.items()}


def turn_axes(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return (out, in, …) from (…, in, out)."""
    return (axes[-1], axes[-2], *axes[:-2])


class Exchange(NamedTuple):
    """Communication and work for a bucket's symmetric matrices in one step.

    Attributes:
        name: the bucket's name.
        side: number of rows of each matrix.
        sent: the owner of each matrix that is sent to its owner.
        gathered: the owner of each matrix that is gathered from its owner.
        work: work of the busiest owner, for example in multiplications; in the unit of `total`.
        total: work of all owners.
        before: the parameter whose gradient backward computes next after all of `sent` are complete; None if another
            pass than the gradients' computes them.
    """

    name: str
    side: int
    sent: tuple[int, ...]
    gathered: tuple[int, ...]
    work: float
    total: float
    before: str | None = None
