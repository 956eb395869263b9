"""Tests of the largest error of the projection, against the points that the page prints."""

import pytest
from claimed import holds

from suite.studies import fits, projection_error


def test_it_is_the_largest_error_of_the_points_that_were_not_fitted() -> None:
    points = [point for point in fits.scaling() if not point.fitted]
    errors = [abs(point.predicted - point.published) / point.published for point in points]
    assert projection_error.measure(0, figure="figure-5") == pytest.approx(max(errors))
    assert len(points) == 28  # as docs/projection.md prints


def test_the_claims_hold_and_a_smaller_region_would_fail() -> None:
    assert holds("osawa2020-figure-5-model", "projection") and holds("ueno2020-model", "projection")
    assert projection_error.measure(0, figure="figure-5") > 0.06
