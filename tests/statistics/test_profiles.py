"""Performance profiles over tasks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.statistics.profiles import compute_profiles

TIMES = {
    "kfac": {"digits": 100.0, "shapes": 290.0, "hmm": None},
    "sgd": {"digits": 200.0, "shapes": 520.0, "hmm": 400.0},
    "muon": {"digits": 150.0},
}


def test_ratios_are_to_the_best_method_of_each_task():
    measured = compute_profiles(TIMES)
    assert measured["kfac"].ratios == {"digits": 1, "shapes": 1, "hmm": math.inf}
    assert measured["sgd"].ratios == pytest.approx({"digits": 2, "shapes": 520 / 290, "hmm": 1})


def test_a_miss_is_never_solved():
    kfac = compute_profiles(TIMES)["kfac"]
    assert kfac.share(1) == kfac.share(1e300) == pytest.approx(2 / 3)
    assert kfac.share(math.inf) == pytest.approx(2 / 3)


def test_a_task_that_nobody_solves_counts_as_unsolved():
    measured = compute_profiles({"a": {"x": math.inf, "y": 3.0}, "b": {"x": None, "y": 6.0}})
    assert measured["a"].score == pytest.approx(0.5) and measured["a"].ratios["x"] == math.inf


def test_a_method_without_runs_on_a_task_is_not_scored_on_it_and_says_so():
    muon = compute_profiles(TIMES)["muon"]
    assert set(muon.ratios) == {"digits"}
    assert muon.share(1.5) == 1 and muon.share(1.4) == 0
    absent = compute_profiles({**TIMES, "lamb": {}})["lamb"]
    assert absent.score is None
    with pytest.raises(ValueError, match="run on no task"):
        absent.share(2)


@given(
    st.lists(st.lists(st.integers(1, 60) | st.none(), min_size=3, max_size=3), min_size=2, max_size=4),
    st.sampled_from([2.0, 4.0]),
)
def test_score_is_the_integral_of_the_profile(table, tau_max):
    times = {str(i): {str(j): row[j] for j in range(3)} for i, row in enumerate(table)}
    taus = 1 + (np.arange(20_000) + 0.5) / 20_000 * (tau_max - 1)
    for profile in compute_profiles(times, tau_max).values():
        ratios = np.array(list(profile.ratios.values()))
        assert profile.score == pytest.approx(np.mean([(ratios <= tau).mean() for tau in taus[::20]]), abs=2e-3)


def test_points_are_the_corners_of_the_profile():
    corners = [(1, 1 / 3), (520 / 290, 2 / 3), (2, 1), (4, 1)]
    assert compute_profiles(TIMES)["sgd"].points() == corners


@pytest.mark.parametrize(("times", "tau_max", "message"), [({"a": {"x": 0.0}}, 4, "positive"), (TIMES, 1, "above 1")])
def test_unusable_arguments_are_named(times, tau_max, message):
    with pytest.raises(ValueError, match=message):
        compute_profiles(times, tau_max)
