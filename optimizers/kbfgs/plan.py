"""K-BFGS's plan: which layers are covered, and what happens at the first step. Shared by torch and jax."""

import math
from collections.abc import Mapping

from suite.contract import Layer, Plan
from suite.optimizers._plan import read_layers, turn_shapes
from suite.optimizers.kbfgs import Settings

POWELL = 0.2  # least sᵀy / yᵀHy, μ₁ of double damping (Goldfarb et al. 2020, §4)
CURVATURE = 1e-4  # least sᵀy / (sᵀs ‖ĝ‖) of a pair that is used (authors' code, kbfgs_utils.py)


class KBFGSPlan(Plan):
    """Statistics at every step; inverses of A once, at the first step. Layers of equal shape form one stack.

    Args:
        layers: of the model, by name; the linear ones are covered.
        shapes: of its parameters, by name.
        settings: the optimizer's; the plan reads `warm_start`.

    Attributes:
        stacks: names of the covered layers, keyed by `<outputs>x<inputs>`, and `+1` where there is a bias.
        inputs: rows of A by stack, a constant input for the bias included.
        outputs: rows of Hg by stack.
        place: the stack of each covered layer.
        equal: the stacks with equal inputs; their A are inverted together.
    """

    def __init__(self, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], settings: Settings):
        self.layers, self.warm_start = read_layers(layers, shapes), settings.warm_start
        self.stacks: dict[str, list[str]] = {}
        self.inputs: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        shapes = turn_shapes(layers, shapes)
        for name in [name for name, layer in layers.items() if layer.kind == "linear"]:
            weight, *bias = layers[name].parameters
            outputs, inputs = shapes[weight][0], math.prod(shapes[weight][1:])
            key = f"{outputs}x{inputs}+1" if bias else f"{outputs}x{inputs}"
            self.inputs[key], self.outputs[key] = inputs + len(bias), outputs
            self.stacks.setdefault(key, []).append(name)
        self.place = {name: key for key, names in self.stacks.items() for name in names}
        self.equal: dict[str, list[str]] = {}
        for key, size in self.inputs.items():
            self.equal.setdefault(str(size), []).append(key)

    def phase(self, step: int) -> tuple[str, ...]:
        """Statistics come with every gradient."""
        return ("statistics",)

    def programs(self, step: int) -> tuple[str, ...]:
        """Return the first inverses of A, by size."""
        return tuple(self.equal) if step == 0 else ()


make = KBFGSPlan
