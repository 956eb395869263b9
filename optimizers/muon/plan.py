"""Which parameters Muon treats, and which of them stand in one stack. Shared by torch and jax."""

import math
from collections.abc import Iterable, Mapping

from suite.contract import Layer, UserError
from suite.optimizers._plan import bucket

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: the steepest slope at zero
NORM = 1e-7  # least norm that is divided by: torch.optim.Muon
SCALES = {  # of a step, by the rows and columns of its matrix
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),  # Jordan et al. 2024
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),  # Liu et al. 2025, equation 4
}
WIDE = 1.5  # columns over rows from which the iteration is cheaper on X Xᵀ: 8 r > 12, from counting products


class MuonPlan:
    """Matrices that are equal when those with more rows than columns are turned stand in one stack.

    Attributes:
        stacks: names of the parameters in each stack, by `<shorter side>x<longer side>`.
        sides: rows and columns of each treated parameter, by name.
        rest: names of the parameters that AdamW treats.
        factor: what a step is multiplied by, by name.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        excluded: Iterable[str] | None,
        scale: str,
    ):
        if scale not in SCALES:
            raise UserError(f"optimizer.scale={scale}: unknown; type one of {', '.join(SCALES)}")
        known = [name for name, layer in layers.items() if layer.kind in ("linear", "conv2d")]
        if excluded is None:
            excluded = [name for name in known if layers[name].kind == "linear"][-1:]
        if unknown := sorted(set(excluded) - set(known)):
            raise UserError(
                f"optimizer.excluded: {', '.join(unknown)} is no linear layer or convolution of this task; "
                f"there are {', '.join(known)}"
            )
        weights = [layers[name].parameters[0] for name in known if name not in excluded]
        self.sides = {name: (shapes[name][0], math.prod(shapes[name][1:])) for name in weights}
        self.factor = {name: SCALES[scale](*sides) for name, sides in self.sides.items()}
        keys = {name: f"{min(sides)}x{max(sides)}" for name, sides in self.sides.items()}
        self.stacks = bucket(keys, 1).members
        self.rest = [name for name in shapes if name not in self.sides]

    def tall(self, name: str) -> bool:
        """Whether a matrix is turned in its stack."""
        rows, columns = self.sides[name]
        return rows > columns
