"""Tests for a fixed number of seeds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from suite.statistics.equivalence import equivalence, faster, holm

A, B = [0.98, 1.03, 1.01, 0.99, 1.02], [1.00, 1.04, 0.97, 1.01]


def test_one_sample_equals_the_textbook_formula():
    mean, error = np.mean(A), np.std(A, ddof=1) / math.sqrt(5)
    outcome = equivalence(A, 0.95, 1.05)
    p_low, p_high = stats.t.sf((mean - 0.95) / error, 4), stats.t.cdf((mean - 1.05) / error, 4)
    half = stats.t.ppf(0.95, 4) * error
    assert outcome.p_value == pytest.approx(max(p_low, p_high))
    assert (outcome.low, outcome.high) == pytest.approx((mean - half, mean + half))
    assert outcome.equivalent


def test_two_samples_equal_welchs_formula():
    outcome = equivalence(A, -0.05, 0.05, other=B)
    va, vb = np.var(A, ddof=1) / 5, np.var(B, ddof=1) / 4
    df = (va + vb) ** 2 / (va**2 / 4 + vb**2 / 3)
    half = stats.t.ppf(0.95, df) * math.sqrt(va + vb)
    difference = np.mean(A) - np.mean(B)
    assert (outcome.low, outcome.high) == pytest.approx((difference - half, difference + half))
    p_low, p_high = (stats.t.sf((0.05 + sign * difference) / math.sqrt(va + vb), df) for sign in (1, -1))
    assert outcome.p_value == pytest.approx(max(p_low, p_high))
    shifted = equivalence(A, -0.01, 0.05, other=B)
    assert shifted.p_value == pytest.approx(stats.t.sf((0.01 + difference) / math.sqrt(va + vb), df))


@given(
    st.lists(st.integers(-500, 500), min_size=3, max_size=9, unique=True),
    st.sampled_from([50.0, 150.5, 400.0]),
    st.sampled_from([0.01, 0.05, 0.2]),
)
def test_equivalence_means_that_the_interval_lies_in_the_margin(values, margin, alpha):
    outcome = equivalence(values, -margin, margin, alpha)
    assert outcome.equivalent == (-margin < outcome.low and outcome.high < margin)


def test_equivalence_is_found_wrongly_at_most_at_its_level():
    """The mean lies on the margin: the least favourable case."""
    draws = np.random.default_rng(0).normal(1, 0.3, size=(2000, 6))
    assert np.mean([equivalence(values, -1, 1).equivalent for values in draws]) == pytest.approx(0.05, abs=0.015)


def test_few_scattered_seeds_are_not_equivalent():
    assert not equivalence([0.8, 1.0, 1.2], 0.9, 1.1).equivalent


def test_faster_is_a_one_sided_test_of_logarithms():
    a, b = [300, 280, 300, 290], [520, 540, 520, 500]
    expected = stats.ttest_rel(np.log(a), np.log(b), alternative="less").pvalue
    assert faster(a, b) == pytest.approx(expected)
    assert faster(b, a) == pytest.approx(1 - expected)
    unpaired = stats.ttest_ind(np.log(a), np.log(b), equal_var=False, alternative="less").pvalue
    assert faster(a, b, paired=False) == pytest.approx(unpaired)


def test_a_ratio_of_more_than_the_effect_is_not_shown():
    a, b = [300, 280, 300, 290], [520, 540, 520, 500]
    assert faster(a, b, ratio=0.7) < 0.05 < faster(a, b, ratio=0.56)


def test_holm_of_the_worked_example():
    """p = .01, .04, .03, .005: multiplied by 3, 1, 2, 4, and not decreasing along the order."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.7, 0.6]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_as_the_step_down_procedure_does(p_values, alpha):
    rejected = set()
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - rank) * p_values[index] > alpha:
            break
        rejected.add(index)
    assert {index for index, p in enumerate(holm(p_values)) if p <= alpha} == rejected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: equivalence([1.0], 0, 2), "at least two values"),
        (lambda: equivalence([1.0, 1.0], 0, 2), "all values are equal"),
        (lambda: equivalence([1.0, 2.0], 2, 0), "margin 2 to 0 is empty"),
        (lambda: faster([1, math.inf], [2, 3]), "positive, finite"),
        (lambda: faster([2, 4], [1, 2]), "all values are equal"),
    ],
)
def test_unusable_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
