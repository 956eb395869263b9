"""Tests of the singular values that Muon's iteration makes."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import muon_singular


def test_the_map_of_singular_values_equals_the_iteration_on_matrices() -> None:
    matrix = np.random.default_rng(3).standard_normal((12, 20))
    iterate = matrix / (np.linalg.norm(matrix) + 1e-7)
    for _ in range(5):
        gram = iterate @ iterate.T
        iterate = 3.4445 * iterate + (-4.7750 * gram + 2.0315 * gram @ gram) @ iterate
    values = np.linalg.svd(matrix, compute_uv=False)
    mapped = muon_singular.iterate(values / (np.linalg.norm(matrix) + 1e-7), 5)
    np.testing.assert_allclose(np.sort(np.linalg.svd(iterate, compute_uv=False)), np.sort(mapped), rtol=1e-9)


def test_the_values_are_neither_uniform_nor_all_in_the_range() -> None:
    assert not holds("jordan2024-muon-uniform", "distance") and not holds("jordan2024-muon-uniform", "square")
    assert holds("jordan2024-muon-range", "wide") and not holds("jordan2024-muon-range", "square")


def test_uniform_values_would_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon_singular, "iterate", lambda values, steps: np.linspace(0.5, 1.5, len(values)))
    assert holds("jordan2024-muon-uniform", "distance") and holds("jordan2024-muon-range", "square")
