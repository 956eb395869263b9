"""Adafactor with means, as in torch, against Adafactor with sums (documentation of `torch.optim.Adafactor`)."""

import numpy as np

EPSILON1, EPSILON2 = 2.0**-23, 1e-3  # torch's defaults for float32: the type's machine epsilon, and 1e-3


def measure(
    seed: int, *, size: float = 1.0, fall: float = 1.0, rows: int = 20, columns: int = 30, steps: int = 20
) -> float:
    """The relative difference between torch's last step and the documented formula with sums.

    The documentation states V = R C / max(1' R, epsilon1) with sums R and C of squared gradients, and that "this
    implementation uses the mean instead. This choice is mathematically equivalent".

    Args:
        seed: of the gradients and the first parameters.
        size: standard deviation of the first gradient's elements.
        fall: factor between the sizes of consecutive gradients.
        rows: of the parameter.
        columns: of the parameter.
        steps: number of steps.
    """
    from suite.studies.adafactor.torch import iterates

    random = np.random.default_rng(seed)
    sizes = size * fall ** np.arange(steps)
    gradients = sizes[:, None, None] * random.standard_normal((steps, rows, columns))
    gradients = gradients.astype(np.float32)
    start = random.standard_normal((rows, columns)).astype(np.float32)
    before, after = iterates(start, gradients)[-2:]
    factors = np.zeros((rows, 1)), np.zeros((1, columns))
    for step, gradient in enumerate(gradients.astype(np.float64), start=1):
        factors = _moments(gradient, factors, step)
    expected = formula(before, gradients[-1].astype(np.float64), factors, steps)
    return float(np.linalg.norm(after - before - expected) / np.linalg.norm(expected))


def formula(
    parameter: np.ndarray, gradient: np.ndarray, factors: tuple[np.ndarray, np.ndarray], step: int
) -> np.ndarray:
    """One step of the documented algorithm with lr = 0.01, d = 1 and sums."""
    row, column = factors
    variance = row @ column / max(row.sum(), EPSILON1)
    update = gradient / np.maximum(np.sqrt(variance), EPSILON1)
    clipped = update / max(1.0, np.sqrt(np.mean(update**2)))
    rate = max(EPSILON2, float(np.sqrt(np.mean(parameter**2)))) * min(0.01, step**-0.5)
    return -rate * clipped


def _moments(gradient: np.ndarray, factors: tuple[np.ndarray, np.ndarray], step: int) -> tuple[np.ndarray, np.ndarray]:
    """R and C after a gradient: sums over columns and rows, with decay 1 - t^-0.8."""
    share = step**-0.8
    squares = gradient**2
    row = (1 - share) * factors[0] + share * squares.sum(axis=1, keepdims=True)
    return row, (1 - share) * factors[1] + share * squares.sum(axis=0, keepdims=True)
