"""A separable problem on which adaptive methods err on unseen samples (Wilson et al., arXiv:1705.08292)."""

from typing import Literal

import numpy as np


def measure(
    seed: int,
    *,
    method: Literal["gradient", "adam"],
    samples: int = 200,
    positive: float = 0.55,
    steps: int = 3000,
) -> float:
    """Return the probability that the fitted model misclassifies an unseen sample.

    Least squares on the labels, from weights of 0. Feature 1 is the label y = 1 or -1, features 2 and 3 are 1, and
    each sample has features that no other sample has: one if y = 1, else five; all are 1. An unseen sample shares only
    features 1 to 3 with the others.

    Args:
        seed: of the labels.
        method: `gradient`: gradient descent with the step 1 / L. `adam`: beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8,
            rate 0.001.
        samples: n.
        positive: probability of y = 1. A sample of labels with fewer positive ones than negative ones is drawn again.
        steps: number of steps.
    """
    random = np.random.default_rng(seed)
    labels = np.zeros(samples)
    while labels.sum() <= 0:
        labels = np.where(random.random(samples) < positive, 1.0, -1.0)
    data = build_data(labels)
    weights = first = second = np.zeros(data.shape[1])
    rate = 1 / np.linalg.norm(data, 2) ** 2
    for step in range(1, steps + 1):
        gradient = data.T @ (data @ weights - labels)
        if method == "gradient":
            weights = weights - rate * gradient
        else:
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            weights = weights - 0.001 * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    wrong_positive = weights[0] + weights[1] + weights[2] <= 0
    wrong_negative = -weights[0] + weights[1] + weights[2] >= 0
    return float(positive * wrong_positive + (1 - positive) * wrong_negative)


def build_data(labels: np.ndarray) -> np.ndarray:
    """Return the features of samples, (samples, features)."""
    counts = np.where(labels > 0, 1, 5)
    data = np.zeros((len(labels), 3 + counts.sum()))
    data[:, 0], data[:, 1:3] = labels, 1
    for row, (end, count) in enumerate(zip(3 + np.cumsum(counts), counts, strict=True)):
        data[row, end - count : end] = 1
    return data
