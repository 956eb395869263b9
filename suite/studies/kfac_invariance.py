"""K-FAC's updates of a network and of its reparameterizations (Martens, Grosse, arXiv:1503.05671)."""

from typing import Literal

import numpy as np

Matrices = list[np.ndarray]


def measure(
    seed: int,
    *,
    method: Literal["kfac", "sgd"] = "kfac",
    damping: float = 0.0,
    rate: float = 0.1,
    steps: int = 10,
    spread: float = 1.0,
) -> float:
    """The relative difference between the outputs of two equivalent networks after the same number of updates.

    The network, 5-7-4 with tanh and a Gaussian predictive distribution, is transformed as in section 10: input and
    activities are multiplied by Omega_i and the pre-activities by Phi_i, with weights chosen so that the function is
    the same at the start. Theorem 1 and its corollary: without damping, both remain the same function.

    Args:
        seed: of data, weights and transformations.
        method: `kfac`: W <- W - rate G^-1 (dW) A^-1, with A = E[a a'] and G = E[g g'] under the model's distribution,
            which is exact here (section 4.2). `sgd`: plain gradient descent.
        damping: multiple of the identity added to each of A and G.
        rate: step size.
        steps: number of updates, on the full batch.
        spread: size of the random transformations' departure from the identity.
    """
    random = np.random.default_rng(seed)
    inputs, targets = random.standard_normal((5, 60)), random.standard_normal((4, 60))
    weights = [random.standard_normal((7, 6)) / 2, random.standard_normal((4, 8)) / 2]
    omega0, omega1 = (_affine(size, spread, random) for size in (6, 8))
    phi1, phi2 = (np.eye(size) + spread * random.standard_normal((size, size)) / size for size in (7, 4))
    transformed = [
        np.linalg.solve(phi1, weights[0]) @ np.linalg.inv(omega0),  # W' = Phi^-1 W Omega^-1
        np.linalg.solve(phi2, weights[1]) @ np.linalg.inv(omega1),
    ]
    plain = (np.eye(6), np.eye(7), np.eye(8), np.eye(4))
    other = (omega0, phi1, omega1, phi2)
    for _ in range(steps):
        weights = _update(weights, plain, inputs, targets, method, damping, rate)
        transformed = _update(transformed, other, inputs, targets, method, damping, rate)
    outputs, changed = _forward(weights, plain, inputs)[-1], _forward(transformed, other, inputs)[-1]
    return float(np.linalg.norm(changed - outputs) / np.linalg.norm(outputs))


def _affine(size: int, spread: float, random: np.random.Generator) -> np.ndarray:
    """An invertible affine map of activities: its last row keeps the homogeneous coordinate, which is 1."""
    matrix = np.eye(size) + spread * random.standard_normal((size, size)) / size
    matrix[-1] = np.eye(size)[-1]
    return matrix


def _forward(weights: Matrices, maps: tuple[np.ndarray, ...], inputs: np.ndarray) -> Matrices:
    """Layer inputs a_0 and a_1, the hidden activities, and the output."""
    omega0, phi1, omega1, phi2 = maps
    ones = np.ones((1, inputs.shape[1]))
    first = omega0 @ np.vstack([inputs, ones])
    hidden = np.tanh(phi1 @ weights[0] @ first)
    second = omega1 @ np.vstack([hidden, ones])
    return [first, second, hidden, phi2 @ weights[1] @ second]


def _update(
    weights: Matrices,
    maps: tuple[np.ndarray, ...],
    inputs: np.ndarray,
    targets: np.ndarray,
    method: str,
    damping: float,
    rate: float,
) -> Matrices:
    """One update; columns are samples."""
    _, phi1, omega1, phi2 = maps
    first, second, hidden, output = _forward(weights, maps, inputs)
    samples = inputs.shape[1]
    # the Jacobian of the output with respect to each layer's pre-activities s_i, for each sample
    through = (phi2 @ weights[1] @ omega1)[:, :-1]
    jacobians = [np.einsum("oh,hn,hs->nos", through, 1 - hidden**2, phi1), np.broadcast_to(phi2, (samples, 4, 4))]
    residual = output - targets
    updated = []
    for weight, activity, jacobian in zip(weights, (first, second), jacobians, strict=True):
        gradient = np.einsum("nos,on,an->sa", jacobian, residual, activity) / samples
        if method == "kfac":
            left = np.einsum("nos,not->st", jacobian, jacobian) / samples  # E[g g'] with output noise of variance 1
            right = activity @ activity.T / samples
            left, right = (factor + damping * np.eye(len(factor)) for factor in (left, right))
            gradient = np.linalg.solve(left, gradient) @ np.linalg.inv(right)
        updated.append(weight - rate * gradient)
    return updated
