"""Which parameters Muon orthogonalises, and which of them share a stack. Shared by torch and jax."""

import math
from collections.abc import Mapping

from suite.contract import Layer, UserError
from suite.optimizers._plan import group_blocks, turn_shapes
from suite.optimizers.muon import Settings

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: the steepest slope at zero
NORM = 1e-7  # smaller norms count as this one when a matrix is divided by its norm: torch.optim.Muon
SCALES = {  # a step's factor, from the rows and columns of its matrix
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),  # Jordan et al. 2024
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),  # Liu et al. 2025, equation 4
}
WIDE = 1.5  # columns over rows from which the iteration is cheaper on X Xᵀ: 8 r > 12, from counting products


class MuonPlan:
    """Which parameters Muon orthogonalises, in stacks of matrices of the same size, and which AdamW updates.

    A matrix with more rows than columns is transposed in its stack.

    Args:
        layers: the model's layers, by module name.
        shapes: the parameters' shapes, by name.
        settings: of the optimizer.

    Attributes:
        stacks: names of the parameters in each stack, by `<shorter side>x<longer side>`.
        sides: rows and columns of each orthogonalised parameter, by name.
        rest: names of the parameters that AdamW updates.
        factor: the factor of each orthogonalised parameter's step, by name.

    Raises:
        UserError: for an excluded layer that the model does not have.
    """

    def __init__(self, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], settings: Settings):
        known = [name for name, layer in layers.items() if layer.kind in ("linear", "conv2d")]
        excluded = settings.excluded
        if excluded is None:
            excluded = [name for name in known if layers[name].kind == "linear"][-1:]
        if unknown := sorted(set(excluded) - set(known)):
            raise UserError(
                f"optimizer.excluded: {', '.join(unknown)} is no linear layer or convolution; "
                f"there are {', '.join(known)}"
            )
        weights = [layers[name].parameters[0] for name in known if name not in excluded]
        weights = [name for name in weights if name in shapes]  # torch plans with the groups that it knows so far
        turned = turn_shapes(layers, shapes)
        self.sides = {name: (turned[name][0], math.prod(turned[name][1:])) for name in weights}
        self.factor = {name: SCALES[settings.scale](*sides) for name, sides in self.sides.items()}
        keys = {name: f"{min(sides)}x{max(sides)}" for name, sides in self.sides.items()}
        self.stacks = group_blocks(keys, 1).members
        self.rest = [name for name in shapes if name not in self.sides]

    def tall(self, name: str) -> bool:
        """Return whether a matrix has more rows than columns, and is transposed in its stack."""
        rows, columns = self.sides[name]
        return rows > columns


make = MuonPlan
