"""K-FAC's plan: which factor stands where, and when it is refreshed. Shared by torch and jax."""

import math
from collections.abc import Mapping

from suite.contract import Layer, Plan
from suite.optimizers._plan import bucket


class KFACPlan(Plan):
    """Factors of equal size in one bucket, owned slice by slice; refreshes every so many steps.

    Attributes:
        kronecker: names of layers with two dense factors, `<layer>/in` (A) and `<layer>/out` (G).
        embedding: names of layers with a diagonal A and a dense G.
        batchnorm: names of layers with a 2×2 block for each channel.
        sizes: rows of each factor, dense or diagonal, by `<layer>/in` and `<layer>/out`; `sides` is their order.
        buckets: the dense factors, keyed by their size.
        covered: names of the parameters that are preconditioned.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        world: int,
        factor_interval: int,
        inverse_interval: int,
        fisher: str,
    ):
        self.layers, self.shapes = dict(layers), dict(shapes)
        self.factor_interval, self.inverse_interval, self.fisher = factor_interval, inverse_interval, fisher
        self.kronecker = [name for name, layer in layers.items() if layer.kind in ("linear", "conv2d")]
        self.embedding = [name for name, layer in layers.items() if layer.kind == "embedding"]
        self.batchnorm = [name for name, layer in layers.items() if layer.kind == "batchnorm"]
        self.sizes: dict[str, int] = {}
        for name in self.kronecker:
            weight, *bias = layers[name].parameters
            self.sizes[f"{name}/in"] = math.prod(shapes[weight][1:]) + len(bias)
            self.sizes[f"{name}/out"] = shapes[weight][0]
        for name in self.embedding:
            self.sizes[f"{name}/in"], self.sizes[f"{name}/out"] = shapes[layers[name].parameters[0]]
        diagonal = {f"{name}/in" for name in self.embedding}
        self.buckets = bucket({side: str(size) for side, size in self.sizes.items() if side not in diagonal}, world)
        self.sides = list(self.sizes)
        self.partner = [i ^ 1 for i in range(len(self.sides))]  # A and G of a layer stand next to each other
        self.covered = {p for name in self.kronecker + self.embedding + self.batchnorm for p in layers[name].parameters}

    def rows(self, key: str) -> list[int]:
        """Where each member of a bucket stands in `sides`."""
        return [self.sides.index(side) for side in self.buckets.members[key]]

    def phase(self, step: int) -> tuple[str, ...]:
        """Statistics are observed every `factor_interval` steps, from given or from sampled labels."""
        word = "statistics" if self.fisher == "empirical" else "sampled"
        return (word,) if step % self.factor_interval == 0 else ()

    def programs(self, step: int) -> tuple[str, ...]:
        """Inverses are refreshed every `inverse_interval` steps, a program for each bucket."""
        return tuple(self.buckets.members) if step % self.inverse_interval == 0 else ()
