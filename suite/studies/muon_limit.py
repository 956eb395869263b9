"""Where Muon's Newton-Schulz iteration leaves singular values in the long run (Jordan et al., "Muon", 2024)."""

from typing import Literal

import numpy as np

from suite.studies.muon_singular import iterate

POINTS = 100_001


def measure(seed: int, *, quantity: Literal["least", "largest"], steps: int = 100) -> float:
    """Return the extreme value after `steps` steps, of singular values between 1e-3 and 1.

    Values do not converge: a step maps neighbours of 1 away from it. The extremes are those of the set in which they
    then remain.

    Args:
        seed: unused.
        quantity: the least or the largest value.
        steps: number of steps.
    """
    values = iterate(np.geomspace(1e-3, 1, POINTS), steps)
    return float(values.min() if quantity == "least" else values.max())
