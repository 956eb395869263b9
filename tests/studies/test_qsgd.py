"""Moments of QSGD's quantizer."""

import numpy as np
import pytest
from claimed import holds

from suite.studies import qsgd


@pytest.mark.parametrize(("dimension", "levels", "vector"), [(64, 3, "normal"), (512, 7, "constant"), (100, 1, "half")])
def test_the_sampled_variance_equals_the_sum_over_elements(dimension: int, levels: int, vector: qsgd.Vector) -> None:
    """Element i has variance |v|^2 / s^2 p_i (1 - p_i), p_i being its distance from the level below."""
    values = qsgd.make(vector, dimension, levels, np.random.default_rng(0))
    share = np.abs(values) / np.linalg.norm(values) * levels % 1
    expected = float(np.sum(share * (1 - share))) / levels**2
    measured = qsgd.measure(0, dimension=dimension, levels=levels, vector=vector, quantity="increase", draws=4000)
    assert measured == pytest.approx(expected, rel=0.05, abs=1e-12)


def test_the_lemma_holds_and_the_bound_for_four_bits_does_not() -> None:
    for name in ("bias", "variance", "variance-one-level", "nonzeros"):
        assert holds("alistarh2017-qsgd-moments", name), name
    assert holds("alistarh2017-qsgd-four-bits", "levels-16")
    assert not holds("alistarh2017-qsgd-four-bits", "bits-4") and not holds(
        "alistarh2017-qsgd-four-bits", "bits-4-normal"
    )


def test_rounding_down_is_found_to_be_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(values: np.ndarray, levels: int, random: np.random.Generator) -> np.ndarray:
        norm = np.linalg.norm(values)
        return norm * np.sign(values) * np.floor(np.abs(values) / norm * levels) / levels

    monkeypatch.setattr(qsgd, "quantize", down)
    assert not holds("alistarh2017-qsgd-moments", "bias")
