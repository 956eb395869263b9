"""The quantizer of QSGD: its bias, variance and number of nonzeros (Alistarh et al., arXiv:1610.02132)."""

from typing import Literal

import numpy as np

Vector = Literal["normal", "constant", "single", "half"]


def measure(
    seed: int,
    *,
    dimension: int,
    levels: int,
    vector: Vector = "normal",
    quantity: Literal["bias", "variance", "increase", "nonzeros"],
    draws: int = 1000,
) -> float:
    """A moment of Q_s(v), estimated from independent draws.

    Args:
        seed: of the vector and the draws.
        dimension: n.
        levels: s.
        vector: `constant`: all elements equal. `single`: one nonzero. `half`: elements halfway between two levels,
            as many as fit.
        quantity: `increase`: E|Q_s(v) - v|^2 / |v|^2. `variance`: the same, divided by min(n / s^2, sqrt(n) / s), the
            bound of lemma 3.1 (ii). `nonzeros`: number of nonzeros divided by s (s + sqrt(n)), lemma 3.1 (iii).
            `bias`: squared norm of the mean error in units of its expectation for an unbiased quantizer, which is 1;
            lemma 3.1 (i).
        draws: independent quantizations of the same vector.
    """
    random = np.random.default_rng(seed)
    values = make(vector, dimension, levels, random)
    errors, nonzeros = np.zeros(dimension), 0
    squares = 0.0
    for _ in range(draws):
        quantized = quantize(values, levels, random)
        errors += quantized - values
        squares += float(np.sum((quantized - values) ** 2))
        nonzeros += int(np.count_nonzero(quantized))
    if quantity == "bias":
        return float(np.sum(errors**2)) / squares
    if quantity == "nonzeros":
        return nonzeros / draws / (levels * (levels + np.sqrt(dimension)))
    increase = squares / draws / float(np.sum(values**2))
    bound = min(dimension / levels**2, np.sqrt(dimension) / levels)
    return increase if quantity == "increase" else increase / bound


def quantize(values: np.ndarray, levels: int, random: np.random.Generator) -> np.ndarray:
    """Q_s(v), equation 4: each |v_i| / |v| goes to the level below or above, unbiased."""
    norm = np.linalg.norm(values)
    position = np.abs(values) / norm * levels
    lower = np.floor(position)
    return norm * np.sign(values) * (lower + (random.random(len(values)) < position - lower)) / levels


def make(vector: Vector, dimension: int, levels: int, random: np.random.Generator) -> np.ndarray:
    """A vector to quantize."""
    if vector == "normal":
        return random.standard_normal(dimension)
    count = {"constant": dimension, "single": 1, "half": min(dimension, 4 * levels**2)}[vector]
    return np.where(np.arange(dimension) < count, 1.0, 0.0)
