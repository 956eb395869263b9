"""K-BFGS's plan: which layers are covered, and what happens at the first step. Shared by torch and jax."""

import math
from collections.abc import Mapping

from suite.contract import Layer, Plan

POWELL = 0.2  # least sᵀy / yᵀHy, μ₁ of double damping (Goldfarb et al. 2020, §4)
CURVATURE = 1e-4  # least sᵀy / (sᵀs ‖ĝ‖) of a pair that is used (authors' code, kbfgs_utils.py)


class KBFGSPlan(Plan):
    """Statistics at every step; inverses of A once, at the first.

    Attributes:
        linear: names of the covered layers.
        inputs: rows of A by layer, a constant input for the bias included.
        outputs: rows of Hg by layer.
    """

    def __init__(self, layers: Mapping[str, Layer], shapes: Mapping[str, tuple[int, ...]], *, warm_start: int):
        self.layers, self.warm_start = dict(layers), warm_start
        self.linear = [name for name, layer in layers.items() if layer.kind == "linear"]
        self.inputs, self.outputs = {}, {}
        for name in self.linear:
            weight, *bias = layers[name].parameters
            self.inputs[name] = math.prod(shapes[weight][1:]) + len(bias)
            self.outputs[name] = shapes[weight][0]

    def phase(self, step: int) -> tuple[str, ...]:
        """Statistics come with every gradient."""
        return ("statistics",)

    def programs(self, step: int) -> tuple[str, ...]:
        """The first inverse of each layer's A, a program each: jaxlib may deadlock on several sizes in one."""
        return tuple(self.linear) if step == 0 else ()
