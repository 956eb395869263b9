"""DLRM as numbers: one description from which shapes, layers and both models are made.

Naumov et al. 2019: a bottom network for the dense features, a row of an embedding table for each categorical one, the
products of all pairs, and a top network. The tables of all features are stacked in one table, `tables`, so that
a step looks them up, and devices share them, at once. `interaction=cross` is DCNv2 (Wang et al. 2021), as in MLPerf's
second DLRM benchmark.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from suite.contract import Layer, Spec, UserError

DENSE = 13  # number of numeric features in Criteo's data
FEATURES = 26  # number of categorical features


@dataclass(frozen=True)
class Architecture:
    """Network's sizes.

    Attributes:
        rows: of each feature's table.
        hots: number of ids of each feature in a sample; the rows of its ids are summed.
        width: of a row, and of the bottom network's output.
        bottom: widths of the bottom network's hidden layers.
        top: widths of the top network's hidden layers.
        interaction: `dot` or `cross`.
        cross_layers: layers of the cross network.
        cross_rank: rank of each of its matrices.
        placement: of the tables, `replicated` or `rows`.
    """

    rows: tuple[int, ...]
    hots: tuple[int, ...]
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    interaction: str = "dot"
    cross_layers: int = 3
    cross_rank: int = 512
    placement: str = "replicated"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("interaction", self.interaction, ("dot", "cross")),
            ("placement", self.placement, ("replicated", "rows")),
        ):
            if value not in known:
                raise UserError(f"task.{name}={value}: unknown; choose one of {', '.join(known)}")
        if len(self.hots) != len(self.rows):
            raise UserError(
                f"task.hots: {len(self.hots)} numbers, but there are {len(self.rows)} categorical features; set one "
                "for each"
            )

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each feature's rows begin in the common table, (features,) int64."""
        return np.concatenate([[0], np.cumsum(self.rows)[:-1]]).astype(np.int64)

    @cached_property
    def segments(self) -> np.ndarray:
        """Feature of each of a sample's ids, (sum of hots,) int64."""
        return np.repeat(np.arange(len(self.hots)), self.hots)

    @cached_property
    def pairs(self) -> np.ndarray:
        """Places of the strict lower triangle in a flattened square of dense vector and features, (pairs,) int64."""
        side = len(self.rows) + 1
        row, column = np.tril_indices(side, -1)
        return row * side + column

    @property
    def crossed(self) -> int:
        """Number of inputs of the cross network."""
        return (len(self.rows) + 1) * self.width

    @property
    def networks(self) -> dict[str, tuple[int, ...]]:
        """Widths of the bottom and the top network, inputs and outputs included."""
        features = self.width + len(self.pairs) if self.interaction == "dot" else self.crossed
        return {"bottom": (DENSE, *self.bottom, self.width), "top": (features, *self.top, 1)}

    def _linears(self) -> dict[str, tuple[int, int, bool]]:
        """Inputs, outputs and bias of every linear layer, in the model's order."""
        sizes = {}
        for name, widths in self.networks.items():
            if name == "top" and self.interaction == "cross":
                for layer in range(self.cross_layers):
                    sizes[f"cross.{layer}.down"] = self.crossed, self.cross_rank, False
                    sizes[f"cross.{layer}.up"] = self.cross_rank, self.crossed, True
            for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
                sizes[f"{name}.{layer}"] = inputs, outputs, True
        return sizes

    def shapes(self) -> dict[str, Spec]:
        """Every parameter by name. A table's rows start within ±1/√(its rows), see `bounds`."""
        specs = {"tables.weight": Spec((sum(self.rows), self.width), "uniform(1)", placement=self.placement)}
        for name, (inputs, outputs, bias) in self._linears().items():
            specs[f"{name}.weight"] = Spec((outputs, inputs), "glorot_normal")
            if bias:
                cross = name.startswith("cross")
                specs[f"{name}.bias"] = Spec((outputs,), "zeros" if cross else f"normal({outputs**-0.5!r})")
        return specs

    def bounds(self, rows: slice) -> np.ndarray:
        """1/√n of the table each row belongs to, (rows, 1) float32."""
        start, stop, _ = rows.indices(sum(self.rows))
        table = np.searchsorted(self.offsets, np.arange(start, stop), side="right") - 1
        return (np.asarray(self.rows, np.float64) ** -0.5)[table].astype(np.float32)[:, None]

    def layers(self) -> dict[str, Layer]:
        """Return the linear layers, and the tables as one embedding."""
        layers = {"tables": Layer("embedding", ("tables.weight",))}
        for name, (_, _, bias) in self._linears().items():
            layers[name] = Layer("linear", (f"{name}.weight", *([f"{name}.bias"] if bias else [])))
        return layers

    def count_kept_bytes(self, value: int) -> float:
        """Bytes that a row leaves for the backward pass; see `suite.contract.Keeps`."""
        joined = (len(self.rows) + 1) * self.width
        crossed = self.cross_layers * (2 * joined + self.cross_rank) if self.interaction == "cross" else len(self.pairs)
        total = DENSE + sum(self.bottom) + 2 * self.width + joined + crossed + sum(self.top)
        copy = joined * (4 if self.interaction == "cross" else value) if value < 4 else 0  # of the joined vectors
        return float(value * total + 4 * sum(self.hots) + copy)


def limit_table_sizes(rows: Sequence[int], limit: int | None) -> tuple[int, ...]:
    """Return the tables' sizes with at most `limit` rows each, as after hashing to this range."""
    return tuple(min(count, limit) for count in rows) if limit else tuple(rows)
