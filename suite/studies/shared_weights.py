"""K-FAC-expand and K-FAC-reduce of a deep linear network with shared weights (Eschenhagen et al., arXiv:2311.00636)."""

from typing import Literal

import numpy as np

Flavour = Literal["expand", "reduce"]


def measure(seed: int, *, setting: Flavour, method: Flavour, samples: int = 6, positions: int = 5) -> float:
    """Return the relative difference between K-FAC's matrix and the Gauss-Newton matrix of the first layer.

    The network is V W x at each position, with shared weights W (4 x 3) and V (2 x 4), and squared error.

    Args:
        seed: of weights and data.
        setting: `expand`: each position has its own loss. `reduce`: the loss is of the mean output over positions.
        method: of K-FAC. `expand` takes each position as a sample. `reduce` averages the inputs and sums the output
            gradients over positions first.
        samples: N.
        positions: R, over which the weights are shared.
    """
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((samples, positions, 3)) + 1
    second = random.standard_normal((2, 4))
    # the Jacobian of the output at position o, or of the mean, with respect to the pre-activation at position r
    mixing = np.eye(positions) if setting == "expand" else np.full((1, positions), 1 / positions)
    jacobians = np.einsum("or,ab->oarb", mixing, second)  # (outputs, 2, positions, 4)
    gradients = np.einsum("oarb,nrc->noabc", jacobians, inputs).reshape(-1, 12)  # of W, one row for each output
    exact = gradients.T @ gradients / samples

    pulled = jacobians.reshape(-1, positions, 4)
    if method == "expand":
        left = np.einsum("krb,krd->bd", pulled, pulled)
        right = np.einsum("nrc,nrd->cd", inputs, inputs) / (samples * positions)
    else:
        summed, mean = pulled.sum(axis=1), inputs.mean(axis=1)
        left, right = summed.T @ summed, mean.T @ mean / samples
    return float(np.linalg.norm(np.kron(left, right) - exact) / np.linalg.norm(exact))
