"""Weight decay against L2 regularization, with and without a preconditioner (Loshchilov, Hutter, arXiv:1711.05101)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Preconditioner = Literal["identity", "fixed", "adam"]


@dataclass(frozen=True)
class Problem:
    """Quadratic losses, one for each step: curvature / 2 times the squared distance from a target."""

    start: np.ndarray  # the first iterate
    targets: np.ndarray  # (steps, parameters)
    curvature: np.ndarray
    scale: np.ndarray  # inverse of the fixed preconditioner


def measure(
    seed: int,
    *,
    preconditioner: Preconditioner,
    penalty: Literal["plain", "scaled"] = "plain",
    coefficient: Literal["best", "printed"] = "best",
    rate: float = 0.01,
    decay: float = 0.01,
    parameters: int = 20,
    steps: int = 50,
) -> float:
    """The distance between the last iterates with weight decay and with L2 regularization.

    It is relative to the distance travelled. The penalty is coefficient / 2 times the squared norm.

    Args:
        seed: of the losses and the first iterate.
        preconditioner: M_t. `identity`: SGD (proposition 1). `fixed`: a constant diagonal (proposition 3). `adam`: the
            one of algorithm 2 (proposition 2).
        penalty: `scaled` weighs each parameter by the inverse of the fixed preconditioner (equation 2).
        coefficient: `best`: the nearest iterates, by a search that includes decay / rate, the value of proposition 1.
            `printed`: decay / rate^2, which is lambda' / alpha with lambda' = lambda / alpha (equation 2).
        rate: alpha.
        decay: lambda, of theta <- (1 - lambda) theta - alpha M grad f (equation 1).
        parameters: number of parameters.
        steps: number of steps.
    """
    from scipy import optimize

    random = np.random.default_rng(seed)
    problem = Problem(
        random.standard_normal(parameters),
        random.standard_normal((steps, parameters)) + 3,
        np.exp(random.uniform(-2, 2, parameters)),
        np.exp(random.uniform(-1, 1, parameters)),
    )
    weight = problem.scale if penalty == "scaled" else np.ones(parameters)
    decayed = run(problem, preconditioner, rate=rate, decoupled=decay)

    def distance(value: float) -> float:
        return float(np.linalg.norm(run(problem, preconditioner, rate=rate, coupled=value * weight) - decayed))

    travelled = float(np.linalg.norm(decayed - problem.start))
    if coefficient == "printed":
        return distance(decay / rate**2) / travelled
    candidates = [decay / rate, *decay / rate * np.logspace(-3, 3, 61)]
    nearest = min(candidates, key=distance)
    refined = optimize.minimize_scalar(distance, bounds=(nearest / 1.3, nearest * 1.3))
    return min(distance(nearest), refined.fun) / travelled


def run(
    problem: Problem,
    preconditioner: Preconditioner,
    *,
    rate: float,
    decoupled: float = 0.0,
    coupled: np.ndarray | float = 0.0,
) -> np.ndarray:
    """The last iterate with decoupled weight decay, and with a penalty coupled / 2 times the squared norm."""
    x, first, second = problem.start, np.zeros_like(problem.start), np.zeros_like(problem.start)
    for step, target in enumerate(problem.targets, start=1):
        gradient = problem.curvature * (x - target) + coupled * x
        if preconditioner == "adam":  # algorithm 2
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            move = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        else:
            move = gradient / problem.scale if preconditioner == "fixed" else gradient
        x = (1 - decoupled) * x - rate * move
    return x
