"""Schedules of Newton-Schulz coefficients for Muon: Polar Express (arXiv:2505.16932), DeepSeek-V4, and Muon's own."""

from typing import Literal

import numpy as np

Triple = tuple[float, float, float]
Schedule = Literal["muon", "polar-express", "deepseek"]
MUON: Triple = (3.4445, -4.7750, 2.0315)
SCHEDULES: dict[Schedule, tuple[Triple, ...]] = {
    "muon": (MUON,) * 10,
    "deepseek": (MUON,) * 8 + ((2.0, -1.5, 0.5),) * 2,
    "polar-express": (
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ),
}  # as printed in emerging_optimizers, muon_utils.py
POINTS = 100_001


def measure(seed: int, *, schedule: Schedule, steps: int, against: Schedule | None = None, size: int = 0) -> float:
    """Return the largest distance from 1 of a singular value after the steps; they lie between 1e-3 and 1 before.

    Each step maps a singular value x to a x + b x^3 + c x^5.

    Args:
        seed: of the matrix.
        schedule: of the coefficients (a, b, c).
        steps: number of steps, at most the length of the schedule.
        against: divide by the distance that this schedule leaves.
        size: of a square matrix of independent normal numbers, divided by its Frobenius norm, whose singular values
            are taken instead; 0 takes none.
    """
    if size:
        matrix = np.random.default_rng(seed).standard_normal((size, size))
        values = np.linalg.svd(matrix / np.linalg.norm(matrix), compute_uv=False)
    else:
        values = np.geomspace(1e-3, 1, POINTS)
    distance = iterate(values, SCHEDULES[schedule][:steps])
    return distance / iterate(values, SCHEDULES[against][:steps]) if against else distance


def iterate(values: np.ndarray, triples: tuple[Triple, ...]) -> float:
    """Return the largest distance from 1 of singular values after a step for each triple."""
    for a, b, c in triples:
        values = a * values + b * values**3 + c * values**5
    return float(np.max(np.abs(values - 1)))
